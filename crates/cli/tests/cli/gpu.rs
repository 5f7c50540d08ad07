//! The command on a GPU, which may be software, and without one.

use std::io::Write as _;
use std::process::Command;

use serde_json::Value;

use crate::support::{lapidary, run, sparse, temp, testdata};

/// Names of backends that other systems have.
#[cfg(target_os = "linux")]
const ELSEWHERE: [&str; 2] = ["metal", "dx12"];

/// What `doctor` says of Vulkan's first device; without one the tests say so and pass.
fn device() -> Option<Value> {
    let report = run(lapidary("doctor").arg("--json")).done().json();
    let vulkan = report["backends"].as_array()?.iter().find(|b| b["name"] == "vulkan")?.clone();
    if vulkan["usable"] != true {
        _ = writeln!(std::io::stderr(), "SKIPPED: {vulkan}");
        return None;
    }
    Some(vulkan["devices"][0].clone())
}

/// A command that finds no driver.
fn without_drivers(mut command: Command) -> Command {
    command.envs([("VK_DRIVER_FILES", "/nowhere"), ("VK_ICD_FILENAMES", "/nowhere")]);
    command
}

#[cfg(target_os = "linux")]
#[test]
fn m7_a_gpu_that_is_not_there_is_told_and_others_are_listed() {
    for words in [&["run", "hi there"][..], &["demo"]] {
        let command = || {
            let mut command = lapidary(words[0]);
            command.args(&words[1..]);
            without_drivers(command)
        };
        let why = ["vulkan", "no GPU", "there is cpu", "reference"];
        run(command().args(["--backend", "vulkan"])).refused(4, &why);
        run(command().env("LAPIDARY_BACKEND", "vulkan")).refused(4, &why);
        for name in ELSEWHERE {
            run(command().args(["--backend", name]))
                .refused(2, &[name, "vulkan, cpu, mlx, reference"]);
        }
    }
    let ran = run(&mut without_drivers(lapidary("doctor"))).done();
    assert!(ran.text().contains("vulkan     no: "), "{}", ran.text());
    assert!(ran.text().contains("auto picks cpu"), "{}", ran.text());
}

#[cfg(target_os = "linux")]
#[test]
fn auto_says_what_it_picked_and_what_it_passed_over() {
    let hello = || {
        let mut command = lapidary("run");
        command.args(["What is 47 + 38?", "-t", "0", "-n", "2"]);
        command
    };
    let ran = run(&mut without_drivers(hello())).done();
    for word in ["note: backend `vulkan`", "note: running on cpu"] {
        assert!(ran.stderr.contains(word), "{word}: {}", ran.stderr);
    }
    // Where a machine has no GPU at all, no driver is asked.
    let reasons = ["can't be used here", "no GPU has a device in /dev"];
    assert!(reasons.iter().any(|why| ran.stderr.contains(why)), "{}", ran.stderr);
    let Some(device) = device() else { return };
    let ran = run(&mut hello()).done();
    if device["kind"] == "software" {
        // It is software, or was not even asked.
        for word in ["note: backend `vulkan`: ", "no GPU", "running on cpu"] {
            assert!(ran.stderr.contains(word), "{word}: {}", ran.stderr);
        }
    } else {
        assert!(ran.stderr.contains("note: running on vulkan"), "{}", ran.stderr);
    }
}

/// Drivers write what they like; a user who asked for a GPU sees nothing but our words.
#[test]
fn nothing_but_our_notes_is_written_beside_the_answer() {
    if device().is_none() {
        return;
    }
    let mut command = lapidary("run");
    command.args(["--backend", "vulkan", "What is 47 + 38?", "-t", "0", "-q"]);
    let ran = run(command.env_remove("XDG_RUNTIME_DIR").env_remove("WAYLAND_DISPLAY")).done();
    assert_eq!((ran.text(), ran.stderr.as_str()), ("47 + 38 = 85.\n", ""));
}

#[test]
fn goldens_are_verified_on_a_gpu() {
    if device().is_none() {
        return;
    }
    let dir = temp();
    let lap = dir.path().join("tiny.lap");
    run(lapidary("export").arg(testdata("tiny/gemma4_mm_e")).arg("-o").arg(&lap)).done();
    for features in ["all", "none"] {
        for model in [lap.to_str().expect("UTF-8"), "pebble"] {
            let mut command = lapidary("verify");
            command.args([model, "--backend", "vulkan"]).env("LAPIDARY_GPU_FEATURES", features);
            let ran = run(&mut command).done();
            assert!(ran.text().contains(" on vulkan · "), "{}", ran.text());
            assert!(ran.text().ends_with("passed\n"), "{}", ran.text());
        }
    }
}

#[test]
fn a_gpu_agrees_with_the_reference() {
    if device().is_none() {
        return;
    }
    let mut command = lapidary("eval");
    command.args(["agree", "--limit", "2", "--precision", "exact", "-n", "8", "--json", "--dir"]);
    command.arg(testdata("../pebble/heldout")).env("LAPIDARY_BACKEND", "vulkan");
    let report = run(&mut command).done().json();
    assert!(report["device"].as_str().is_some_and(|d| d.starts_with("vulkan")), "{report}");
    for other in report["others"].as_array().expect("a list") {
        assert_eq!(other["same_answers"], report["n_answers"], "{other}");
    }
    let ran = run(lapidary("demo").args(["--backend", "vulkan", "--json"])).done();
    let rows = ran.json();
    assert_eq!(rows.as_array().map(Vec::len), Some(1), "{rows}");
    assert_eq!((&rows[0]["backend"], &rows[0]["n_right"]), (&"vulkan".into(), &3.into()), "{rows}");
}

#[cfg(target_os = "linux")]
#[test]
fn m5_a_model_that_a_gpu_cannot_hold_is_refused() {
    let Some(device) = device() else { return };
    let dir = temp();
    let need = sparse("gemma-4-31b", dir.path());
    crate::support::give_tokenizer(dir.path());
    if device["available_bytes"].as_u64().is_none_or(|have| have >= need) {
        _ = writeln!(std::io::stderr(), "SKIPPED: this GPU can hold {need} bytes");
        return;
    }
    let mut command = lapidary("run");
    command.arg(dir.path()).args(["--raw", "the world", "--backend", "vulkan"]);
    run(&mut command).refused(4, &["need ", " for weights", " free; try "]);
    // Nor does the wrong word for what it may use do harm.
    let mut command = lapidary("run");
    command.args(["hi there", "--backend", "vulkan"]).env("LAPIDARY_GPU_FEATURES", "f17");
    run(&mut command).refused(4, &["LAPIDARY_GPU_FEATURES", "f17", "subgroups"]);
}
