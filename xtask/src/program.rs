//! The `lapidary` command, and the library for other languages, that other steps run.

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
    let is_command = |message: &Value| {
        message["target"]["name"] == "lapidary"
            && message["target"]["kind"][0] == "bin"
            && message["profile"]["test"] == false
    };
    built(root, build, "lapidary-cli", &[])?
        .iter()
        .filter(|message| is_command(message))
        .find_map(|message| message["executable"].as_str().map(PathBuf::from))
        .context("cargo built no executable `lapidary`")
}

/// Builds the shared library that other languages load, and asks cargo where it lies.
pub fn library(root: &Path, build: Build) -> Result<PathBuf> {
    shared(root, build, "lapidary-ffi", "lapidary_ffi")
}

/// Builds the shared library that Python loads, and asks cargo where it lies.
pub fn python_library(root: &Path, build: Build) -> Result<PathBuf> {
    shared(root, build, "lapidary-python", "lapidary_native")
}

fn shared(root: &Path, build: Build, package: &str, name: &str) -> Result<PathBuf> {
    let is_library =
        |message: &Value| message["target"]["name"] == name && message["profile"]["test"] == false;
    // Tests run on the CPU, so that alone it is built without the other backends.
    let messages = built(root, build, package, &["--no-default-features"])?;
    let files = messages.iter().filter(|message| is_library(message));
    files
        .flat_map(|message| message["filenames"].as_array().into_iter().flatten())
        .filter_map(|file| file.as_str().map(PathBuf::from))
        .find(|file| file.extension().is_some_and(|e| e == std::env::consts::DLL_EXTENSION))
        .with_context(|| format!("cargo built no shared library `{name}`"))
}

/// Builds a package, and tells what cargo says of what it built.
fn built(root: &Path, build: Build, package: &str, features: &[&str]) -> Result<Vec<Value>> {
    let mut command = cargo(root);
    match build {
        Build::Dev => command.args(["build", "--package", package]).args(features),
        Build::Release => command.args(["build", "--package", package, "--release"]).args(features),
        Build::WithTests => command.args(["test", "--workspace", "--no-run"]),
    };
    command.args(["--quiet", "--message-format", "json-render-diagnostics"]);
    let output = command.stderr(Stdio::inherit()).output().context("cargo build")?;
    if !output.status.success() {
        bail!("{command:?} failed with {}", output.status);
    }
    let lines = String::from_utf8_lossy(&output.stdout);
    Ok(lines.lines().filter_map(|line| serde_json::from_str(line).ok()).collect())
}
