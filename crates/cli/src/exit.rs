//! From an error to a message and an exit code.

use std::io::Write;
use std::process::ExitCode;

use lapidary_runner::ErrorCode;

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
        // The terminal may be gone as well; there is nobody left to tell then.
        let _ = writeln!(std::io::stderr(), "error: {error:#}");
    }
    ExitCode::from(code(&error))
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|e| {
        e.downcast_ref::<std::io::Error>()
            .is_some_and(|e| e.kind() == std::io::ErrorKind::BrokenPipe)
    })
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
