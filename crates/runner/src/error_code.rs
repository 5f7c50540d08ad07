//! One table: stable code ↔ group ↔ CLI exit code ↔ HTTP status and OpenAI words.
//!
//! Every surface (command line, server, bindings) reads this table and adds nothing to it.

use lapidary_backend as backend;
use lapidary_program as program;

use crate::error::Error;

/// A stable name for each kind of failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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
    /// All slots are in use.
    Busy,
    /// The caller cancelled.
    Cancelled,
}

/// What kind of failure a code is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

    /// The code behind a stable name.
    pub fn by_name(name: &str) -> Option<Self> {
        ERROR_TABLE.iter().find(|r| r.name == name).map(|r| r.code)
    }

    /// The code of an error of this room.
    pub fn of(error: &Error) -> Self {
        match error {
            Error::Engine(e) => Self::of_backend(e),
            Error::EnginePanicked { .. } => ErrorCode::Internal,
            Error::Program(_) => ErrorCode::InvalidProgram,
            Error::Tokenizer(_) => ErrorCode::InvalidTokenizer,
            Error::Template(_) => ErrorCode::InvalidTemplate,
            Error::NoTokenizer | Error::NoChatTemplate => ErrorCode::Unsupported,
            Error::Refused(_) | Error::Render(_) | Error::TemplateLimit { .. } => {
                ErrorCode::TemplateRefused
            }
            Error::Param { .. }
            | Error::EmptyPrompt
            | Error::TokenId { .. }
            | Error::Modality { .. }
            | Error::MediaCount { .. }
            | Error::MediaOrder { .. }
            | Error::SoftCount { .. }
            | Error::BlockLength { .. } => ErrorCode::InvalidArgument,
            Error::ContextLength { .. } => ErrorCode::ContextLengthExceeded,
            Error::NonFiniteLogits { .. } | Error::NonFiniteSoft { .. } => {
                ErrorCode::NonFiniteLogits
            }
            Error::AllMasked => ErrorCode::AllMasked,
            Error::Busy { .. } => ErrorCode::Busy,
            Error::Cancelled => ErrorCode::Cancelled,
        }
    }

    /// The code of a backend's error.
    pub fn of_backend(error: &backend::Error) -> Self {
        match error {
            backend::Error::Program(e) => Self::of_program(e),
            backend::Error::OutOfMemory(_) => ErrorCode::OutOfMemory,
            backend::Error::UnknownBackend { .. } => ErrorCode::InvalidArgument,
            backend::Error::Unavailable { .. } | backend::Error::Device(_) => ErrorCode::Device,
            backend::Error::MissingOps { .. } => ErrorCode::Unsupported,
            backend::Error::Feed { .. } => ErrorCode::Internal,
        }
    }

    /// The code of a program's error.
    pub fn of_program(error: &program::Error) -> Self {
        match error {
            program::Error::Io { source, .. } if source.kind() == std::io::ErrorKind::NotFound => {
                ErrorCode::NotFound
            }
            program::Error::Io { source, .. }
                if source.kind() == std::io::ErrorKind::OutOfMemory =>
            {
                ErrorCode::OutOfMemory
            }
            program::Error::Io { .. } => ErrorCode::Io,
            program::Error::Stopped => ErrorCode::Cancelled,
            _ => ErrorCode::InvalidProgram,
        }
    }
}

#[cfg(test)]
mod tests {
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
            | ErrorCode::Cancelled => 17,
        };
        assert_eq!(ERROR_TABLE.len(), all(ErrorCode::Internal));
    }

    #[test]
    fn exit_codes_are_those_that_are_documented() {
        let missing = program::Error::Io {
            path: "x.lap".into(),
            source: std::io::Error::from(std::io::ErrorKind::NotFound),
        };
        let cases = [
            (ErrorCode::of_program(&missing), 5),
            (ErrorCode::of_program(&program::Error::NotLap { what: String::new() }), 3),
            (ErrorCode::of_backend(&backend::Error::OutOfMemory(String::new())), 4),
            (ErrorCode::of_backend(&backend::Error::Device(String::new())), 4),
            (ErrorCode::of(&Error::Cancelled), 130),
            (ErrorCode::of(&Error::Tokenizer(String::new())), 3),
            (ErrorCode::of(&Error::ContextLength { prompt: 9, max_context: 8 }), 2),
            (ErrorCode::of(&Error::NonFiniteLogits { node: None }), 1),
        ];
        for (code, exit) in cases {
            assert_eq!(code.exit(), exit, "{code:?}");
        }
    }
}
