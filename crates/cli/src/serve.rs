//! `lapidary serve`.

use std::path::Path;

use anyhow::{Context, Result, anyhow};
use lapidary::{KvType, Load, Model, Open, Precision};
use lapidary_server::{Config, Log, Outcome, Server, Source};

use crate::args::serve::ServeArgs;
use crate::exit::Usage;
use crate::named;
use crate::tell::tell;

/// Serves until it is told to end.
pub fn run(args: &ServeArgs) -> Result<()> {
    let config = args.config().map_err(Usage)?;
    config.check().map_err(Usage)?;
    let sources =
        config.models.iter().map(|given| source(given, &config)).collect::<Result<_>>()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.context("can't start the server's threads")?;
    runtime.block_on(serve(&config, sources))
}

async fn serve(config: &Config, sources: Vec<Source>) -> Result<()> {
    let log = Log::to_stderr(config.log_format, !config.no_access_log);
    let server = Server::bind(config, sources, log).await.map_err(|e| anyhow!(e))?;
    for entry in server.app().registry().entries() {
        let plan = entry.plan().map(|plan| plan.to_string()).unwrap_or_default();
        tell(format_args!("{}: {plan}", entry.name()));
    }
    tell(format_args!("limits: {}", config.limits));
    let keys =
        if server.app().keys().are_needed() { "a key is needed" } else { "no key is needed" };
    tell(format_args!("serving at http://{} ({keys}); Ctrl-C ends it", server.address()));
    if !config.lazy {
        server.preload();
    }
    let asked = signalled()?;
    match server.run(asked).await {
        Outcome::Drained => Ok(()),
        Outcome::CutOff => {
            tell(format_args!("note: answers that took too long were cut off"));
            Ok(())
        }
        Outcome::Stalled => {
            tell(format_args!("error: an engine has stopped responding; its device may have hung"));
            // Nothing that ends in order waits for a thread that hangs.
            std::process::exit(1);
        }
    }
}

/// Ends at the first signal; the second one ends the process.
fn signalled() -> Result<impl Future<Output = ()>> {
    let (sender, mut receiver) = tokio::sync::mpsc::unbounded_channel();
    let mut n = 0;
    ctrlc::set_handler(move || {
        n += 1;
        if n > 1 {
            std::process::exit(130);
        }
        tell(format_args!("note: ending when all answers are complete; again ends at once"));
        let _ = sender.send(());
    })
    .context("can't listen for signals")?;
    Ok(async move {
        if receiver.recv().await.is_none() {
            std::future::pending::<()>().await;
        }
    })
}

/// A model, opened: what can't be read is refused before anybody asks.
fn source(given: &str, config: &Config) -> Result<Source> {
    let (name, path) = match given.split_once('=') {
        Some((name, path)) => (Some(name.to_string()), path),
        None => (None, given),
    };
    let located = named::locate(Path::new(path), false)?;
    let name = name.or(located.name).unwrap_or_else(|| Source::name_of(given));
    let mut open = Open::new();
    if config.no_mmap {
        open = open.no_mmap();
    }
    if let Some(mmproj) = &config.mmproj {
        if config.models.len() > 1 {
            return Err(Usage("--mmproj goes with one model alone".into()).into());
        }
        open = open.mmproj(mmproj);
    }
    let model = open.open(path)?;
    for notice in model.notices().iter().filter(|n| n.is_surprise) {
        tell(format_args!("note: {name}: {}", notice.text));
    }
    // A tokenizer that is broken is refused now, too.
    if let Err(e) = model.template() {
        tell(format_args!("note: {name} has no conversations: {e}"));
    }
    let load = load(config, &model)?;
    Ok(Source::new(name, model, load))
}

fn load(config: &Config, model: &Model) -> Result<Load> {
    let usage = |what: String| anyhow::Error::from(Usage(what));
    let mut load = Load::default()
        .backend(&config.backend)
        .sequences(config.parallel)
        // The server admits no more than may wait.
        .queue(config.limits.queue)
        .events(config.limits.events);
    if let Some(device) = &config.device {
        load = load.device(device.parse().map_err(usage)?);
    }
    if let Some(threads) = config.threads {
        load = load.threads(usize::from(threads));
    }
    if let Some(precision) = &config.precision {
        load = load.precision(match precision.as_str() {
            "fast" => Precision::Fast,
            "exact" => Precision::Exact,
            other => return Err(usage(format!("precision `{other}`: write fast or exact"))),
        });
    }
    if let Some(kv) = &config.kv {
        load = load.kv_type(match kv.as_str() {
            "f32" => KvType::F32,
            "bf16" => KvType::Bf16,
            "int8" => KvType::Int8,
            other => return Err(usage(format!("kv `{other}`: write f32, bf16 or int8"))),
        });
    }
    if let Some(context) = config.ctx {
        load = load.context(context.min(model.metadata().max_context_len));
    }
    if let Some(bytes) = config.cache_memory {
        load = load.kv_memory(bytes.0);
    }
    Ok(load)
}
