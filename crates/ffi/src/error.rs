//! The one error.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What this library returns.
pub type Result<T, E = LapidaryError> = std::result::Result<T, E>;

/// What went wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, uniffi::Error)]
pub enum LapidaryError {
    /// It went wrong.
    #[error("{reason}")]
    Failed {
        /// What kind of failure it is.
        code: ErrorCode,
        /// What happened and what to do, in English.
        reason: String,
    },
}

macro_rules! codes {
    ($($(#[$doc:meta])* $code:ident,)*) => {
        /// What kind of failure an error is. Codes are only added, never changed.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, uniffi::Enum)]
        pub enum ErrorCode {
            $($(#[$doc])* $code,)*
        }

        impl From<lapidary::ErrorCode> for ErrorCode {
            fn from(code: lapidary::ErrorCode) -> Self {
                match code {
                    $(lapidary::ErrorCode::$code => ErrorCode::$code,)*
                    // A test finds codes that are missing here.
                    _ => ErrorCode::Internal,
                }
            }
        }

        impl From<ErrorCode> for lapidary::ErrorCode {
            fn from(code: ErrorCode) -> Self {
                match code {
                    $(ErrorCode::$code => lapidary::ErrorCode::$code,)*
                }
            }
        }
    };
}

codes! {
    /// A bug of ours.
    Internal,
    /// NaN or infinity in the logits.
    NonFiniteLogits,
    /// A parameter is out of range or malformed.
    InvalidArgument,
    /// The prompt does not fit in the context.
    ContextLengthExceeded,
    /// The chat template refuses the conversation.
    TemplateRefused,
    /// No token may be sampled.
    AllMasked,
    /// The model's file, or a part of it, is invalid.
    InvalidProgram,
    /// The model's tokenizer is invalid.
    InvalidTokenizer,
    /// The model's chat template is invalid.
    InvalidTemplate,
    /// A file or a model does not exist.
    NotFound,
    /// The network failed.
    Network,
    /// A file could not be read or written.
    Io,
    /// The model does not fit in memory.
    OutOfMemory,
    /// The device or its driver failed, or can't be used.
    Device,
    /// The model, the backend or this build can't do that.
    Unsupported,
    /// The conversation is being answered, or a file is in use.
    Busy,
    /// It was cancelled.
    Cancelled,
    /// Too many requests wait already.
    QueueFull,
    /// A file of a saved conversation's memory is damaged, or of another model.
    InvalidPrefix,
    /// Nobody took the answer's events for too long.
    SlowReader,
    /// The model was unloaded.
    Unloaded,
}

/// The stable name of a code, as the HTTP API and the command write it: `context_length_exceeded`.
#[uniffi::export]
pub fn error_code_name(code: ErrorCode) -> String {
    lapidary::ErrorCode::from(code).name().to_string()
}

impl From<lapidary::Error> for LapidaryError {
    fn from(e: lapidary::Error) -> Self {
        LapidaryError::new(e.code(), e.to_string())
    }
}

impl LapidaryError {
    pub(crate) fn new(code: lapidary::ErrorCode, reason: impl Into<String>) -> Self {
        LapidaryError::Failed { code: code.into(), reason: reason.into() }
    }

    pub(crate) fn argument<S: Into<String>>(reason: S) -> Self {
        Self::new(lapidary::ErrorCode::InvalidArgument, reason)
    }

    pub(crate) fn cancelled() -> Self {
        Self::new(lapidary::ErrorCode::Cancelled, "cancelled")
    }

    fn of_panic(panic: &(dyn Any + Send)) -> Self {
        let said = panic.downcast_ref::<String>().map(String::as_str);
        let said = said.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("it panicked");
        let reason = format!("{said}; this is a bug, please report it");
        Self::new(lapidary::ErrorCode::Internal, reason)
    }
}

/// Makes an error of a panic.
pub(crate) fn guarded<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    // What a panic may have left half done is behind locks that are taken as they are, and each
    // change behind one of them is whole.
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|e| Err(LapidaryError::of_panic(&*e)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_of_the_library_is_here_by_its_name() {
        for row in lapidary::ERROR_TABLE {
            assert_eq!(error_code_name(row.code.into()), row.name);
        }
    }

    #[test]
    fn a_panic_is_an_error() {
        let LapidaryError::Failed { code, reason } =
            guarded(|| -> Result<()> { panic!("page {} is lost", 7) }).unwrap_err();
        assert_eq!(code, ErrorCode::Internal);
        assert!(reason.starts_with("page 7 is lost"), "{reason}");
    }
}
