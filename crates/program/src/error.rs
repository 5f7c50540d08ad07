use std::path::PathBuf;

/// What this room returns.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Everything that can be wrong with a program or its file.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file could not be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The caller told a long piece of work to stop.
    #[error("stopped")]
    Stopped,
    /// The bytes are not a `.lap` file.
    #[error("not a .lap file: {what}")]
    NotLap {
        /// What it looks like instead, and what to do.
        what: String,
    },
    /// The container is damaged.
    #[error("invalid program at byte {offset}: {what}")]
    Container {
        /// Where in the file.
        offset: u64,
        /// What is wrong there.
        what: String,
    },
    /// The file was made by an incompatible version.
    #[error(
        "made for .lap version {found}; this build reads versions {oldest} to {newest}; {remedy}"
    )]
    Version {
        /// The version that the file carries.
        found: String,
        /// The oldest that is read.
        oldest: u32,
        /// The newest that is read.
        newest: u32,
        /// What to do.
        remedy: &'static str,
    },
    /// `program.json` does not parse.
    #[error("invalid program description: {0}")]
    Json(#[from] serde_json::Error),
    /// A weight is declared or stored wrongly.
    #[error("invalid weight `{weight}`: {what}")]
    Weight {
        /// The weight's name.
        weight: String,
        /// What is wrong with it.
        what: String,
    },
    /// An op is wrong where it stands.
    #[error("invalid op `{op}` in method `{method}`: {what}")]
    Op {
        /// The method.
        method: String,
        /// The node's name.
        op: String,
        /// What is wrong with it.
        what: String,
    },
    /// A blob that is made when it is wanted can't be made.
    #[error(transparent)]
    Blob(crate::blobs::BlobError),
    /// A method, a state or the metadata is wrong.
    #[error("invalid program: {0}")]
    Program(String),
}

impl Error {
    pub(crate) fn io(path: &std::path::Path, source: std::io::Error) -> Self {
        Error::Io { path: path.to_path_buf(), source }
    }

    pub(crate) fn weight(weight: &str, what: impl Into<String>) -> Self {
        Error::Weight { weight: weight.to_string(), what: what.into() }
    }
}
