//! The systems that can only be compiled for here: their types are checked, nothing is run.
//!
//! Linux is linted and tested. Of the others, one of each kind has the whole workspace checked. A room
//! that asks for no system (`cfg`) and whose dependencies ask for none is the same on all of them, so
//! that those that come second in kind are checked for the rooms that do ask, and what these use.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::{cargo, run};

/// Systems with what is checked for them. Those of a row share one run of cargo, and so both cores to
/// the end.
const SYSTEMS: [(&[&str], What); 3] = [
    // Metal and NEON; DX12 and another way of files and folders.
    (&["aarch64-apple-darwin", "x86_64-pc-windows-msvc"], What::AllBut(&TOOLS)),
    // Apple's, and Linux's, with other folders, memory and drivers.
    (&["aarch64-apple-ios", "aarch64-linux-android"], What::Only(&SYSTEMATIC)),
    // A browser: no files, no threads, no clock, and no command line.
    (&["wasm32-unknown-unknown"], What::Only(&BROWSER)),
];

/// What runs where it is built.
const TOOLS: [&str; 4] = ["lapidary-conformance", "lapidary-fuzz", "lapidary-mock-engine", "xtask"];
/// The tops of the rooms that ask which system they are on.
const SYSTEMATIC: [&str; 2] = ["lapidary-backends", "lapidary-runner"];
/// The tops of the rooms that a browser can have.
const BROWSER: [&str; 6] = [
    "lapidary-backends",
    "lapidary-gemma",
    "lapidary-media",
    "lapidary-pebble",
    "lapidary-runner",
    "lapidary-text",
];

enum What {
    AllBut(&'static [&'static str]),
    /// With all that they use.
    Only(&'static [&'static str]),
}

/// Checks that the project compiles for every system that it is for.
pub fn check(root: &Path) -> Result<()> {
    for (targets, what) in SYSTEMS {
        let added: Vec<&str> = targets.iter().copied().filter(|target| add(target)).collect();
        if added.is_empty() {
            continue;
        }
        let mut check = cargo(root);
        check.args(["check", "--quiet"]);
        added.iter().for_each(|target| _ = check.args(["--target", target]));
        match what {
            What::AllBut(packages) => {
                check.arg("--workspace");
                packages.iter().for_each(|package| _ = check.args(["--exclude", package]));
            }
            What::Only(packages) => {
                packages.iter().for_each(|package| _ = check.args(["--package", package]));
            }
        }
        run(&mut check)?;
    }
    Ok(())
}

/// Adds a system's standard library, and says loudly if that can't be done.
pub fn add(target: &str) -> bool {
    let added = run(Command::new("rustup").args(["--quiet", "target", "add", target]));
    let added = added.with_context(|| format!("rustup can't add {target}"));
    added.inspect_err(|e| eprintln!("xtask: SKIPPED {target}: {e:#}")).is_ok()
}

/// Adds the standard libraries of all systems.
pub fn prepare() {
    SYSTEMS.iter().flat_map(|(targets, _)| *targets).for_each(|target| _ = add(target));
}
