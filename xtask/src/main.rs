//! `cargo xtask …`: what the project does to itself.

mod aarch64;
mod deny;
mod gpu;
mod packages;
mod real_model;
mod rooms;
mod tidy;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Instant;

use anyhow::{Context, Result, bail};

const HELP: &str = "\
cargo xtask COMMAND

  test        everything that CI checks: format, lints, rules, licences, tests, GPU, aarch64, real model
  gpu         the workspace, compiled for the systems that are not here
  aarch64     the CPU backend's NEON kernels, under an emulator where need be
  tidy        the project's own rules: which room knows which, sizes, unsafe, names
  size        lines of each crate
  first-run   fetch the real Gemma 3 270M and ask it something
  real-model  compare the real Gemma 3 270M with llama.cpp in full (slow)
";

fn main() -> ExitCode {
    let command = std::env::args().nth(1);
    let done = match command.as_deref() {
        Some("test") => test(),
        Some("gpu") => gpu::check(&root()),
        Some("aarch64") => aarch64::test(&root()),
        Some("tidy") => tidy::check(&root()).and_then(|()| rooms::check(&root())),
        Some("size") => tidy::sizes(&root()),
        Some("first-run") => real_model::first_run(&root()),
        Some("real-model") => real_model::compare(&root(), real_model::Extent::Full),
        _ => {
            eprint!("{HELP}");
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("xtask: {e:#}");
            ExitCode::FAILURE
        }
    }
}

fn test() -> Result<()> {
    let root = root();
    let start = Instant::now();
    step("format", || run(cargo(&root).args(["fmt", "--all", "--check"])))?;
    step("rules", || tidy::check(&root).and_then(|()| rooms::check(&root)))?;
    step("lints", || {
        run(cargo(&root).args(["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]))
    })?;
    step("dependencies", || deny::check(&root))?;
    gpu::prepare();
    // The weights come first: tests that can use the real model find it through the environment.
    let weights = real_model::fetch(&root);
    step("tests", || {
        let mut tests = cargo(&root);
        tests.args(["test", "--workspace", "--quiet"]);
        match &weights {
            Ok(path) => drop(tests.env(real_model::WEIGHTS_ENV, path)),
            Err(e) => eprintln!("xtask: SKIPPED what needs the real model: {e:#}"),
        }
        run(&mut tests)
    })?;
    step("GPU", || gpu::check(&root))?;
    step("aarch64", || aarch64::test(&root))?;
    if weights.is_ok() {
        step("real model", || real_model::compare(&root, real_model::Extent::Short))?;
    }
    eprintln!("xtask: all passed in {:.0} s", start.elapsed().as_secs_f64());
    Ok(())
}

fn step(name: &str, body: impl FnOnce() -> Result<()>) -> Result<()> {
    eprintln!("xtask: {name}");
    let start = Instant::now();
    body().with_context(|| name.to_string())?;
    eprintln!("xtask: {name} passed in {:.1} s", start.elapsed().as_secs_f64());
    Ok(())
}

/// The workspace's folder.
fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_path_buf()
}

fn cargo(root: &Path) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root);
    command
}

fn run(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("{command:?}"))?;
    if !status.success() {
        bail!("{command:?} failed with {status}");
    }
    Ok(())
}
