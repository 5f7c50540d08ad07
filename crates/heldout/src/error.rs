use std::path::PathBuf;

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
    /// A picture can't be read.
    #[error("{item}: can't read the picture {name}")]
    Picture {
        /// The item's id.
        item: String,
        /// The picture, as the item names it.
        name: String,
        /// The system's words.
        #[source]
        source: std::io::Error,
    },
    /// A picture is not one.
    #[error(transparent)]
    Media(#[from] lapidary_media::Error),
    /// The model can't be asked.
    #[error(transparent)]
    Runner(#[from] lapidary_runner::Error),
}

/// What this room's functions return.
pub type Result<T> = std::result::Result<T, Error>;
