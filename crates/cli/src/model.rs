//! From flags to a loaded engine: open, choose, plan, refuse or load.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Error, Result};
use lapidary_backend::{Backend, Device, Engine, LoadOptions, Precision, fit};
use lapidary_gemma::OpenOptions;
use lapidary_program::{Program, method};
use lapidary_runner::{CacheUse, Tokenizer, load_tokenizer_cached};

use crate::args::{DeviceArgs, ModelArgs};
use crate::cache;
use crate::exit::Usage;
use crate::progress;
use crate::tell::{debug, tell};

/// What a context is without `--ctx`, where the model has more.
pub const DEFAULT_CONTEXT: u32 = 8192;

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
}

/// Opens a model of any kind.
pub fn open(args: &ModelArgs) -> Result<Program> {
    let options = OpenOptions { mmap: !args.no_mmap, draft: args.draft.clone() };
    lapidary_gemma::open(&args.model, &options).map_err(|e| naming(args, e))
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
    let path = args.model.display().to_string();
    let named = e.to_string().contains(&path);
    let e = Error::new(e);
    if named { e } else { e.context(format!("can't open {path}")) }
}

/// Loads a program where the flags say.
pub fn load(program: Program, args: &DeviceArgs, wanted: &Wanted) -> Result<Loaded> {
    let start = Instant::now();
    let registry = lapidary_backends::all();
    let (backend, device) = choose(&registry, args, wanted.say)?;
    load_on(backend, &device, Arc::new(program), args, wanted, start)
}

/// Loads a program on the reference.
pub fn load_reference(
    program: &Arc<Program>,
    args: &DeviceArgs,
    wanted: &Wanted,
) -> Result<Loaded> {
    let backend = lapidary_reference::ReferenceBackend;
    let device = backend.probe()?.into_iter().next().context("the reference has no device")?;
    load_on(&backend, &device, program.clone(), args, wanted, Instant::now())
}

fn choose<'a>(
    registry: &'a lapidary_backend::Registry,
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
    backend: &dyn Backend,
    device: &Device,
    program: Arc<Program>,
    args: &DeviceArgs,
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
    let options = LoadOptions {
        max_context: wanted.context,
        max_chunk: preferred.min(allowed).min(wanted.context),
        n_slots: 1,
        threads: args.threads.map(usize::from),
        precision: args.precision.map_or(wanted.precision, Precision::from),
        pack_cache: cache::root().map(|root| root.join("packs")),
    };
    for name in program.methods().keys() {
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
