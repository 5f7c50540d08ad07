use std::sync::Arc;

/// What this room returns.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Everything that can go wrong between a request and its answer.
///
/// [`ErrorCode::of`](crate::ErrorCode::of) maps each to its stable code, CLI exit code and HTTP
/// status.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// The engine failed.
    #[error(transparent)]
    Engine(#[from] Arc<lapidary_backend::Error>),
    /// The engine panicked; its slots were emptied.
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
    /// The program's tokenizer can't be used.
    #[error("invalid tokenizer: {0}")]
    Tokenizer(String),
    /// The program has no tokenizer.
    #[error("this program has no tokenizer; give token ids, or export it again with its tokenizer")]
    NoTokenizer,
    /// The program has no chat template.
    #[error("this program has no chat template; give plain text, or export it again with one")]
    NoChatTemplate,
    /// The chat template does not compile.
    #[error("invalid chat template: {0}")]
    Template(#[source] Arc<minijinja::Error>),
    /// The chat template refused the conversation.
    #[error("the chat template refuses this conversation: {0}")]
    Refused(String),
    /// The chat template failed on the conversation.
    #[error("the chat template can't render this conversation: {0}")]
    Render(#[source] Arc<minijinja::Error>),
    /// The chat template ran too long, too deep or made too much text.
    #[error("the chat template exceeds its limit on {what}")]
    TemplateLimit {
        /// Which limit.
        what: &'static str,
    },
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
        /// Positions of one slot.
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
    /// Every token is suppressed.
    #[error("no token may be sampled: all are suppressed")]
    AllMasked,
    /// The runner is in use by other generations.
    #[error("{active} generations are under way; finish or cancel them first")]
    Busy {
        /// How many.
        active: usize,
    },
    /// The caller cancelled.
    #[error("cancelled")]
    Cancelled,
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
