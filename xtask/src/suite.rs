//! What CI checks, step by step, with the time that each step takes.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result};

use crate::program::Build;
use crate::{
    aarch64, bindings, cargo, clients, cuda, deny, faults, gpu, hub, mlx, react_native, real_model,
    rooms, run, systems, tidy, web, wheel,
};

/// Everything.
pub fn full(root: &Path) -> Result<()> {
    let mut steps = Steps::new();
    steps.step("format", || format(root))?;
    steps.step("rules", || rules(root))?;
    // Downloads need the network and lints the cores, so they go on side by side.
    let downloads = thread::spawn({
        let root = root.to_path_buf();
        move || prepare(&root)
    });
    steps.step("lints", || lints(root))?;
    steps.step("dependencies", || deny::check(root))?;
    let mut fetched = Fetched::default();
    steps.step("downloads, after lints", || {
        fetched = downloads.join().unwrap_or_default();
        Ok(())
    })?;
    steps.step("web page", || web::test(root))?;
    steps.step("tests: build", || run(cargo(root).args(ALL_TESTS).arg("--no-run")))?;
    steps.step("tests: run", || tests(root, &fetched))?;
    steps.step("web page, served", || web::test_served(root, Build::WithTests))?;
    steps.step("clients", || clients::test(root, fetched.weights.as_deref(), Build::WithTests))?;
    steps.step("Python", || wheel::test(root, Build::WithTests, wheel::Pythons::Own))?;
    steps.step("bindings: Kotlin", || bindings::test_kotlin(root, Build::WithTests))?;
    steps.step("bindings: React Native", || {
        react_native::test(root, Build::WithTests, react_native::Example::Jest)
    })?;
    steps.step("CUDA kernels", || cuda::check(root))?;
    steps.step("other systems", || systems::check(root))?;
    steps.step("aarch64", || aarch64::test(root))?;
    if fetched.weights.is_some() {
        steps.step("real model", || real_model::compare(root, real_model::Extent::Short))?;
    }
    steps.tell();
    Ok(())
}

/// What takes minutes: for while one works.
pub fn quick(root: &Path) -> Result<()> {
    let mut steps = Steps::new();
    steps.step("format", || format(root))?;
    steps.step("rules", || rules(root))?;
    steps.step("lints", || lints(root))?;
    steps.step("tests", || {
        let mut tests = cargo(root);
        // Of the whole workspace, so that what is built is what all tests use.
        tests.args(ALL_TESTS).args(["--exclude", "lapidary-backend-wgpu"]);
        run(tests.args(["--lib", "--test", "cpu", "--test", "reference"]))
    })?;
    steps.tell();
    Ok(())
}

/// The project's own rules.
pub fn rules(root: &Path) -> Result<()> {
    tidy::check(root).and_then(|()| rooms::check(root)).and_then(|()| faults::check(root))
}

fn format(root: &Path) -> Result<()> {
    run(cargo(root).args(["fmt", "--all", "--check"]))
}

fn lints(root: &Path) -> Result<()> {
    run(cargo(root).args(["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]))
}

/// What was downloaded for tests, as far as it can be had.
#[derive(Default)]
struct Fetched {
    /// The real model's file.
    weights: Option<PathBuf>,
    /// A Python with `huggingface_hub`.
    hub: Option<PathBuf>,
    /// The folder of MLX.
    mlx: Option<PathBuf>,
}

/// Installs and downloads what later steps need.
fn prepare(root: &Path) -> Fetched {
    gpu::prepare();
    if let Err(e) = web::prepare_browser() {
        eprintln!("xtask: no Chromium: {e:#}");
    }
    // What fails here fails again in its own step, which says so.
    _ = clients::prepare(root);
    _ = wheel::prepare(root);
    _ = bindings::prepare_kotlin(root);
    _ = react_native::prepare(root);
    aarch64::prepare();
    systems::prepare();
    let judge = hub::prepare(root);
    let judge = judge.inspect_err(|e| eprintln!("xtask: SKIPPED huggingface_hub: {e:#}"));
    let weights = real_model::fetch(root);
    if weights.is_ok() {
        real_model::prepare(root);
    }
    let skipped = |what: &str, e: &anyhow::Error| eprintln!("xtask: SKIPPED {what}: {e:#}");
    let weights = weights.inspect_err(|e| skipped("what needs the real model", e)).ok();
    let mlx = mlx::fetch(root).inspect_err(|e| skipped("tests of the MLX backend", e)).ok();
    Fetched { weights, hub: judge.ok(), mlx }
}

const ALL_TESTS: [&str; 3] = ["test", "--workspace", "--quiet"];

/// Tests with a harness that runs its cases in one process, since they share a device and kernels.
const SUITES: [&str; 10] =
    ["--test", "cpu", "--test", "cuda", "--test", "mlx", "--test", "reference", "--test", "wgpu"];

/// All tests. Those that can use the real model or MLX find them through the environment.
///
/// Where nextest is installed it runs what is not such a suite, so that both cores have tests of other
/// binaries when one binary comes to its end. To install it takes longer than it saves here.
fn tests(root: &Path, fetched: &Fetched) -> Result<()> {
    let with_fetched = |mut command: Command| {
        fetched.weights.as_ref().map(|path| command.env(real_model::WEIGHTS_ENV, path));
        fetched.mlx.as_ref().map(|folder| command.env(mlx::PLACE_ENV, folder));
        fetched.hub.as_ref().map(|path| command.env(hub::PYTHON_ENV, path));
        command
    };
    let has_nextest = cargo(root).args(["nextest", "--version"]).output();
    if !has_nextest.is_ok_and(|output| output.status.success()) {
        let mut all = with_fetched(cargo(root));
        return run(all.args(ALL_TESTS));
    }
    let mut rest = with_fetched(cargo(root));
    let suites = "package(=lapidary-conformance) & binary(/^(cpu|cuda|mlx|reference|wgpu)$/)";
    rest.args(["nextest", "run", "--workspace", "--no-fail-fast", "--status-level", "slow"]);
    run(rest.args(["--filterset", &format!("not ({suites})")]))?;
    run(with_fetched(cargo(root)).args(ALL_TESTS).args(SUITES))?;
    run(with_fetched(cargo(root)).args(ALL_TESTS).arg("--doc"))
}

/// Steps that were done, with their seconds.
struct Steps {
    start: Instant,
    done: Vec<(&'static str, f64)>,
}

impl Steps {
    fn new() -> Self {
        Steps { start: Instant::now(), done: Vec::new() }
    }

    fn step(&mut self, name: &'static str, body: impl FnOnce() -> Result<()>) -> Result<()> {
        eprintln!("xtask: {name}");
        let start = Instant::now();
        body().with_context(|| name.to_string())?;
        let seconds = start.elapsed().as_secs_f64();
        eprintln!("xtask: {name} passed in {seconds:.1} s");
        self.done.push((name, seconds));
        Ok(())
    }

    /// A table, and the sum.
    fn tell(&self) {
        for (name, seconds) in &self.done {
            eprintln!("xtask: {seconds:8.1} s  {name}");
        }
        eprintln!("xtask: all passed in {:.0} s", self.start.elapsed().as_secs_f64());
    }
}
