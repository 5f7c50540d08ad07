//! A Debian of its own below `target`, newer than the one that tests run on: for what only that has.
//! It takes root, and minutes once.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::{packages, run};

/// The first Debian that has Swift.
const DEBIAN: &str = "trixie";

/// The folder that is its root, with packages, each with a file that it brings.
pub fn with(root: &Path, wanted: &[(&str, &str)]) -> Result<PathBuf> {
    let debian = root.join("target").join(DEBIAN);
    // What is half made has a folder of that name.
    if !debian.join("usr/bin/apt-get").is_file() || debian.join("debootstrap").is_dir() {
        packages::install(&["debootstrap"])?;
        eprintln!("xtask: installing Debian {DEBIAN} into {} (once)", debian.display());
        let mut bootstrap = Command::new("debootstrap");
        run(bootstrap.args(["--variant=minbase", DEBIAN]).arg(&debian)).context("as root")?;
    }
    // Without it, some programs do not find themselves.
    if !debian.join("proc/self").exists() {
        run(Command::new("mount").args(["-t", "proc", "proc"]).arg(debian.join("proc")))?;
    }
    let missing = wanted.iter().filter(|(_, file)| !debian.join(file).exists());
    let missing: Vec<&str> = missing.map(|(package, _)| *package).collect();
    if !missing.is_empty() {
        let mut install = Command::new("chroot");
        install.arg(&debian).args(["apt-get", "install", "--quiet", "--yes"]);
        install.args(["--no-install-recommends", "ca-certificates"]).args(missing);
        run(install.env("DEBIAN_FRONTEND", "noninteractive"))?;
    }
    Ok(debian)
}

/// A command in it, in a folder, with a plain environment.
pub fn command(debian: &Path, folder: &str, environment: &[(&str, String)]) -> Command {
    let mut command = Command::new("chroot");
    command.arg(debian).args(["env", "-i", "-C", folder, "HOME=/root", "PATH=/usr/bin:/bin"]);
    command.args(environment.iter().map(|(name, value)| format!("{name}={value}")));
    command
}
