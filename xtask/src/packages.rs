//! Debian packages that tests need, installed where they are missing.

use std::process::Command;

use anyhow::{Context, Result};

use crate::run;

/// Installs packages.
pub fn install(names: &[&str]) -> Result<()> {
    eprintln!("xtask: installing {} (once)", names.join(", "));
    // Package lists may be missing or old, but fetching them takes longer than trying without.
    apt_install(names)
        .or_else(|_| {
            run(Command::new("apt-get").args(["--quiet", "update"]))
                .and_then(|()| apt_install(names))
        })
        .with_context(|| format!("as root: apt-get install {}", names.join(" ")))
}

fn apt_install(names: &[&str]) -> Result<()> {
    let options = ["--quiet", "--yes", "--no-install-recommends"];
    run(Command::new("apt-get").arg("install").args(options).args(names))
}
