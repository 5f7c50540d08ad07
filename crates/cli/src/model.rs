//! From flags to the library's choices, and what is said about them on standard error.

use std::path::Path;

use anyhow::Result;
use lapidary::{Engine, Error, Load, LoadedRunner, Media, Model, Open, PEBBLE, Plan, Precision};

use crate::args::{DeviceArgs, DraftArg, EngineArgs, MediaArgs, ModelArgs};
use crate::exit::Usage;
use crate::tell::{debug, tell};
use crate::{named, progress};

/// Opens a model of any kind, and says which if none was named.
pub fn open(args: &ModelArgs) -> Result<Model> {
    if args.model.is_none() {
        tell(format_args!("note: no model was named; this is {PEBBLE}, a toy that is built in"));
    }
    open_quietly(args)
}

/// Opens a model of any kind.
pub fn open_quietly(args: &ModelArgs) -> Result<Model> {
    let model = args.model.as_deref().unwrap_or(Path::new(PEBBLE));
    named::locate(model, args.may_pull)?;
    let mut open = Open::new();
    if args.no_mmap {
        open = open.no_mmap();
    }
    open = match &args.draft {
        Some(DraftArg::At(path)) => open.draft(named::locate(path, args.may_pull)?.path),
        Some(DraftArg::Auto) => open.draft_beside(),
        Some(DraftArg::Off | DraftArg::Lookup) | None => open,
    };
    if let Some(path) = &args.mmproj {
        open = open.mmproj(path);
    }
    let model = open.open(model)?;
    for notice in model.notices() {
        match notice.is_surprise {
            true => tell(format_args!("note: {}", notice.text)),
            false => debug(format_args!("{}", notice.text)),
        }
    }
    Ok(model)
}

/// Reads the tokenizer, so that a broken one is refused before the long work.
pub fn need_tokenizer(model: &Model) -> Result<()> {
    let n = model.notices().len();
    model.tokenizer()?;
    model.notices().iter().skip(n).for_each(|notice| debug(format_args!("{}", notice.text)));
    Ok(())
}

/// Reads the tokenizer and the chat template.
pub fn need_template(model: &Model) -> Result<()> {
    need_tokenizer(model)?;
    match model.template() {
        Ok(_) => Ok(()),
        Err(Error::Text(lapidary::text::Error::NoChatTemplate)) => {
            let what = "this model has no chat template (it is probably a base model); \
                        `lapidary run --raw` continues plain text";
            Err(Usage(what.into()).into())
        }
        Err(e) => Err(e.into()),
    }
}

/// What the flags say of a device, with a bar while weights are packed. `say` tells what was chosen.
pub fn load_args(args: &DeviceArgs, say: bool) -> Load {
    let load = Load::default().backend(&args.backend);
    let load = match &args.device {
        Some(device) => load.device(device.clone()),
        None => load,
    };
    engine_args(load, &args.engine, Precision::Fast).on_plan(move |plan| {
        for why in plan.passed_over.iter().filter(|_| say) {
            tell(format_args!("note: {why}"));
        }
    })
}

/// What the flags say of an engine: one sequence, and nobody but this process reads the answers.
pub fn engine_args(load: Load, args: &EngineArgs, precision: Precision) -> Load {
    let bar = progress::Bytes::new("loading");
    let mut load = load
        .sequences(1)
        .patience(std::time::Duration::MAX)
        .precision(args.precision.map_or(precision, Precision::from))
        .on_progress(move |done, all| bar.set(done, all));
    if let Some(threads) = args.threads {
        load = load.threads(usize::from(threads));
    }
    if let Some(kv) = args.kv {
        load = load.kv_type(kv.into());
    }
    load
}

/// Positions that the user asks for; else the library's default, of which the user is told if the
/// model has more.
pub fn context(load: Load, asked: Option<u32>, say: bool) -> Load {
    match asked {
        Some(context) => load.context(context),
        None if say => load.on_plan(say_plan),
        None => load,
    }
}

fn say_plan(plan: &Plan) {
    for why in &plan.passed_over {
        tell(format_args!("note: {why}"));
    }
    let (context, own) = (plan.context, plan.model_context);
    if context < own {
        tell(format_args!("note: context {context} of the model's {own}; --ctx takes more"));
    }
}

/// Loads a model with a thread that answers.
pub fn load(model: &Model, load: Load, say: bool) -> Result<Engine> {
    let engine = model.load(load)?;
    if say {
        tell(format_args!("note: running on {}", engine.describe()));
    }
    Ok(engine)
}

/// Loads a model for measurements on this thread.
pub fn load_runner(model: &Model, load: Load, say: bool) -> Result<LoadedRunner> {
    let loaded = model.load_runner(&load)?;
    drop(load);
    if say {
        tell(format_args!("note: running on {}", loaded.runner.describe()));
    }
    Ok(loaded)
}

/// The backends of a name; with `auto`, all but those that `auto` passes over.
pub fn named_or_all(name: &str) -> Result<Vec<&'static str>> {
    Ok(lapidary::backends(name, &mut |backend, why| {
        tell(format_args!("note: {backend} is left out: {why}"));
    })?)
}

/// Everything that the flags show and play, in the order they name it, ready for a model.
pub fn media(args: &MediaArgs, model: &Model) -> Result<Vec<Media>> {
    args.media().into_iter().map(|media| ready(media, model)).collect()
}

/// Makes something ready, and says what there is to say of it.
pub fn ready(media: Media, model: &Model) -> Result<Media> {
    let media = media.prepare(model)?;
    if let Some(note) = media.note() {
        tell(format_args!("note: {note}"));
    }
    Ok(media)
}
