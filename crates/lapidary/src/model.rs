//! A model that is open: its program, tokenizer and chat template. Nothing of it is on a device yet.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use lapidary_program::{Encoding, FileBytes, Metadata, Modality, Program, WeightDecl, lap};
use lapidary_text::{
    CacheUse, ChatTemplate, PromptBuilder, Tokenizer, load_template, load_tokenizer_cached,
};

use crate::cache;
use crate::error::{Error, Result};
use crate::pool;
use crate::recipe;
use crate::request::Request;

/// The name of the model that is built in.
pub const PEBBLE: &str = lapidary_pebble::NAME;

/// A model that is open. A clone is the same model.
///
/// ```no_run
/// let model = lapidary::Model::open("gemma-3-1b-it.gguf")?;
/// println!("{}: {} parameters", model.name(), model.program().n_params());
/// # Ok::<(), lapidary::Error>(())
/// ```
#[derive(Clone)]
pub struct Model(Arc<Inner>);

struct Inner {
    program: Arc<Program>,
    source: Source,
    notices: Vec<Notice>,
    tokenizer: OnceLock<Result<Option<Arc<Tokenizer>>>>,
    /// Why the tokenizer is not in the cache.
    not_kept: OnceLock<String>,
    template: OnceLock<Result<Option<Arc<ChatTemplate>>>>,
    prompts: OnceLock<PromptBuilder>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Source {
    Pebble,
    Path(PathBuf),
    /// Made here: a shape with random weights, or a program that the caller has.
    Program,
}

/// Something about how a model was opened that its user may want to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// In words.
    pub text: String,
    /// Whether it may be a surprise; else it is a detail.
    pub is_surprise: bool,
}

/// How a model is opened; [`Model::open`] takes the defaults.
///
/// ```no_run
/// let model = lapidary::Open::new().mmproj("mmproj.gguf").open("gemma-3-4b-it.gguf")?;
/// # Ok::<(), lapidary::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Open {
    no_mmap: bool,
    draft: Option<PathBuf>,
    draft_beside: bool,
    mmproj: Option<PathBuf>,
    quant: Option<String>,
    requantise: bool,
}

impl Open {
    /// Maps files, and takes the towers that lie beside a GGUF file.
    pub fn new() -> Self {
        Self::default()
    }

    /// Reads files instead of mapping them: for files that may change while they are open.
    pub fn no_mmap(mut self) -> Self {
        self.no_mmap = true;
        self
    }

    /// Adds the model's drafter: a folder, a GGUF file, or the name of one that was downloaded;
    /// `pebble` for that of the built-in model, which is built in, too.
    pub fn draft(mut self, path: impl Into<PathBuf>) -> Self {
        self.draft = Some(path.into());
        self
    }

    /// Adds the drafter that lies beside the model, if there is one and none was named.
    pub fn draft_beside(mut self) -> Self {
        self.draft_beside = true;
        self
    }

    /// Takes the vision and audio towers from this GGUF file.
    pub fn mmproj(mut self, path: impl Into<PathBuf>) -> Self {
        self.mmproj = Some(path.into());
        self
    }

    /// Quantises by a recipe, [`Model::quantised`].
    pub fn quant(mut self, recipe: impl Into<String>) -> Self {
        self.quant = Some(recipe.into());
        self
    }

    /// Quantises also what is quantised already, from its dequantised numbers.
    pub fn requantise(mut self) -> Self {
        self.requantise = true;
        self
    }

    /// Opens a Hugging Face folder, a GGUF file or a `.lap` file, a model by its name if it was
    /// downloaded, or `pebble`, which is built in. A path that exists wins over a name.
    pub fn open(&self, model: impl AsRef<Path>) -> Result<Model> {
        self.open_located(model.as_ref())
    }

    #[cfg(feature = "hub")]
    fn open_located(&self, model: &Path) -> Result<Model> {
        let located = crate::names::locate(model)?;
        let mut open = self.clone();
        open.mmproj = open.mmproj.or(located.towers);
        open.quant = open.quant.or(located.recipe);
        if let Some(draft) = &mut open.draft {
            *draft = crate::names::locate(&*draft)?.path;
        }
        open.open_at(&located.path)
    }

    #[cfg(not(feature = "hub"))]
    fn open_located(&self, model: &Path) -> Result<Model> {
        self.open_at(model)
    }

    fn open_at(&self, path: &Path) -> Result<Model> {
        let mut model =
            if path.as_os_str() == PEBBLE { self.open_pebble()? } else { self.open_path(path)? };
        if let Some(recipe) = &self.quant {
            if self.requantise {
                model = model.dequantised()?;
            }
            model = model.quantised(recipe)?;
        }
        Ok(model)
    }

