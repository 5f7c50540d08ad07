use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::code::{self, ErrorCode};

/// What this library returns.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Everything that can go wrong, whichever room it comes from.
///
/// [`Error::code`] says in a stable word what kind of failure it is.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The model can't be opened.
    #[error("can't open {what}: {source}")]
    Open {
        /// Its name or path.
        what: String,
        /// Why.
        #[source]
        source: Box<Error>,
    },
    /// There is no such model.
    #[error(
        "{}: {source}; give a GGUF file, a .lap file or a Hugging Face folder, or `pebble`, which is \
         built in",
        path.display()
    )]
    NoModel {
        /// What was given.
        path: PathBuf,
        /// The system's words.
        source: Arc<io::Error>,
    },
    /// A file can't be used.
    #[error("{what}: {source}")]
    Io {
        /// Which, and what for.
        what: String,
        /// The system's words.
        #[source]
        source: Arc<io::Error>,
    },
    /// A file that is shown or played can't be used.
    #[error("{what}: {source}")]
    File {
        /// Its path.
        what: String,
        /// Why.
        #[source]
        source: Box<Error>,
    },
    /// A message of a conversation makes no sense where it stands.
    #[error("message {index}: {what}")]
    Message {
        /// Which, from 0.
        index: usize,
        /// What is wrong, and what would be right.
        what: String,
    },
    /// The caller asks for something that can't be.
    #[error("{0}")]
    Argument(String),
    /// A program or its file is at fault.
    #[error(transparent)]
    Program(Arc<lapidary_program::Error>),
    /// A checkpoint is at fault.
    #[error(transparent)]
    Checkpoint(Arc<lapidary_gemma::Error>),
    /// A recipe is at fault.
    #[error(transparent)]
    Recipe(Arc<lapidary_quantise::Error>),
    /// An image, a video or audio is at fault.
    #[error(transparent)]
    Media(Arc<lapidary_media::Error>),
    /// Messages can't be made tokens.
    #[error(transparent)]
    Text(#[from] lapidary_text::Error),
    /// A name means no model, or its files can't be had.
    #[cfg(feature = "hub")]
    #[error(transparent)]
    Hub(Arc<lapidary_hub::Error>),
    /// A model that this machine could not run was not downloaded.
    #[cfg(feature = "hub")]
    #[error("{name} does not fit this machine, so it was not downloaded: {why}")]
    TooLarge {
        /// Its name.
        name: String,
        /// What is too small.
        why: String,
    },
    /// A backend or a device is at fault.
    #[error(transparent)]
    Backend(Arc<lapidary_backend::Error>),
    /// The runner refuses the request, or failed on it.
    #[error(transparent)]
    Runner(#[from] lapidary_runner::Error),
    /// As many requests as may be are waiting or being answered.
    #[error("{open} requests are waiting or being answered, which is the limit; try again later")]
    QueueFull {
        /// How many.
        open: usize,
    },
    /// The conversation is being answered.
    #[error(
        "the last answer of this conversation is still being read; read it to its end, or drop it"
    )]
    Answering,
    /// Nobody took events for too long, so the answer was cancelled.
    #[error("nobody read the answer for {}, so it was cancelled", seconds(*.waited))]
    SlowReader {
        /// How long the engine waited.
        waited: Duration,
    },
    /// The engine was unloaded.
    #[error("the model was unloaded; load it again")]
    Unloaded,
    /// The engine's thread is gone.
    #[error("the engine stopped: {what}; this is a bug, please report it")]
    Stopped {
        /// What it said last.
        what: String,
    },
}

impl Error {
    /// What kind of failure this is, in a stable word.
    pub fn code(&self) -> ErrorCode {
        match self {
            Error::Open { source, .. } | Error::File { source, .. } => source.code(),
            Error::NoModel { source, .. } | Error::Io { source, .. } => code::of_io(source),
            Error::Argument(_) | Error::Message { .. } => ErrorCode::InvalidArgument,
            Error::Program(e) => code::of_program(e),
            Error::Checkpoint(e) => code::of_gemma(e),
            Error::Recipe(e) => code::of_quantise(e),
            Error::Media(e) => code::of_media(e),
            Error::Text(e) => code::of_text(e),
            #[cfg(feature = "hub")]
            Error::Hub(e) => code::of_hub(e),
            #[cfg(feature = "hub")]
            Error::TooLarge { .. } => ErrorCode::OutOfMemory,
            Error::Backend(e) => code::of_backend(e),
            Error::Runner(e) => code::of_runner(e),
            Error::QueueFull { .. } => ErrorCode::QueueFull,
            Error::Answering => ErrorCode::Busy,
            Error::SlowReader { .. } => ErrorCode::SlowReader,
            Error::Unloaded => ErrorCode::Unloaded,
            Error::Stopped { .. } => ErrorCode::Internal,
        }
    }

    pub(crate) fn argument(what: impl Into<String>) -> Self {
        Error::Argument(what.into())
    }

    pub(crate) fn io(what: impl Into<String>, source: io::Error) -> Self {
        Error::Io { what: what.into(), source: Arc::new(source) }
    }
}

macro_rules! shared {
    ($($variant:ident: $error:ty),* $(,)?) => {$(
        impl From<$error> for Error {
            fn from(e: $error) -> Self {
                Error::$variant(Arc::new(e))
            }
        }
    )*};
}

shared! {
    Program: lapidary_program::Error,
    Checkpoint: lapidary_gemma::Error,
    Recipe: lapidary_quantise::Error,
    Media: lapidary_media::Error,
    Backend: lapidary_backend::Error,
}

fn seconds(waited: Duration) -> String {
    format!("{:.1} s", waited.as_secs_f64())
}
