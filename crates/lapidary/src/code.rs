//! One table: stable code ↔ group ↔ CLI exit code ↔ HTTP status and OpenAI words.
//!
//! Every surface (command line, server, bindings) reads this table and adds nothing to it.

use std::error::Error as StdError;
use std::io;

use lapidary_backend as backend;
use lapidary_gemma as gemma;
use lapidary_media as media;
use lapidary_program as program;
use lapidary_quantise as quantise;
use lapidary_runner as runner;
use lapidary_text as text;

use crate::error::Error;

/// A stable name for each kind of failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorCode {
    /// A bug of ours.
    Internal,
    /// NaN or infinity in the logits.
    NonFiniteLogits,
    /// A parameter is out of range or malformed.
    InvalidArgument,
    /// The prompt does not fit in the context.
    ContextLengthExceeded,
    /// The chat template refuses the conversation or a limit was hit while rendering it.
    TemplateRefused,
    /// No token may be sampled.
    AllMasked,
    /// The program file, or a part of it, is invalid.
    InvalidProgram,
    /// The tokenizer in the program is invalid.
    InvalidTokenizer,
    /// The chat template in the program is invalid.
    InvalidTemplate,
    /// A file or a model does not exist.
    NotFound,
    /// The network failed.
    Network,
    /// A file could not be read or written.
    Io,
    /// The program does not fit in memory.
    OutOfMemory,
    /// The device or its driver failed, or can't be used.
    Device,
    /// The program, backend or request asks for what this build can't do.
    Unsupported,
    /// The engine or the conversation is in use.
    Busy,
    /// The caller cancelled.
    Cancelled,
    /// Too many requests wait already.
    QueueFull,
    /// A file of saved pages is damaged, or of another program.
    InvalidPrefix,
    /// Nobody took the answer's events for too long.
    SlowReader,
    /// The engine was unloaded.
    Unloaded,
}

/// What kind of failure a code is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorGroup {
    /// Ours.
    Internal,
    /// The request's.
    InvalidArgument,
    /// The file's.
    InvalidProgram,
    /// Something does not exist or can't be reached.
    NotFound,
    /// Too little memory, or no usable device.
    Resources,
    /// Not possible with this build.
    Unsupported,
    /// Asked for.
    Cancelled,
}

/// One row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorRow {
    /// Which.
    pub code: ErrorCode,
    /// Its stable name; also OpenAI's `code`.
    pub name: &'static str,
    /// Its group.
    pub group: ErrorGroup,
    /// The command's exit status.
    pub exit: u8,
    /// HTTP status.
    pub http: u16,
    /// OpenAI's `type`.
    pub openai_type: &'static str,
}

const SERVER: &str = "server_error";
const REQUEST: &str = "invalid_request_error";

/// The table. Names and numbers are never changed or reused, only added.
pub const ERROR_TABLE: &[ErrorRow] = {
    use ErrorCode as C;
    use ErrorGroup as G;
    &[
        row(C::Internal, "internal_error", G::Internal, 1, 500, SERVER),
        row(C::NonFiniteLogits, "non_finite_logits", G::Internal, 1, 500, SERVER),
        row(C::InvalidArgument, "invalid_argument", G::InvalidArgument, 2, 400, REQUEST),
        row(
            C::ContextLengthExceeded,
            "context_length_exceeded",
            G::InvalidArgument,
            2,
            400,
            REQUEST,
        ),
        row(C::TemplateRefused, "chat_template_refused", G::InvalidArgument, 2, 400, REQUEST),
        row(C::AllMasked, "all_tokens_masked", G::InvalidArgument, 2, 400, REQUEST),
        row(C::InvalidProgram, "invalid_program", G::InvalidProgram, 3, 500, SERVER),
        row(C::InvalidTokenizer, "invalid_tokenizer", G::InvalidProgram, 3, 500, SERVER),
        row(C::InvalidTemplate, "invalid_chat_template", G::InvalidProgram, 3, 500, SERVER),
        row(C::NotFound, "not_found", G::NotFound, 5, 404, REQUEST),
        row(C::Network, "network_error", G::NotFound, 5, 502, SERVER),
        row(C::Io, "io_error", G::Internal, 1, 500, SERVER),
        row(C::OutOfMemory, "out_of_memory", G::Resources, 4, 503, SERVER),
        row(C::Device, "device_error", G::Resources, 4, 500, SERVER),
        row(C::Unsupported, "unsupported", G::Unsupported, 1, 400, REQUEST),
        row(C::Busy, "busy", G::Resources, 1, 429, "rate_limit_error"),
        row(C::Cancelled, "cancelled", G::Cancelled, 130, 499, REQUEST),
        row(C::QueueFull, "queue_full", G::Resources, 1, 429, "rate_limit_error"),
        row(C::InvalidPrefix, "invalid_prefix_file", G::InvalidArgument, 2, 400, REQUEST),
        row(C::SlowReader, "slow_reader", G::Cancelled, 1, 408, REQUEST),
        row(C::Unloaded, "model_unloaded", G::Resources, 1, 503, SERVER),
    ]
};

