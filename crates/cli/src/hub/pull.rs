//! `lapidary pull`.

use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use indicatif::HumanBytes;
use lapidary::hub::{Found, Hub, Name, Offer, Progress, Step, Watch};

use super::name;
use crate::args::hub::PullArgs;
use crate::exit::TooLarge;
use crate::progress;
use crate::tell::tell;

/// Downloads models, and prints where they are.
pub fn run(args: &PullArgs) -> Result<()> {
    // What is misspelt is told before the first gigabyte.
    let names = args.names.iter().map(|text| name(text)).collect::<Result<Vec<Name>>>()?;
    let hub = Hub::from_env()?;
    ctrlc::set_handler(|| {
        tell(format_args!("\nnote: what has come is kept; pull again to go on"));
        std::process::exit(130);
    })
    .context("can't listen for Ctrl-C")?;
    for name in &names {
        let found = bring(&hub, name, args.force)?;
        let mut out = std::io::stdout().lock();
        writeln!(out, "{}", found.model.display())?;
        out.flush()?;
    }
    Ok(())
}

/// Downloads a model after saying how large it is.
pub fn bring(hub: &Hub, name: &Name, force: bool) -> Result<Found> {
    let offer = hub.ask(name)?;
    if offer.missing > 0 {
        if !force {
            fits(&offer)?;
        }
        say(hub, &offer);
    }
    let bar = progress::Bytes::new("downloading");
    let (waits, checks) = (AtomicBool::new(false), AtomicBool::new(false));
    let once = |said: &AtomicBool| !said.swap(true, Ordering::Relaxed);
    let watch = |progress: &Progress| match progress.step {
        Step::Waiting if once(&waits) => {
            tell(format_args!("note: another process downloads {}; waiting", progress.file));
        }
        Step::Waiting => {}
        Step::Downloading => bar.set(progress.done, progress.total),
        Step::Checking => {
            bar.set(progress.done, progress.total);
            if offer.missing > LONG && once(&checks) {
                tell(format_args!("note: computing checksums"));
            }
        }
    };
    let found = hub.pull(&offer, &Watch { tell: Some(&watch), stop: None })?;
    drop(bar);
    if offer.missing == 0 {
        tell(format_args!("{name} is complete and up to date"));
    }
    Ok(found)
}

/// A checksum of more than this takes moments.
const LONG: u64 = 1 << 30;

fn say(hub: &Hub, offer: &Offer) {
    let Offer { name, total, missing, .. } = offer;
    let rest = match missing < total {
        true => format!(" ({} of it are here already)", HumanBytes(total - missing)),
        false => String::new(),
    };
    let licence = match name {
        Name::Known { entry, .. } => format!("; licence: {}", entry.licence.name()),
        Name::Repo { .. } => String::new(),
    };
    tell(format_args!(
        "downloading {name}: {}{rest} from {}/{} to {}{licence}",
        HumanBytes(*total),
        hub.settings().endpoint_url(),
        name.repo(),
        hub.settings().cache.display(),
    ));
}

/// Refuses what this machine could not run, and says what to do.
fn fits(offer: &Offer) -> Result<()> {
    let Err(e) = lapidary::check_memory(offer) else { return Ok(()) };
    let what = format!(
        "{e} (`lapidary show {}` lists smaller variants; --force downloads it all the same)",
        offer.name
    );
    Err(TooLarge(what).into())
}
