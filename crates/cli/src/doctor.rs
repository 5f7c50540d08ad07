//! `lapidary doctor`.

use std::io::Write;

use anyhow::Result;
use indicatif::HumanBytes;
use serde_json::{Value, json};

use crate::args::DoctorArgs;
use crate::cache;

/// Prints backends, devices, memory and the cache.
pub fn run(args: &DoctorArgs) -> Result<()> {
    let found = lapidary::devices();
    let mut backends: Vec<Value> = Vec::new();
    for backend in &found {
        backends.push(match &backend.devices {
            Ok(devices) => json!({
                "name": backend.name,
                "usable": !devices.is_empty(),
                "devices": devices.iter().map(|(d, passed_over)| json!({
                    "id": d.id.to_string(), "name": d.name, "kind": d.kind.name(), "isa": d.isa,
                    "bus": d.bus, "available_bytes": d.available_bytes,
                    "total_bytes": d.total_bytes, "passed_over": passed_over,
                })).collect::<Vec<_>>(),
            }),
            Err(reason) => json!({
                "name": backend.name, "usable": false, "devices": [], "reason": reason,
            }),
        });
    }
    let auto = found.iter().find(|b| b.is_auto).map(|b| b.name);
    // What other builds or later versions bring, so that their absence is not a riddle.
    let absent = ["vulkan", "metal", "dx12", "cuda", "mlx"]
        .into_iter()
        .filter(|n| !found.iter().any(|b| b.name == *n))
        .map(|n| json!({"name": n, "usable": false, "reason": "not part of this build"}))
        .collect::<Vec<_>>();
    let cache = lapidary::cache::root();
    let cache_bytes = cache.as_deref().map(cache::size_bytes);
    let threads = std::thread::available_parallelism().map(usize::from).ok();
    let report = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "os": std::env::consts::OS,
        "arch": std::env::consts::ARCH,
        "threads": threads,
        "auto": auto,
        "cache": {"root": cache.as_deref().map(cache::shown), "size_bytes": cache_bytes},
        "backends": backends.into_iter().chain(absent).collect::<Vec<_>>(),
    });
    let mut out = crate::screen::out();
    if args.json {
        serde_json::to_writer_pretty(&mut out, &report)?;
        writeln!(out)?;
        return Ok(out.flush()?);
    }
    writeln!(
        out,
        "lapidary {} on {} {}, {} threads",
        env!("CARGO_PKG_VERSION"),
        std::env::consts::OS,
        std::env::consts::ARCH,
        threads.map_or("?".into(), |n| n.to_string())
    )?;
    for b in report["backends"].as_array().into_iter().flatten() {
        let name = b["name"].as_str().unwrap_or_default();
        match b["reason"].as_str() {
            Some(reason) => writeln!(out, "  {name:<10} no: {reason}")?,
            None => {
                for d in b["devices"].as_array().into_iter().flatten() {
                    let free = d["available_bytes"]
                        .as_u64()
                        .map_or(String::new(), |n| format!(", {} free", HumanBytes(n)));
                    let id = d["id"].as_str().unwrap_or_default();
                    let device = d["name"].as_str().unwrap_or_default();
                    // Whoever wants it says so.
                    let passed = match d["passed_over"].as_str() {
                        Some(_) => format!(
                            " ({}; used only if named)",
                            d["isa"].as_str().unwrap_or_default()
                        ),
                        None => String::new(),
                    };
                    writeln!(out, "  {id:<10} {device}{free}{passed}")?;
                }
            }
        }
    }
    writeln!(out, "auto picks {}", auto.unwrap_or("nothing"))?;
    match cache.zip(cache_bytes) {
        Some((root, n)) => writeln!(out, "cache {}, {}", root.display(), HumanBytes(n))?,
        None => match lapidary::cache::distrusted() {
            Some(folder) => writeln!(out, "{}", cache::no_trust(&folder))?,
            None => writeln!(out, "cache off")?,
        },
    }
    Ok(out.flush()?)
}
