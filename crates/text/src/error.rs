use std::sync::Arc;

use lapidary_program::{Media, Modality};

/// What this room returns.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Everything that can go wrong between messages and tokens.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// A part of the program's file can't be read.
    #[error(transparent)]
    File(#[from] Arc<lapidary_program::Error>),
    /// The program lacks what is needed.
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
    /// A grammar does not compile, or takes too much to follow.
    #[error("invalid grammar: {0}")]
    Grammar(String),
    /// A JSON schema asks for what no grammar can hold an answer to.
    #[error(
        "the JSON schema's `{keyword}` at {at} is not supported here; leave it out or say it in \
         another way"
    )]
    SchemaKeyword {
        /// The keyword.
        keyword: String,
        /// Where, as a JSON pointer.
        at: String,
    },
    /// A token id is outside the vocabulary.
    #[error("token id {id} is outside the vocabulary of {vocab_size}")]
    TokenId {
        /// The id.
        id: u32,
        /// Rows of the output.
        vocab_size: u32,
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
}

impl From<lapidary_program::Error> for Error {
    fn from(e: lapidary_program::Error) -> Self {
        Error::File(Arc::new(e))
    }
}

impl Error {
    /// The refusal of what a program does not take.
    pub fn modality(media: &Media, given: Modality) -> Self {
        Error::Modality { given, supported: media.modalities() }
    }

    pub(crate) fn param(param: &'static str, what: impl Into<String>) -> Self {
        Error::Param { param, what: what.into() }
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
