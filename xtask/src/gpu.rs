//! What tests of the GPU backend need: a Vulkan in software, a compiler that checks Metal's types,
//! and the systems that can only be compiled for here.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::{cargo, packages, run};

/// Debian's names: a driver that computes on the CPU, the library that finds drivers, and clang.
const PACKAGES: [&str; 3] = ["mesa-vulkan-drivers", "libvulkan1", "clang"];
/// Where drivers tell that they are there.
const DRIVERS: [&str; 2] = ["/usr/share/vulkan/icd.d", "/etc/vulkan/icd.d"];

/// Systems whose libraries are not here, so that the workspace is checked for them and not run, and
/// what each of them is not for.
const TARGETS: [(&str, &[&str]); 5] = [
    ("aarch64-apple-darwin", &[]),
    ("aarch64-apple-ios", &[]),
    ("aarch64-linux-android", &[]),
    ("x86_64-pc-windows-msvc", &[]),
    // A browser has no command line, and `runner` draws seeds from a system that it does not have.
    ("wasm32-unknown-unknown", &["lapidary", "lapidary-heldout", "lapidary-runner"]),
];
/// What runs where it is built.
const TOOLS: [&str; 2] = ["lapidary-fuzz", "xtask"];

/// Installs what tests on a GPU need, where that can be done; else they say that they are skipped.
pub fn prepare() {
    let has_driver = DRIVERS
        .iter()
        .any(|folder| std::fs::read_dir(folder).is_ok_and(|mut files| files.next().is_some()));
    let has_clang = Command::new("clang").arg("--version").output().is_ok();
    if !cfg!(target_os = "linux") || has_driver && has_clang {
        return;
    }
    if let Err(e) = packages::install(&PACKAGES) {
        eprintln!("xtask: SKIPPED what needs a GPU: {e:#}");
    }
}

/// Checks that the workspace compiles for every system that it is for.
pub fn check(root: &Path) -> Result<()> {
    for (target, not_for) in TARGETS {
        let added = run(Command::new("rustup").args(["--quiet", "target", "add", target]));
        if let Err(e) = added.with_context(|| format!("rustup can't add {target}")) {
            eprintln!("xtask: SKIPPED {target}: {e:#}");
            continue;
        }
        let mut check = cargo(root);
        check.args(["check", "--quiet", "--workspace", "--target", target]);
        check.args(["--target-dir", "target/check"]);
        for package in TOOLS.iter().chain(not_for) {
            check.args(["--exclude", package]);
        }
        run(&mut check)?;
    }
    Ok(())
}
