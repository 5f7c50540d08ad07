use std::sync::Arc;

/// What this room returns.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Everything that can go wrong between a request and its answer.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// The engine failed.
    #[error(transparent)]
    Engine(#[from] Arc<lapidary_backend::Error>),
    /// Messages can't be made tokens.
    #[error(transparent)]
    Text(#[from] lapidary_text::Error),
    /// The engine panicked; what it was writing was forgotten.
    #[error("the engine failed while running `{method}`: {what}; this is a bug, please report it")]
    EnginePanicked {
        /// The method that ran.
        method: &'static str,
        /// The panic's message.
        what: String,
    },
    /// The program lacks what the runner needs.
    #[error("invalid program: {0}")]
    Program(String),
    /// A parameter of the request is out of range.
    #[error("invalid `{param}`: {what}")]
    Param {
        /// The parameter, by its name in the API.
        param: &'static str,
        /// What is wrong, and what would be right.
        what: String,
    },
    /// The prompt holds no token.
    #[error("the prompt is empty; give at least one token")]
    EmptyPrompt,
    /// The prompt leaves no room for an answer.
    #[error(
        "the prompt has {prompt} tokens and the context holds {max_context}; shorten the prompt \
         or load with a longer context (--ctx)"
    )]
    ContextLength {
        /// Tokens of the prompt.
        prompt: usize,
        /// Positions of one sequence.
        max_context: usize,
    },
    /// A token id is outside the vocabulary.
    #[error("token id {id} is outside the vocabulary of {vocab_size}")]
    TokenId {
        /// The id.
        id: u32,
        /// Rows of the output.
        vocab_size: u32,
    },
    /// The model produced NaN or infinity.
    #[error("non-finite logits: {}", where_non_finite(node))]
    NonFiniteLogits {
        /// The first node whose output is not finite, if a second run shows it.
        node: Option<String>,
    },
    /// A tower produced NaN or infinity.
    #[error("non-finite numbers in `{method}`: {}", where_non_finite(node))]
    NonFiniteSoft {
        /// The method.
        method: &'static str,
        /// The first node whose output is not finite, if a second run shows it.
        node: Option<String>,
    },
    /// An image is longer than one call may be.
    #[error(
        "an image has {block} soft tokens, which must be run in one call, and a call has at most \
         {chunk}; choose a smaller image budget or load with a longer chunk"
    )]
    BlockLength {
        /// Its soft tokens.
        block: usize,
        /// The most tokens of one call.
        chunk: usize,
    },
    /// Every token is suppressed.
    #[error("no token may be sampled: all are suppressed")]
    AllMasked,
    /// The runner is in use by other generations.
    #[error("{active} generations are under way; finish or cancel them first")]
    Busy {
        /// How many.
        active: usize,
    },
    /// Too many requests wait already.
    #[error("{waiting} requests are waiting, which is the limit; try again later")]
    QueueFull {
        /// How many.
        waiting: usize,
    },
    /// The caller cancelled.
    #[error("cancelled")]
    Cancelled,
    /// Saved pages can't be restored.
    #[error("invalid prefix file: {0}")]
    Prefix(String),
    /// Saved pages can't be read or written.
    #[error("can't read or write a prefix file: {0}")]
    PrefixIo(String),
}

impl From<lapidary_backend::Error> for Error {
    fn from(e: lapidary_backend::Error) -> Self {
        Error::Engine(Arc::new(e))
    }
}

impl Error {
    pub(crate) fn param(param: &'static str, what: impl Into<String>) -> Self {
        Error::Param { param, what: what.into() }
    }
}

fn where_non_finite(node: &Option<String>) -> String {
    match node {
        Some(node) => format!("`{node}` is the first op whose output is not finite"),
        None => "a second run did not show where they arise".to_string(),
    }
}
