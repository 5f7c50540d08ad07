//! The real Gemma 3 270M: fetching it, asking it something, comparing it with llama.cpp.
//!
//! The weights are under the Gemma Terms of Use. They are downloaded to the machine that tests, and
//! never committed.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::program::{self, Build};
use crate::python::python3;
use crate::{cargo, python, run};

/// Names the GGUF if it is already somewhere on this machine.
pub const WEIGHTS_ENV: &str = "LAPIDARY_GEMMA3_270M";
/// Names the folder of test data that is not part of the repository.
const SHARED_DATA_ENV: &str = "LAPIDARY_SHARED_DATA";

/// How much is compared.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// All that the script knows, with the optimised binary.
    Full,
    /// What fits into every test run.
    Short,
}

/// Compares our token ids, greedy texts, logits and perplexity with llama.cpp's.
pub fn compare(root: &Path, extent: Extent) -> Result<()> {
    let weights = fetch(root)?;
    let python = match llama_python(root) {
        Ok(python) => python,
        Err(e) if extent == Extent::Short => {
            eprintln!("xtask: SKIPPED the comparison with llama.cpp: {e:#}");
            return Ok(());
        }
        Err(e) => return Err(e),
    };
    let build = if extent == Extent::Full { Build::Release } else { Build::WithTests };
    let binary = program::build(root, build)?;
    let mut script = Command::new(python);
    script.current_dir(root).arg("testdata/compare_llama.py");
    script.arg("--lapidary").arg(binary).arg("--model").arg(weights);
    match shared_text(root) {
        Ok(text) => drop(script.arg("--text").arg(text)),
        Err(e) => eprintln!("xtask: SKIPPED perplexity: {e:#}"),
    }
    if extent == Extent::Short {
        script.arg("--short");
    }
    run(&mut script)
}

/// Fetches the model if need be and lets it continue a sentence.
pub fn first_run(root: &Path) -> Result<()> {
    let weights = fetch(root)?;
    let mut command = cargo(root);
    command.args(["run", "--release", "-p", "lapidary-cli", "--", "run"]).arg(weights);
    command.args(["--raw", "The capital of France is", "--max-tokens", "32", "--temperature", "0"]);
    run(&mut command)
}

/// The path of the GGUF where it is there already.
pub fn fetched(root: &Path) -> Option<PathBuf> {
    let named = std::env::var_os(WEIGHTS_ENV).map(PathBuf::from);
    let kept = root.join("weights").join("gemma-3-270m.gguf");
    named.into_iter().chain([kept]).find(|path| path.is_file())
}

/// The path of the GGUF, which is downloaded (241 MB, once) where it is not there.
pub fn fetch(root: &Path) -> Result<PathBuf> {
    if let Some(named) = std::env::var_os(WEIGHTS_ENV).map(PathBuf::from) {
        if named.is_file() {
            return Ok(named);
        }
        eprintln!("xtask: {WEIGHTS_ENV} names {}, which is not a file", named.display());
    }
    let kept = root.join("weights").join("gemma-3-270m.gguf");
    // The script gives the file its name only when its checksum is right.
    if !kept.is_file() {
        eprintln!("xtask: fetching Gemma 3 270M (241 MB, once)");
        run(python3(root).arg("testdata/fetch_270m.py").arg(&kept))
            .with_context(|| format!("the real model can't be fetched; set {WEIGHTS_ENV}"))?;
    }
    Ok(kept)
}

/// Installs llama.cpp, so that a comparison later finds it there.
pub fn prepare(root: &Path) {
    _ = llama_python(root);
}

/// The Python of a virtual environment that holds llama.cpp, made on first use.
fn llama_python(root: &Path) -> Result<PathBuf> {
    python::venv(root, "llama-venv", &root.join("testdata").join("requirements-llama.txt"))
}

fn shared_text(root: &Path) -> Result<PathBuf> {
    let folder = std::env::var_os(SHARED_DATA_ENV)
        .map_or_else(|| root.join("..").join("shared").join("data"), PathBuf::from);
    let text = folder.join("wikitext-2-test.txt");
    if !text.is_file() {
        bail!("{} is not there; {SHARED_DATA_ENV} can name its folder", text.display());
    }
    Ok(text)
}
