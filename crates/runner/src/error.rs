use std::sync::Arc;

use lapidary_program::Modality;

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
    /// A tower produced NaN or infinity.
    #[error("non-finite numbers in `{method}`: {}", where_non_finite(node))]
    NonFiniteSoft {
        /// The method.
        method: &'static str,
        /// The first node whose output is not finite, if a second run shows it.
        node: Option<String>,
    },
    /// The model does not take what was given.
    #[error("this model takes {}, not {}", takes(supported), given.name())]
    Modality {
        /// What was given.
        given: Modality,
        /// What it takes besides text.
        supported: Vec<Modality>,
    },
    /// The chat template shows more or fewer media than were given.
    #[error("{given} media were given and the chat template shows {}", shown_media(*shown))]
    MediaCount {
        /// Given.
        given: usize,
        /// Shown; `None` if it shows more than were given.
        shown: Option<usize>,
    },
    /// Media are given in another order than the chat template shows them.
    #[error("the chat template shows {} where {} was given", shown.name(), given.name())]
    MediaOrder {
        /// Given.
        given: Modality,
        /// Shown.
        shown: Modality,
    },
    /// Ids do not stand for as many soft tokens as there are.
    #[error("medium {number} has {made} soft tokens and the ids have room for {ids}")]
    SoftCount {
        /// Which, from 1.
        number: usize,
        /// Soft tokens that it has.
        made: usize,
        /// Ids that stand for soft tokens there.
        ids: usize,
    },
    /// A picture is longer than one call may be.
    #[error(
        "a picture has {block} soft tokens, which must be run in one call, and a call has at most \
         {chunk}; choose a smaller picture budget or load with a longer chunk"
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

fn takes(supported: &[Modality]) -> String {
    let names = supported.iter().map(|m| m.name());
    let all: Vec<&str> = std::iter::once("text").chain(names).collect();
    match all.split_last() {
        Some((last, [])) => format!("{last} only"),
        Some((last, rest)) => format!("{} and {last}", rest.join(", ")),
        None => String::new(),
    }
}

fn shown_media(shown: Option<usize>) -> String {
    shown.map_or("more".to_string(), |n| n.to_string())
}
