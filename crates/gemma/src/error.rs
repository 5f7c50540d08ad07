use std::path::PathBuf;

/// What this room returns.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a checkpoint can't be imported.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file could not be read.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// There is nothing at the path that could be a model.
    #[error("{}: {what}", path.display())]
    NotAModel {
        /// The path.
        path: PathBuf,
        /// What it is instead, and what to do.
        what: String,
    },
    /// The program that was built or opened is invalid.
    #[error(transparent)]
    Program(#[from] lapidary_program::Error),
    /// A model of another family.
    #[error("`{architecture}` models are not run here; {advice}")]
    Unsupported {
        /// The checkpoint's own word.
        architecture: String,
        /// What is run, or what to do.
        advice: String,
    },
    /// A value in the configuration is missing, of the wrong type, or impossible.
    #[error("config: {0}")]
    Config(String),
    /// A JSON file of the checkpoint does not parse.
    #[error("{file}: {source}")]
    Json {
        /// The file's name.
        file: String,
        /// Where it breaks.
        source: serde_json::Error,
    },
    /// A tensor is missing, of the wrong shape, or of a type that is not read.
    #[error("tensor `{tensor}`: {what}")]
    Tensor {
        /// The tensor's name.
        tensor: String,
        /// What is wrong with it.
        what: String,
    },
    /// A safetensors file is damaged.
    #[error("{}: damaged safetensors file: {what}", path.display())]
    Safetensors {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// A GGUF file is damaged.
    #[error("damaged GGUF at byte {offset}: {what}")]
    Gguf {
        /// Where in the file.
        offset: u64,
        /// What is wrong there.
        what: String,
    },
}

impl Error {
    pub(crate) fn config(what: impl Into<String>) -> Self {
        Error::Config(what.into())
    }

    pub(crate) fn tensor(tensor: &str, what: impl Into<String>) -> Self {
        Error::Tensor { tensor: tensor.to_string(), what: what.into() }
    }
}