    fn open_pebble(&self) -> Result<Model> {
        if self.mmproj.is_some() {
            return Err(Error::argument(format!("{PEBBLE} takes no mmproj file")));
        }
        let plain = Model::pebble()?;
        let program = match &self.draft {
            None => return Ok(plain),
            Some(draft) if draft.as_os_str() == PEBBLE => {
                let file = lapidary_pebble::drafter();
                lapidary_gemma::attach_gguf(plain.program(), "pebble's drafter", file)
            }
            Some(path) => lapidary_gemma::attach_at(plain.program(), path, !self.no_mmap),
        };
        let program = program.map_err(|e| naming(&Source::Pebble, e.into()))?;
        Ok(Model::made(program, Source::Pebble, vec![]))
    }

    fn open_path(&self, path: &Path) -> Result<Model> {
        let options = lapidary_gemma::OpenOptions {
            mmap: !self.no_mmap,
            draft: self.draft.clone(),
            draft_beside: self.draft_beside,
            mmproj: self.mmproj.clone(),
        };
        let source = Source::Path(path.to_path_buf());
        pool::ready();
        let opened = lapidary_gemma::open_noticing(path, &options);
        let opened = opened.map_err(|e| naming(&source, missing(path, e)))?;
        let notice = |n: &lapidary_gemma::Notice| Notice {
            text: n.to_string(),
            is_surprise: n.is_surprise(),
        };
        let notices = opened.notices.iter().map(notice).collect();
        Ok(Model::made(opened.program, source, notices))
    }
}

impl Model {
    /// Opens a Hugging Face folder, a GGUF file or a `.lap` file, or a model by its name if it was
    /// downloaded (`gemma4:e2b`; [`crate::pull`]). The name `pebble` is the model that is built in; a
    /// folder of that name is `./pebble`.
    pub fn open(model: impl AsRef<Path>) -> Result<Self> {
        Open::new().open(model)
    }

    /// The small model that is built in: it talks a little, sees drawings and calls tools.
    pub fn pebble() -> Result<Self> {
        let mut program = lapidary_pebble::open().map_err(|e| naming(&Source::Pebble, e.into()))?;
        lapidary_gemma::add_answer_format(&mut program)?;
        Ok(Self::made(program, Source::Pebble, vec![]))
    }

    /// A released shape with random weights, for measurements: `gemma-4-e2b`, `gemma-3-1b`, …
    pub fn synthetic(shape: &str, recipe: Option<&str>) -> Result<Self> {
        Self::synthetic_of(recipe::shape(shape, false)?, recipe)
    }

    /// The same with its drafter, if one was released.
    pub fn synthetic_drafting(shape: &str, recipe: Option<&str>) -> Result<Self> {
        Self::synthetic_of(recipe::shape(shape, true)?, recipe)
    }

    fn synthetic_of(program: Program, recipe: Option<&str>) -> Result<Self> {
        let recipe = recipe.map(|name| recipe::of(name, &program)).transpose()?;
        let program = lapidary_quantise::synthetic(&program, recipe.as_ref())?;
        Ok(Self::of_program(program))
    }

    /// A model of a program that the caller has.
    pub fn of_program(program: Program) -> Self {
        Self::made(program, Source::Program, vec![])
    }

    fn made(program: Program, source: Source, notices: Vec<Notice>) -> Self {
        Model(Arc::new(Inner {
            program: Arc::new(program),
            source,
            notices,
            tokenizer: OnceLock::new(),
            not_kept: OnceLock::new(),
            template: OnceLock::new(),
            prompts: OnceLock::new(),
        }))
    }

    /// The same model with its weights quantised by a recipe: `int8`, `int4`, `q4_0` and others
    /// that are built in, or the path of a `.toml` file. What is quantised already stays so.
    pub fn quantised(&self, recipe: &str) -> Result<Self> {
        let recipe = recipe::of(recipe, self.program())?;
        let program = lapidary_quantise::quantise(self.program(), &recipe)?;
        Ok(Self::made(program, self.0.source.clone(), self.0.notices.clone()))
    }

    /// The same model with plain numbers for its quantised weights.
    pub fn dequantised(&self) -> Result<Self> {
        let program = lapidary_quantise::dequantise(self.program())?;
        Ok(Self::made(program, self.0.source.clone(), self.0.notices.clone()))
    }

