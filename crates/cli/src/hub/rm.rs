//! `lapidary rm`.

use std::io::Write;

use anyhow::Result;
use indicatif::HumanBytes;
use lapidary::hub::{Hub, Name};

use super::name;
use crate::args::hub::RmArgs;

/// Removes models from the cache.
pub fn run(args: &RmArgs) -> Result<()> {
    let names = args.names.iter().map(|text| name(text)).collect::<Result<Vec<Name>>>()?;
    let hub = Hub::from_env()?;
    let mut out = std::io::stdout().lock();
    for name in &names {
        let bytes = hub.remove(name)?;
        writeln!(out, "removed {}, {}", name.repo(), HumanBytes(bytes))?;
    }
    Ok(out.flush()?)
}
