//! From an error to a message and an exit code.

use std::process::ExitCode;

use lapidary_runner::ErrorCode;

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
    for e in error.chain() {
        if e.is::<Usage>() {
            return ErrorCode::InvalidArgument.exit();
        }
        if let Some(e) = e.downcast_ref::<lapidary_runner::Error>() {
            return ErrorCode::of(e).exit();
        }
        if let Some(e) = e.downcast_ref::<lapidary_backend::Error>() {
            return ErrorCode::of_backend(e).exit();
        }
        if let Some(e) = e.downcast_ref::<lapidary_program::Error>() {
            return ErrorCode::of_program(e).exit();
        }
        if let Some(e) = e.downcast_ref::<lapidary_quantise::Error>() {
            return match e {
                lapidary_quantise::Error::Program(e) => ErrorCode::of_program(e),
                _ => ErrorCode::InvalidArgument,
            }
            .exit();
        }
        if e.is::<lapidary_media::Error>() {
            return ErrorCode::InvalidArgument.exit();
        }
        if let Some(code) = e.downcast_ref().and_then(of_heldout) {
            return code.exit();
        }
        if let Some(e) = e.downcast_ref::<lapidary_gemma::Error>() {
            return of_gemma(e).exit();
        }
        if let Some(e) = e.downcast_ref::<std::io::Error>()
            && e.kind() == std::io::ErrorKind::NotFound
        {
            return ErrorCode::NotFound.exit();
        }
    }
    1
}

/// What the system's own error behind it does not say.
fn of_heldout(error: &lapidary_heldout::Error) -> Option<ErrorCode> {
    use lapidary_heldout::Error;
    match error {
        Error::Runner(e) => Some(ErrorCode::of(e)),
        Error::Line { .. } | Error::Media(_) => Some(ErrorCode::InvalidArgument),
        Error::Io { .. } | Error::Picture { .. } => None,
    }
}

fn of_gemma(error: &lapidary_gemma::Error) -> ErrorCode {
    use lapidary_gemma::Error;
    match error {
        Error::Io { source, .. } if source.kind() == std::io::ErrorKind::NotFound => {
            ErrorCode::NotFound
        }
        Error::Io { .. } => ErrorCode::Io,
        Error::Program(e) => ErrorCode::of_program(e),
        _ => ErrorCode::InvalidProgram,
    }
}
