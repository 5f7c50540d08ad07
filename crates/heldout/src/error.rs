use std::path::PathBuf;

use lapidary::ErrorCode;

/// What can go wrong with held-out sets.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A set can't be read.
    #[error("can't read {path}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's words.
        #[source]
        source: std::io::Error,
    },
    /// A line of a set is not an item.
    #[error("{set}, line {line}: {source}")]
    Line {
        /// The set.
        set: String,
        /// Counted from 1.
        line: usize,
        /// What is wrong.
        #[source]
        source: serde_json::Error,
    },
    /// An image can't be read.
    #[error("{item}: can't read the image {name}")]
    Image {
        /// The item's id.
        item: String,
        /// The image, as the item names it.
        name: String,
        /// The system's words.
        #[source]
        source: std::io::Error,
    },
    /// The model can't be asked.
    #[error(transparent)]
    Engine(#[from] lapidary::Error),
}

/// What this room's functions return.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// Its code in the library's table, if nothing that caused it says more.
    pub fn code(&self) -> Option<ErrorCode> {
        match self {
            Error::Line { .. } => Some(ErrorCode::InvalidArgument),
            Error::Engine(e) => Some(e.code()),
            Error::Io { .. } | Error::Image { .. } => None,
        }
    }
}
