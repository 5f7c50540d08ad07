//! From flags to a loaded engine: open, choose, plan, refuse or load.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Error, Result};
use lapidary_backend::{Backend, Device, Engine, KvType, LoadOptions, Precision, Registry, fit};
use lapidary_gemma::{Notice, OpenOptions};
use lapidary_program::{ImageSize, Program, method};
use lapidary_runner::{CacheUse, Medium, SoftInput, Tokenizer, load_tokenizer_cached};

use crate::args::{DeviceArgs, EngineArgs, ModelArgs};
use crate::cache;
use crate::exit::Usage;
use crate::named::Named;
use crate::progress;
use crate::tell::{debug, tell};

/// What a context is without `--ctx`, where the model has more.
const DEFAULT_CONTEXT: u32 = 8192;

/// The context that the user asks for, or else the model's own, if it is not too long.
pub fn context(asked: Option<u32>, program: &Program, say: bool) -> u32 {
    let own = program.metadata().max_context_len;
    let context = asked.unwrap_or_else(|| own.min(DEFAULT_CONTEXT));
    if asked.is_none() && own > DEFAULT_CONTEXT && say {
        tell(format_args!("note: context {context} of the model's {own}; --ctx takes more"));
    }
    context
}

/// An engine and how long it took.
pub struct Loaded {
    pub engine: Box<dyn Engine>,
    pub took: Duration,
}

/// What the engine is wanted for.
pub struct Wanted {
    /// Positions of one slot.
    pub context: u32,
    /// Tokens of one call; `None` for what program and backend agree on.
    pub chunk: Option<u32>,
    /// Whether to say on standard error which backend was picked.
    pub say: bool,
    /// How activations meet quantised weights, unless the user says.
    pub precision: Precision,
    /// What pictures and sounds need.
    pub media: MediaNeed,
}

/// What pictures and sounds need of an engine.
#[derive(Clone, Copy, Debug, Default)]
pub struct MediaNeed {
    /// Patches of the largest picture.
    pub patches: usize,
    /// Frames of the longest sound.
    pub frames: usize,
    /// Soft tokens that must go into one call.
    pub block: usize,
}

impl MediaNeed {
    /// The towers, with little room.
    pub fn towers() -> Self {
        MediaNeed { patches: 1, frames: 1, block: 0 }
    }

    /// What pictures and sounds of usual size need that are not known yet.
    pub fn any(program: &Program) -> Self {
        let image = program.metadata().media.image.as_ref();
        let block = image.map_or(0, |spec| match spec.size {
            ImageSize::Fixed { .. } => spec.max_soft(),
            ImageSize::Budget { default, .. } => default,
        });
        MediaNeed { block: block as usize, ..Self::towers() }
    }

    /// What these need.
    pub fn of(media: &[Medium], program: &Program) -> Self {
        Self::of_inputs(media.iter().flat_map(Medium::inputs).map(AsRef::as_ref), program)
    }

    /// What these need.
    pub fn of_inputs<'a>(inputs: impl Iterator<Item = &'a SoftInput>, program: &Program) -> Self {
        let mut need = MediaNeed::default();
        let known = &program.metadata().media;
        for input in inputs {
            let rows = |channels: u64| input.rows.1.len() / (channels.max(1) as usize);
            match (input.method, &known.image, &known.audio) {
                (method::VISION, Some(spec), _) => {
                    need.patches = need.patches.max(rows(spec.channels()));
                    need.block = need.block.max(input.n_soft);
                }
                (method::AUDIO, _, Some(spec)) => {
                    need.frames = need.frames.max(rows(spec.channels()));
                }
                _ => {}
            }
        }
        need
    }

    /// The methods that will be called: towers only where something is shown or played.
    fn methods(&self, program: &Program) -> Vec<String> {
        let wanted = |name: &&String| match name.as_str() {
            method::VISION => self.patches > 0,
            method::AUDIO => self.frames > 0,
            _ => true,
        };
        program.methods().keys().filter(wanted).cloned().collect()
    }
}

/// Opens a model of any kind, and says which if none was named.
pub fn open(args: &ModelArgs) -> Result<Program> {
    if args.model.is_none() {
        tell(format_args!(
            "note: no model was named; this is {}, a toy that is built in",
            pebble()
        ));
    }
    open_quietly(args)
}

/// What the built-in model is called.
fn pebble() -> &'static str {
    lapidary_pebble::NAME
}

/// Opens a model of any kind.
pub fn open_quietly(args: &ModelArgs) -> Result<Program> {
    let path = match args.named() {
        Named::Path(path) => path,
        Named::Pebble if args.draft.is_some() || args.mmproj.is_some() => {
            let what = format!("{} takes neither a drafter nor an mmproj file", pebble());
            return Err(Usage(what).into());
        }
        Named::Pebble => return lapidary_pebble::open().map_err(|e| naming(args, e)),
    };
    let options =
        OpenOptions { mmap: !args.no_mmap, draft: args.draft.clone(), mmproj: args.mmproj.clone() };
    let opened = lapidary_gemma::open_noticing(path, &options);
    let opened = opened.map_err(|e| naming(args, e))?;
    for notice in &opened.notices {
        match notice {
            Notice::SeveralMmproj(_) => tell(format_args!("note: {notice}")),
            Notice::MmprojTaken(_) | Notice::MmprojSkipped { .. } => {
                debug(format_args!("{notice}"));
            }
        }
    }
    Ok(opened.program)
}