const fn row(
    code: ErrorCode,
    name: &'static str,
    group: ErrorGroup,
    exit: u8,
    http: u16,
    openai_type: &'static str,
) -> ErrorRow {
    ErrorRow { code, name, group, exit, http, openai_type }
}

impl ErrorCode {
    /// Its row.
    pub fn row(self) -> &'static ErrorRow {
        ERROR_TABLE.iter().find(|r| r.code == self).expect("every code has a row; tested below")
    }

    /// Its stable name.
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// The command's exit status.
    pub fn exit(self) -> u8 {
        self.row().exit
    }

    /// The HTTP status.
    pub fn http(self) -> u16 {
        self.row().http
    }

    /// The code of a stable name.
    pub fn by_name(name: &str) -> Option<Self> {
        ERROR_TABLE.iter().find(|r| r.name == name).map(|r| r.code)
    }

    /// The code of any error of any room: the first in its chain of causes that has one.
    pub fn of(error: &(dyn StdError + 'static)) -> Option<Self> {
        let mut next = Some(error);
        while let Some(e) = next {
            if let Some(code) = of_one(e) {
                return Some(code);
            }
            next = e.source();
        }
        None
    }
}

fn of_one(e: &(dyn StdError + 'static)) -> Option<ErrorCode> {
    if let Some(e) = e.downcast_ref::<Error>() {
        return Some(e.code());
    }
    if let Some(e) = e.downcast_ref() {
        return Some(of_runner(e));
    }
    if let Some(e) = e.downcast_ref() {
        return Some(of_text(e));
    }
    if let Some(e) = e.downcast_ref() {
        return Some(of_backend(e));
    }
    if let Some(e) = e.downcast_ref() {
        return Some(of_program(e));
    }
    if let Some(e) = e.downcast_ref() {
        return Some(of_quantise(e));
    }
    if let Some(e) = e.downcast_ref() {
        return Some(of_media(e));
    }
    if let Some(e) = e.downcast_ref() {
        return Some(of_gemma(e));
    }
    #[cfg(feature = "hub")]
    if let Some(e) = e.downcast_ref() {
        return Some(of_hub(e));
    }
    e.downcast_ref::<io::Error>().map(of_io)
}

/// The code of a runner's error.
pub(crate) fn of_runner(error: &runner::Error) -> ErrorCode {
    use runner::Error;
    match error {
        Error::Engine(e) => of_backend(e),
        Error::EnginePanicked { .. } => ErrorCode::Internal,
        Error::Program(_) => ErrorCode::InvalidProgram,
        Error::Text(e) => of_text(e),
        Error::Param { .. }
        | Error::EmptyPrompt
        | Error::TokenId { .. }
        | Error::BlockLength { .. } => ErrorCode::InvalidArgument,
        Error::Prefix(_) => ErrorCode::InvalidPrefix,
        Error::PrefixIo(_) => ErrorCode::Io,
        Error::ContextLength { .. } => ErrorCode::ContextLengthExceeded,
        Error::NonFiniteLogits { .. } | Error::NonFiniteSoft { .. } => ErrorCode::NonFiniteLogits,
        Error::AllMasked => ErrorCode::AllMasked,
        Error::Busy { .. } => ErrorCode::Busy,
        Error::QueueFull { .. } => ErrorCode::QueueFull,
        Error::Cancelled => ErrorCode::Cancelled,
    }
}

/// The code of an error between messages and tokens.
pub(crate) fn of_text(error: &text::Error) -> ErrorCode {
    use text::Error;
    match error {
        Error::File(e) => of_program(e),
        Error::Program(_) => ErrorCode::InvalidProgram,
        Error::Tokenizer(_) => ErrorCode::InvalidTokenizer,
        Error::Template(_) => ErrorCode::InvalidTemplate,
        Error::NoTokenizer | Error::NoChatTemplate => ErrorCode::Unsupported,
        Error::Refused(_) | Error::Render(_) | Error::TemplateLimit { .. } => {
            ErrorCode::TemplateRefused
        }
        Error::Param { .. }
        | Error::Grammar(_)
        | Error::SchemaKeyword { .. }
        | Error::TokenId { .. }
        | Error::Modality { .. }
        | Error::MediaCount { .. }
        | Error::MediaOrder { .. }
        | Error::SoftCount { .. } => ErrorCode::InvalidArgument,
    }
}

/// The code of a backend's error.
pub(crate) fn of_backend(error: &backend::Error) -> ErrorCode {
    use backend::Error;
    match error {
        Error::Program(e) => of_program(e),
        Error::OutOfMemory(_) => ErrorCode::OutOfMemory,
        Error::UnknownBackend { .. } | Error::UnknownDevice { .. } => ErrorCode::InvalidArgument,
        Error::Unavailable { .. } | Error::Device(_) => ErrorCode::Device,
        Error::MissingOps { .. } => ErrorCode::Unsupported,
        Error::Stopped => ErrorCode::Cancelled,
        Error::Feed { .. } | Error::UnknownTicket(_) => ErrorCode::Internal,
    }
}

/// The code of a program's error.
pub(crate) fn of_program(error: &program::Error) -> ErrorCode {
    use program::Error;
    match error {
        Error::Io { source, .. } => of_io(source),
        Error::Stopped => ErrorCode::Cancelled,
        _ => ErrorCode::InvalidProgram,
    }
}

/// The code of a checkpoint's error.
pub(crate) fn of_gemma(error: &gemma::Error) -> ErrorCode {
    use gemma::Error;
    match error {
        Error::Io { source, .. } => of_io(source),
        Error::Program(e) => of_program(e),
        _ => ErrorCode::InvalidProgram,
    }
}

/// The code of a recipe's error.
pub(crate) fn of_quantise(error: &quantise::Error) -> ErrorCode {
    match error {
        quantise::Error::Program(e) => of_program(e),
        _ => ErrorCode::InvalidArgument,
    }
}

/// The code of an error with a name or a download.
#[cfg(feature = "hub")]
pub(crate) fn of_hub(error: &lapidary_hub::Error) -> ErrorCode {
    // Its names are this table's.
    ErrorCode::by_name(error.code()).unwrap_or(ErrorCode::Internal)
}

/// The code of an error with an image, a video or audio.
pub(crate) fn of_media(error: &media::Error) -> ErrorCode {
    match error {
        media::Error::Memory { .. } => ErrorCode::OutOfMemory,
        _ => ErrorCode::InvalidArgument,
    }
}

/// The code of the system's error.
pub(crate) fn of_io(error: &io::Error) -> ErrorCode {
    match error.kind() {
        io::ErrorKind::NotFound => ErrorCode::NotFound,
        io::ErrorKind::OutOfMemory => ErrorCode::OutOfMemory,
        _ => ErrorCode::Io,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn every_code_has_one_row_and_every_name_is_unique() {
        for r in ERROR_TABLE {
            assert_eq!(r.code.row(), r);
            assert_eq!(ErrorCode::by_name(r.name), Some(r.code));
            assert!([1, 2, 3, 4, 5, 130].contains(&r.exit), "{r:?}");
            assert!((400..600).contains(&r.http), "{r:?}");
            assert!(r.name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'), "{r:?}");
        }
        // The compiler makes this match complete, and so the table.
        let all = |c: ErrorCode| match c {
            ErrorCode::Internal
            | ErrorCode::NonFiniteLogits
            | ErrorCode::InvalidArgument
            | ErrorCode::ContextLengthExceeded
            | ErrorCode::TemplateRefused
            | ErrorCode::AllMasked
            | ErrorCode::InvalidProgram
            | ErrorCode::InvalidTokenizer
            | ErrorCode::InvalidTemplate
            | ErrorCode::NotFound
            | ErrorCode::Network
            | ErrorCode::Io
            | ErrorCode::OutOfMemory
            | ErrorCode::Device
            | ErrorCode::Unsupported
            | ErrorCode::Busy
            | ErrorCode::Cancelled
            | ErrorCode::QueueFull
            | ErrorCode::InvalidPrefix
            | ErrorCode::SlowReader
            | ErrorCode::Unloaded => 21,
        };
        assert_eq!(ERROR_TABLE.len(), all(ErrorCode::Internal));
    }

    #[test]
    fn exit_codes_are_those_that_are_documented() {
        let missing = || io::Error::from(io::ErrorKind::NotFound);
        let lost = program::Error::Io { path: "x.lap".into(), source: missing() };
        let opened = Error::Open { what: "x.lap".into(), source: Box::new(Error::from(lost)) };
        let cases: [(Error, u8); 9] = [
            (opened, 5),
            (program::Error::NotLap { what: String::new() }.into(), 3),
            (backend::Error::OutOfMemory(String::new()).into(), 4),
            (backend::Error::Device(String::new()).into(), 4),
            (runner::Error::Cancelled.into(), 130),
            (text::Error::Tokenizer(String::new()).into(), 3),
            (runner::Error::ContextLength { prompt: 9, max_context: 8 }.into(), 2),
            (Error::argument("no"), 2),
            (Error::Io { what: "y".into(), source: Arc::new(missing()) }, 5),
        ];
        for (error, exit) in cases {
            assert_eq!(error.code().exit(), exit, "{error:?}");
            assert_eq!(ErrorCode::of(&error), Some(error.code()));
        }
        assert_eq!(ErrorCode::of(&missing()), Some(ErrorCode::NotFound));
        assert_eq!(ErrorCode::of(&std::fmt::Error), None);
    }

    #[test]
    fn a_full_queue_is_429() {
        assert_eq!(Error::QueueFull { open: 3 }.code().http(), 429);
    }
}
