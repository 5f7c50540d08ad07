//! From an error to a message and an exit code.

use std::process::ExitCode;

use lapidary::ErrorCode;

use crate::tell::tell;

/// An error of the user's, found after the flags were parsed.
#[derive(Debug)]
pub struct Usage(pub String);

impl std::fmt::Display for Usage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// A model that is too large for this machine, found before it was downloaded.
#[derive(Debug)]
pub struct TooLarge(pub String);

impl std::fmt::Display for TooLarge {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for TooLarge {}

/// A check that ran and did not pass; it has already said so.
#[derive(Debug)]
pub struct Failed;

impl std::fmt::Display for Failed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the check did not pass")
    }
}

impl std::error::Error for Failed {}

/// Prints an error and turns it into the exit code that `--help` documents.
pub fn report(done: anyhow::Result<()>) -> ExitCode {
    let Err(error) = done else { return ExitCode::SUCCESS };
    // A reader that went away is not a failure of ours.
    if is_broken_pipe(&error) {
        return ExitCode::SUCCESS;
    }
    if error.downcast_ref::<Failed>().is_none() {
        tell(format_args!("error: {}", message(&error)));
    }
    ExitCode::from(code(&error))
}

/// The error and its causes, without those whose words are already there: many errors show their
/// cause themselves.
fn message(error: &anyhow::Error) -> String {
    error.chain().map(ToString::to_string).fold(String::new(), |said, cause| {
        if said.is_empty() {
            cause
        } else if said.contains(&cause) {
            said
        } else {
            format!("{said}: {cause}")
        }
    })
}

/// Whether a reader went away.
pub fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|e| {
        let kind = match e.downcast_ref::<serde_json::Error>() {
            // It does not show the system's error in its chain.
            Some(e) => e.io_error_kind(),
            None => e.downcast_ref::<std::io::Error>().map(std::io::Error::kind),
        };
        kind == Some(std::io::ErrorKind::BrokenPipe)
    })
}

/// Whether the user asked for the end.
pub fn is_cancelled(error: &anyhow::Error) -> bool {
    code(error) == ErrorCode::Cancelled.exit()
}

fn code(error: &anyhow::Error) -> u8 {
    let one = |e: &(dyn std::error::Error + 'static)| {
        if e.is::<Usage>() {
            return Some(ErrorCode::InvalidArgument);
        }
        if e.is::<TooLarge>() {
            return Some(ErrorCode::OutOfMemory);
        }
        match e.downcast_ref::<lapidary_heldout::Error>() {
            Some(e) => e.code(),
            None => ErrorCode::of(e),
        }
    };
    error.chain().find_map(one).map_or(1, ErrorCode::exit)
}
