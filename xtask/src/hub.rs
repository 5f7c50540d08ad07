//! `huggingface_hub` as the judge of the cache that `lapidary-hub` writes.

use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::{cargo, python, run};

/// Says to the tests of `lapidary-hub` where there is a Python with `huggingface_hub`.
pub const PYTHON_ENV: &str = "LAPIDARY_HUB_PYTHON";

/// That Python, installed on first use.
pub fn prepare(root: &Path) -> Result<PathBuf> {
    let requirements = root.join("crates").join("hub").join("tests").join("requirements.txt");
    python::venv(root, "hub/venv", &requirements)
}

/// The tests of names and downloads, with the judge.
pub fn test(root: &Path) -> Result<()> {
    let mut tests = cargo(root);
    tests.args(["test", "--quiet", "--package", "lapidary-hub"]);
    run(tests.env(PYTHON_ENV, prepare(root)?))
}
