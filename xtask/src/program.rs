//! The `lapidary` command that other steps run.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::cargo;

/// How it is built.
#[derive(Clone, Copy)]
pub enum Build {
    /// Quickly.
    Dev,
    /// Optimised.
    Release,
    /// As the workspace's tests use it. Alone, its dependencies would have other features and be
    /// compiled again, which takes three minutes in CI.
    WithTests,
}

/// Builds the command and asks cargo where it lies.
pub fn build(root: &Path, build: Build) -> Result<PathBuf> {
    let mut command = cargo(root);
    match build {
        Build::Dev => command.args(["build", "--package", "lapidary-cli"]),
        Build::Release => command.args(["build", "--package", "lapidary-cli", "--release"]),
        Build::WithTests => command.args(["test", "--workspace", "--no-run"]),
    };
    command.args(["--quiet", "--message-format", "json-render-diagnostics"]);
    let output = command.stderr(Stdio::inherit()).output().context("cargo build")?;
    if !output.status.success() {
        bail!("{command:?} failed with {}", output.status);
    }
    let is_command = |message: &Value| {
        message["target"]["name"] == "lapidary"
            && message["target"]["kind"][0] == "bin"
            && message["profile"]["test"] == false
    };
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(is_command)
        .find_map(|message| message["executable"].as_str().map(PathBuf::from))
        .context("cargo built no executable `lapidary`")
}
