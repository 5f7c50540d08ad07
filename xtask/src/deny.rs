//! Licences, bans and sources of the dependency tree, by `cargo deny`.

use std::path::Path;

use anyhow::Result;

use crate::{cargo, run};

/// Runs `cargo deny`, installing it on first use. The advisory database is consulted where it can
/// be reached, and its absence is said loudly.
pub fn check(root: &Path) -> Result<()> {
    let installed =
        cargo(root).args(["deny", "--version"]).output().is_ok_and(|o| o.status.success());
    if !installed {
        eprintln!("xtask: installing cargo-deny (some minutes, once)");
        // An unoptimised build is done in half the time and checks this tree in a second.
        run(cargo(root).args(["install", "cargo-deny", "--debug", "--locked", "--quiet"]))?;
    }
    run(cargo(root).args([
        "deny",
        "--log-level",
        "error",
        "check",
        "licenses",
        "bans",
        "sources",
    ]))?;
    let advisories =
        cargo(root).args(["deny", "--log-level", "error", "check", "advisories"]).output()?;
    let said = String::from_utf8_lossy(&advisories.stderr);
    if !advisories.status.success() {
        if said.contains("failed to fetch advisory database") || said.contains("advisory-db") {
            eprintln!("xtask: SKIPPED advisories: the database can't be reached from here");
        } else {
            anyhow::bail!("advisories: {said}");
        }
    }
    Ok(())
}
