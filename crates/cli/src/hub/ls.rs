//! `lapidary ls`.

use std::io::Write;

use anyhow::Result;
use indicatif::HumanBytes;
use lapidary::hub::{Cached, Hub, Table};
use serde_json::{Value, json};

use crate::args::hub::LsArgs;

/// Lists models.
pub fn run(args: &LsArgs) -> Result<()> {
    let hub = Hub::from_env()?;
    let cached = hub.list()?;
    let table = Table::get();
    let mut out = std::io::stdout().lock();
    if args.json {
        let here: Vec<Value> = cached.iter().map(as_json).collect();
        let mut report = json!({"cache": hub.settings().cache, "models": here});
        if args.all {
            let names = table.models.iter().flat_map(|e| e.variants.iter().map(|v| e.name_of(v)));
            report["names"] = names.collect();
        }
        serde_json::to_writer_pretty(&mut out, &report)?;
        writeln!(out)?;
        return Ok(out.flush()?);
    }
    if cached.is_empty() {
        writeln!(out, "no models in {}", hub.settings().cache.display())?;
    }
    for model in &cached {
        let size = HumanBytes(model.bytes).to_string();
        writeln!(out, "{:<24} {size:>12}  {}", names(model).join(", "), model.repo)?;
    }
    if args.all {
        writeln!(out, "\nnames, each of which `lapidary pull` downloads:")?;
        for entry in &table.models {
            let variants: Vec<String> = entry.variants.iter().map(|v| entry.name_of(v)).collect();
            writeln!(out, "  {:<16} {}", entry.title, variants.join(", "))?;
        }
    } else if cached.is_empty() {
        writeln!(
            out,
            "`lapidary ls --all` lists what there is; `lapidary pull NAME` downloads it"
        )?;
    }
    Ok(out.flush()?)
}

/// The names that a repository's files have; else the repository is its name.
pub fn names(model: &Cached) -> Vec<String> {
    let all = Table::get().models.iter().flat_map(|e| e.variants.iter().map(move |v| (e, v)));
    let of_repo = all.filter(|(_, variant)| variant.repo == model.repo);
    let names: Vec<String> = of_repo.map(|(entry, variant)| entry.name_of(variant)).collect();
    if names.is_empty() { vec![model.repo.clone()] } else { names }
}

fn as_json(model: &Cached) -> Value {
    json!({
        "names": names(model), "repo": model.repo, "commit": model.commit, "path": model.path,
        "file": model.model, "size_bytes": model.bytes,
    })
}
