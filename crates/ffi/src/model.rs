//! Models that are open.

use std::path::PathBuf;
use std::sync::Arc;

use crate::error::Result;
use crate::hub::HubOptions;
use crate::load::{LoadOptions, Loading, Plan};
use crate::message::{Message, messages};
use crate::options::{AnswerOptions, Wishes};
use crate::work::aside;

/// A model that is open. Nothing of it is on a device yet.
#[derive(Debug, uniffi::Object)]
pub struct Model(pub(crate) lapidary::Model);

/// How a model is opened.
#[derive(Clone, Debug, Default, PartialEq, uniffi::Record)]
pub struct OpenOptions {
    /// A GGUF file with the vision and audio towers; else one that lies beside the model.
    #[uniffi(default = None)]
    pub mmproj: Option<String>,
    /// The model's drafter, a folder or a GGUF file.
    #[uniffi(default = None)]
    pub draft: Option<String>,
    /// Adds the drafter that lies beside the model, if there is one.
    #[uniffi(default = false)]
    pub draft_beside: bool,
    /// Quantises by this recipe: `int8`, `int4`, or the path of a `.toml` file.
    #[uniffi(default = None)]
    pub quant: Option<String>,
    /// Quantises also what is quantised already.
    #[uniffi(default = false)]
    pub requantise: bool,
    /// Reads files instead of mapping them.
    #[uniffi(default = false)]
    pub no_mmap: bool,
    /// Where models by name are kept, if not where the environment says.
    #[uniffi(default = None)]
    pub hub: Option<HubOptions>,
}

/// Facts about a model.
#[derive(Clone, Debug, PartialEq, uniffi::Record)]
pub struct ModelInfo {
    /// What its makers call it.
    pub name: String,
    /// What it takes besides text.
    pub modalities: Vec<Modality>,
    /// Positions that it was made for: the most that prompt and answer may fill.
    pub context: u32,
    /// Numbers in all of its weights.
    pub parameters: u64,
    /// Tokens that it knows.
    pub vocab_size: u32,
    /// Whether it has a drafter, which guesses the next tokens.
    pub has_drafter: bool,
    /// Whether it can think before it answers.
    pub can_think: bool,
    /// Whether it can call tools.
    pub can_call_tools: bool,
    /// Weights that are quantised.
    pub quantised_weights: u32,
    /// What its user may want to know of how it was opened.
    pub notices: Vec<String>,
}

/// Something besides text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, uniffi::Enum)]
pub enum Modality {
    /// Images.
    Image,
    /// Audio.
    Audio,
    /// Videos.
    Video,
}

#[uniffi::export]
impl Model {
    /// Opens a Hugging Face folder, a GGUF file or a `.lap` file, a model by its name if it was
    /// downloaded, or `pebble`, which is built in. A path that exists wins over a name.
    #[uniffi::constructor(default(options = None))]
    pub async fn open(source: String, options: Option<OpenOptions>) -> Result<Arc<Self>> {
        aside(move || {
            let mut options = options.unwrap_or_default();
            let mut path = PathBuf::from(&source);
            let mut towers = options.mmproj.map(PathBuf::from);
            if let Some(hub) = options.hub
                && let Some(found) = hub.locate(&source)?
            {
                path = found.model;
                towers = towers.or(found.towers);
                options.quant = options.quant.or(found.recipe);
            }
            let mut open = lapidary::Open::new();
            if let Some(path) = towers {
                open = open.mmproj(path);
            }
            if let Some(path) = options.draft {
                open = open.draft(path);
            }
            if options.draft_beside {
                open = open.draft_beside();
            }
            if let Some(recipe) = options.quant {
                open = open.quant(recipe);
            }
            if options.requantise {
                open = open.requantise();
            }
            if options.no_mmap {
                open = open.no_mmap();
            }
            Ok(Arc::new(Model(open.open(path)?)))
        })
        .await
    }

    /// Opens the small model that is built in.
    #[uniffi::constructor]
    pub async fn pebble() -> Result<Arc<Self>> {
        aside(|| Ok(Arc::new(Model(lapidary::Model::pebble()?)))).await
    }

    /// Facts about it.
    pub fn info(&self) -> ModelInfo {
        ModelInfo::of(&self.0)
    }

    /// What loading would take. Nothing is taken.
    #[uniffi::method(default(options = None))]
    pub async fn plan(&self, options: Option<LoadOptions>) -> Result<Plan> {
        let model = self.0.clone();
        aside(move || Ok(Plan::of(&options.unwrap_or_default().load()?.plan(&model)?))).await
    }

    /// Begins to put it on a device.
    #[uniffi::method(default(options = None))]
    pub fn load(&self, options: Option<LoadOptions>) -> Arc<Loading> {
        Arc::new(Loading::start(self.0.clone(), options.unwrap_or_default()))
    }

    /// Tokens of a conversation's prompt, media included. Nothing is run.
    #[uniffi::method(default(options = None))]
    pub async fn count_tokens(
        &self,
        messages: Vec<Message>,
        options: Option<AnswerOptions>,
    ) -> Result<u32> {
        let model = self.0.clone();
        aside(move || {
            let wishes = Wishes::of(options.unwrap_or_default())?;
            let request = lapidary::Request::chat(self::messages(messages, &wishes)?);
            Ok(crate::count(model.count_tokens(&wishes.refine(request))?))
        })
        .await
    }

    /// Token ids of plain text.
    pub async fn tokenise(&self, text: String) -> Result<Vec<u32>> {
        let model = self.0.clone();
        aside(move || Ok(model.tokenise(&text)?)).await
    }
}

impl ModelInfo {
    pub(crate) fn of(model: &lapidary::Model) -> Self {
        let metadata = model.metadata();
        let modality = |m: lapidary::Modality| match m {
            lapidary::Modality::Image => Modality::Image,
            lapidary::Modality::Audio => Modality::Audio,
            lapidary::Modality::Video => Modality::Video,
        };
        let format = metadata.answer.as_ref();
        ModelInfo {
            name: model.name().to_string(),
            modalities: model.modalities().into_iter().map(modality).collect(),
            context: metadata.max_context_len,
            parameters: model.program().n_params(),
            vocab_size: metadata.vocab_size,
            has_drafter: model.has_drafter(),
            can_think: format.is_some_and(|f| f.thinking.is_some()),
            can_call_tools: format.is_some_and(|f| f.calls.is_some()),
            quantised_weights: crate::count(model.n_quantised()),
            notices: model.notices().into_iter().map(|notice| notice.text).collect(),
        }
    }
}