/// The program's tokenizer, out of the cache if it is there.
pub fn tokenizer(program: &Program, args: &ModelArgs) -> Result<Tokenizer> {
    let root = cache::root();
    match load_tokenizer_cached(program, root.as_deref()) {
        // What a checkpoint's own vocabulary says is read only now.
        Err(e @ lapidary_runner::Error::Engine(_)) => Err(naming(args, e)),
        Err(e) => Err(e.into()),
        Ok(None) => Err(lapidary_runner::Error::NoTokenizer.into()),
        Ok(Some((tokenizer, cache))) => {
            if let CacheUse::NotWritten(e) = cache {
                debug(format_args!("the tokenizer is not kept: {e}"));
            }
            Ok(tokenizer)
        }
    }
}

/// An error that says which model it is about.
fn naming(args: &ModelArgs, e: impl std::error::Error + Send + Sync + 'static) -> Error {
    let path = match args.named() {
        Named::Path(path) => path.display().to_string(),
        Named::Pebble => pebble().to_string(),
    };
    let named = e.to_string().contains(&path);
    let e = Error::new(e);
    if named { e } else { e.context(format!("can't open {path}")) }
}

/// Loads a program where the flags say.
pub fn load(program: Program, args: &DeviceArgs, wanted: &Wanted) -> Result<Loaded> {
    let start = Instant::now();
    let registry = lapidary_backends::all();
    let (backend, device) = choose(&registry, args, wanted.say)?;
    load_on((backend, &device), Arc::new(program), &args.engine, wanted, start)
}

/// Loads a program on a backend's first device.
pub fn load_with(
    backend: &dyn Backend,
    program: &Arc<Program>,
    args: &EngineArgs,
    wanted: &Wanted,
) -> Result<Loaded> {
    let (name, reason) = (backend.name(), "no device was found".to_string());
    let none = lapidary_backend::Error::Unavailable { backend: name, reason };
    let device = backend.probe()?.into_iter().next().ok_or(none)?;
    load_on((backend, &device), program.clone(), args, wanted, Instant::now())
}

/// The backend of a name; with `auto`, all but those that `auto` passes over. One that has no
/// device is among them, so that whoever loads it can say why it is left out.
pub fn named_or_all<'a>(registry: &'a Registry, name: &str) -> Result<Vec<&'a dyn Backend>> {
    if name != "auto" {
        return Ok(vec![registry.named(name)?.0]);
    }
    let is_worth_it = |backend: &&dyn Backend| {
        let device = backend.probe().ok().and_then(|devices| devices.into_iter().next());
        let why = device.and_then(|device| backend.passes_over(&device));
        if let Some(why) = &why {
            tell(format_args!("note: {} is left out: {why}", backend.name()));
        }
        why.is_none()
    };
    Ok(registry.iter().filter(is_worth_it).collect())
}

/// Loads a program on the reference.
pub fn load_reference(
    program: &Arc<Program>,
    args: &EngineArgs,
    wanted: &Wanted,
) -> Result<Loaded> {
    load_with(&lapidary_reference::ReferenceBackend, program, args, wanted)
}

fn choose<'a>(
    registry: &'a Registry,
    args: &DeviceArgs,
    say: bool,
) -> Result<(&'a dyn Backend, Device)> {
    if args.backend != "auto" {
        return Ok(registry.named(&args.backend)?);
    }
    let (backend, device, passed_over) = registry.auto()?;
    for why in passed_over.iter().filter(|_| say) {
        tell(format_args!("note: {why}"));
    }
    Ok((backend, device))
}

fn load_on(
    (backend, device): (&dyn Backend, &Device),
    program: Arc<Program>,
    args: &EngineArgs,
    wanted: &Wanted,
    start: Instant,
) -> Result<Loaded> {
    let limit = program.metadata().max_context_len;
    if wanted.context == 0 || wanted.context > limit {
        let what = format!("a context of {} positions; this model has {limit}", wanted.context);
        return Err(Usage(what).into());
    }
    let allowed = program.method(method::FORWARD)?.max_chunk;
    let preferred = wanted.chunk.unwrap_or_else(|| backend.preferred_chunk());
    let methods = wanted.media.methods(&program);
    // A picture goes whole into one call.
    let preferred = preferred.max(wanted.media.block as u32);
    let options = LoadOptions {
        max_context: wanted.context,
        max_chunk: preferred.min(allowed).min(wanted.context),
        n_slots: 1,
        threads: args.threads.map(usize::from),
        precision: args.precision.map_or(wanted.precision, Precision::from),
        max_patches: wanted.media.patches as u32,
        max_frames: wanted.media.frames as u32,
        methods: methods.clone(),
        kv: args.kv.map(KvType::from),
        pack_cache: cache::root().map(|root| root.join("packs")),
    };
    for name in &methods {
        let missing = backend.missing_ops(&program, name);
        if !missing.is_empty() {
            let ops = missing.join(", ");
            let method = name.clone();
            return Err(lapidary_backend::Error::MissingOps {
                backend: backend.name(),
                method,
                ops,
            }
            .into());
        }
    }
    let plan = backend.plan(&program, &options)?;
    fit(&plan, &program, device, &options)?;
    let bar = progress::Bytes::new("loading");
    let engine = backend.load(&program, device, &options, &mut |done, all| bar.set(done, all))?;
    drop(bar);
    if wanted.say {
        tell(format_args!("note: running on {}", engine.describe()));
    }
    Ok(Loaded { engine, took: start.elapsed() })
}