    /// The names of the recipes that are built in.
    pub fn recipes() -> &'static [&'static str] {
        lapidary_gemma::recipes::BUILT_IN
    }

    /// The program.
    pub fn program(&self) -> &Arc<Program> {
        &self.0.program
    }

    /// Facts about the model.
    pub fn metadata(&self) -> &Metadata {
        self.0.program.metadata()
    }

    /// What its makers call it.
    pub fn name(&self) -> &str {
        &self.metadata().name
    }

    /// What it takes besides text.
    pub fn modalities(&self) -> Vec<Modality> {
        self.metadata().media.modalities()
    }

    /// Whether it is the one that is built in.
    pub fn is_pebble(&self) -> bool {
        self.0.source == Source::Pebble
    }

    /// What its user may want to know of how it was opened; of its tokenizer, once that was asked
    /// for.
    pub fn notices(&self) -> Vec<Notice> {
        let mut notices = self.0.notices.clone();
        notices.extend(self.0.not_kept.get().map(|why| Notice {
            text: format!("the tokenizer is not kept: {why}"),
            is_surprise: false,
        }));
        notices
    }

    /// Weights that are quantised.
    pub fn n_quantised(&self) -> usize {
        let is_quantised = |d: &&WeightDecl| matches!(d.encoding, Encoding::Quant(_));
        self.program().weights().values().filter(is_quantised).count()
    }

    /// The tokenizer, out of the cache if it is there.
    pub fn tokenizer(&self) -> Result<&Arc<Tokenizer>> {
        match self.find_tokenizer() {
            Ok(Some(tokenizer)) => Ok(tokenizer),
            Ok(None) => Err(lapidary_text::Error::NoTokenizer.into()),
            Err(e) => Err(e.clone()),
        }
    }

    /// The chat template.
    pub fn template(&self) -> Result<&Arc<ChatTemplate>> {
        // What a template asks of a tokenizer that is broken can't be told.
        if let Err(e) = self.find_tokenizer() {
            return Err(e.clone());
        }
        match self.find_template() {
            Ok(Some(template)) => Ok(template),
            Ok(None) => Err(lapidary_text::Error::NoChatTemplate.into()),
            Err(e) => Err(e.clone()),
        }
    }

    /// Makes prompts, on any thread, from what of tokenizer and template there is and is not broken.
    pub fn prompts(&self) -> &PromptBuilder {
        self.0.prompts.get_or_init(|| {
            let tokenizer = self.find_tokenizer().as_ref().ok().cloned().flatten();
            let template = self.find_template().as_ref().ok().cloned().flatten();
            PromptBuilder::with_parts(self.metadata().clone(), tokenizer, template)
        })
    }

    /// Token ids of plain text, after the token that begins a sequence if the model wants it.
    pub fn tokenise(&self, text: &str) -> Result<Vec<u32>> {
        self.tokenizer()?;
        Ok(self.prompts().text_prompt(text)?)
    }

    /// Tokens of a request's prompt, media included. Nothing is run.
    pub fn count_tokens(&self, request: &Request) -> Result<usize> {
        Ok(request.prompt(self)?.tokens.len())
    }

    /// Checks that a `.lap` file's bytes are as they were written; `false` if it is none.
    pub fn check_bytes(&self) -> Result<bool> {
        match &self.0.source {
            Source::Pebble => lap::check_hashes_in(&lapidary_pebble::file())?,
            Source::Path(path) if is_lap(path) => lap::check_hashes(path)?,
            Source::Path(_) | Source::Program => return Ok(false),
        }
        Ok(true)
    }

    fn find_tokenizer(&self) -> &Result<Option<Arc<Tokenizer>>> {
        self.0.tokenizer.get_or_init(|| {
            match load_tokenizer_cached(self.program(), cache::root().as_deref()) {
                // What a checkpoint's own vocabulary says is read only now.
                Err(e @ lapidary_text::Error::File(_)) => Err(naming(&self.0.source, e.into())),
                Err(e) => Err(e.into()),
                Ok(None) => Ok(None),
                Ok(Some((tokenizer, kept))) => {
                    // One that can't be kept is made again; that is no reason to fail.
                    if let CacheUse::NotWritten(why) = kept {
                        self.0.not_kept.get_or_init(|| why.to_string());
                    }
                    Ok(Some(Arc::new(tokenizer)))
                }
            }
        })
    }

    fn find_template(&self) -> &Result<Option<Arc<ChatTemplate>>> {
        self.0.template.get_or_init(|| {
            let tokenizer = self.find_tokenizer().as_ref().ok().cloned().flatten();
            Ok(load_template(self.program(), tokenizer.as_deref())?.map(Arc::new))
        })
    }
}

impl fmt::Debug for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Model").field("name", &self.name()).field("source", &self.0.source).finish()
    }
}

/// Where there is no such file, what could be given instead.
fn missing(path: &Path, e: lapidary_gemma::Error) -> Error {
    match e {
        lapidary_gemma::Error::Io { path: at, source }
            if at == path && source.kind() == std::io::ErrorKind::NotFound =>
        {
            Error::NoModel { path: at, source: Arc::new(source) }
        }
        e => e.into(),
    }
}

/// An error that says which model it is about.
fn naming(source: &Source, e: Error) -> Error {
    let what = match source {
        Source::Path(path) => path.display().to_string(),
        Source::Pebble => PEBBLE.to_string(),
        Source::Program => return e,
    };
    match e.to_string().contains(&what) {
        true => e,
        false => Error::Open { what, source: Box::new(e) },
    }
}

fn is_lap(path: &Path) -> bool {
    let head = FileBytes::open(path, true);
    head.is_ok_and(|bytes| {
        let n = bytes.len().min(16);
        bytes.get(..n).is_some_and(|head| lap::sniff(head) == lap::Kind::Safetensors)
    })
}
