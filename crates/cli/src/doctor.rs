//! `lapidary doctor`.

use std::io::Write;

use anyhow::Result;
use indicatif::HumanBytes;
use serde_json::{Value, json};

use crate::args::DoctorArgs;
use crate::cache;

/// Prints backends, devices, memory and the cache.
pub fn run(args: &DoctorArgs) -> Result<()> {
    let registry = lapidary_backends::all();
    let mut backends: Vec<Value> = Vec::new();
    for backend in registry.iter() {
        backends.push(match backend.probe() {
            Ok(devices) => json!({
                "name": backend.name(),
                "usable": !devices.is_empty(),
                "devices": devices.iter().map(|d| json!({
                    "name": d.name, "isa": d.isa, "available_bytes": d.available_bytes,
                    "total_bytes": d.total_bytes, "passed_over": backend.passes_over(d),
                })).collect::<Vec<_>>(),
            }),
            Err(e) => json!({
                "name": backend.name(), "usable": false, "devices": [], "reason": e.to_string(),
            }),
        });
    }
    let auto = registry.auto().map(|(b, ..)| b.name()).ok();
    // What other builds or later versions bring, so that their absence is not a riddle.
    let absent = ["vulkan", "metal", "dx12", "cuda", "mlx"]
        .into_iter()
        .filter(|n| !registry.iter().any(|b| b.name() == *n))
        .map(|n| json!({"name": n, "usable": false, "reason": "not part of this build"}))
        .collect::<Vec<_>>();
    let cache = cache::root();
    let cache_bytes = cache.as_deref().map(cache::size_bytes);
    let threads = std::thread::available_parallelism().map(usize::from).ok();
    let report = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "os": std::env::consts::OS,
        "arch": std::env::consts::ARCH,
        "threads": threads,
        "auto": auto,
        "cache": {"root": cache, "size_bytes": cache_bytes},
        "backends": backends.into_iter().chain(absent).collect::<Vec<_>>(),
    });
    let mut out = std::io::stdout().lock();
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
                    let device = d["name"].as_str().unwrap_or_default();
                    // Whoever wants it says so.
                    let passed = match d["passed_over"].as_str() {
                        Some(_) => format!(
                            " ({}; used only if named)",
                            d["isa"].as_str().unwrap_or_default()
                        ),
                        None => String::new(),
                    };
                    writeln!(out, "  {name:<10} {device}{free}{passed}")?;
                }
            }
        }
    }
    writeln!(out, "auto picks {}", auto.unwrap_or("nothing"))?;
    match cache.zip(cache_bytes) {
        Some((root, n)) => writeln!(out, "cache {}, {}", root.display(), HumanBytes(n))?,
        None => writeln!(out, "cache off")?,
    }
    Ok(out.flush()?)
}
