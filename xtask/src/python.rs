//! Python, and what is installed for it.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::run;

/// The machine's Python, in the workspace's folder.
pub fn python3(root: &Path) -> Command {
    let mut command = Command::new("python3");
    command.current_dir(root);
    command
}

/// The Python of a virtual environment below `target` that holds what a file of requirements names,
/// made on first use.
pub fn venv(root: &Path, name: &str, requirements: &Path) -> Result<PathBuf> {
    venv_of(root, python3(root), name, requirements)
}

/// The same of another Python than the machine's.
pub fn venv_of(root: &Path, mut of: Command, name: &str, requirements: &Path) -> Result<PathBuf> {
    let wanted = std::fs::read_to_string(requirements)
        .with_context(|| requirements.display().to_string())?;
    let venv = root.join("target").join(name);
    let python = venv.join(if cfg!(windows) { "Scripts/python.exe" } else { "bin/python" });
    // Written last: says that the installation was finished, and with which versions.
    let stamp = venv.join("installed.txt");
    if python.is_file()
        && std::fs::read_to_string(&stamp).is_ok_and(|installed| installed == wanted)
    {
        return Ok(python);
    }
    eprintln!("xtask: installing Python packages into {} (once)", venv.display());
    run(of.args(["-m", "venv", "--clear"]).arg(&venv))
        .context("no virtual environment (on Debian it needs the package python3-venv)")?;
    run(pip(&python).arg("install").arg("-r").arg(requirements))
        .with_context(|| format!("{} can't be installed from PyPI", requirements.display()))?;
    std::fs::write(&stamp, wanted).with_context(|| stamp.display().to_string())?;
    Ok(python)
}

/// pip with few retries: a machine without network should hear so soon.
pub fn pip(python: &Path) -> Command {
    let mut pip = Command::new(python);
    pip.args(["-m", "pip", "--quiet", "--disable-pip-version-check", "--retries", "1"]);
    pip
}
