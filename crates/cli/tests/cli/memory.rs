//! Models that do not fit.

use std::io::Write as _;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::support::{give_tokenizer, lapidary, run, sparse, temp, undisturbed};

/// Bytes that the CPU backend may take, where the system tells.
fn available() -> Option<u64> {
    let report = run(lapidary("doctor").arg("--json")).done().json();
    let cpu = report["backends"].as_array()?.iter().find(|b| b["name"] == "cpu")?;
    cpu["devices"][0]["available_bytes"].as_u64()
}

/// `run` with at most 512 MiB of its own; mapped files do not count.
fn run_with_little_memory(model: &Path) -> Command {
    let mut shell = Command::new("sh");
    shell.args(["-c", "ulimit -d 524288; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_lapidary")]);
    shell.arg("run").arg(model).args(["--raw", "the world"]);
    undisturbed(shell)
}

#[cfg(target_os = "linux")]
#[test]
fn m1_a_model_larger_than_memory_is_refused_before_it_is_loaded() {
    let dir = temp();
    let need = sparse("gemma-4-31b", dir.path());
    give_tokenizer(dir.path());
    if available().is_none_or(|have| have >= need) {
        _ = writeln!(
            std::io::stderr(),
            "SKIPPED: this machine can hold {need} bytes, or does not tell what it can hold"
        );
        return;
    }
    let gib = |bytes: u64| format!("{:.1} GiB", bytes as f64 / (1u64 << 30) as f64);
    // What is needed, by part; what there is; two ways out.
    let why = ["need ", " for weights", " KV", " free; try ", " or "];
    let started = Instant::now();
    let ran = run(&mut run_with_little_memory(dir.path())).refused(4, &why);
    assert!(started.elapsed() < Duration::from_secs(30), "{:?}", started.elapsed());
    assert!(ran.stderr.contains(&gib(need)), "{} is not in: {}", gib(need), ran.stderr);
    // Read instead of mapped, it fails no later than at the first allocation.
    run(run_with_little_memory(dir.path()).arg("--no-mmap")).refused(4, &["memory"]);
}
