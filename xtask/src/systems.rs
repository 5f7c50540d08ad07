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
/// The tops of the rooms that ask which system they are on, and what apps load there.
const SYSTEMATIC: [&str; 3] = ["lapidary-backends", "lapidary-ffi", "lapidary-runner"];
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
        for target in &added {
            check.args(["--target", target]);
            stand_in_for_c(root, target, &mut check)?;
        }
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

/// Makes a compiler and an archiver of C that write empty files, and has build scripts take them.
///
/// The cryptography under rustls has parts in C and assembler, and there is no compiler here for other
/// systems. Nothing of theirs is linked, so nothing of it is missed.
fn stand_in_for_c(root: &Path, target: &str, check: &mut Command) -> Result<()> {
    let folder = root.join("target").join("stand-in");
    std::fs::create_dir_all(&folder)?;
    let script = folder.join("cc");
    if std::fs::read_to_string(&script).ok().as_deref() != Some(STAND_IN) {
        std::fs::write(&script, STAND_IN)?;
        run(Command::new("chmod").arg("+x").arg(&script))?;
    }
    for tool in ["CC", "AR"] {
        check.env(format!("{tool}_{}", target.replace('-', "_")), &script);
    }
    // Else Apple's tools are asked for one.
    check.env("SDKROOT", &folder);
    Ok(())
}

/// Writes what the flags of any compiler or archiver say that it shall write.
const STAND_IN: &str = r#"#!/bin/sh
while [ $# -gt 0 ]; do
    case "$1" in
        -o) : > "$2"; shift ;;
        -Fo*|/Fo*) : > "${1#?Fo}" ;;
        -out:*|/out:*) : > "${1#?out:}" ;;
        *.a) : > "$1" ;;
    esac
    shift
done
"#;

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
