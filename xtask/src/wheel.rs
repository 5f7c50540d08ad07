//! The Python package: its wheel, and its tests against the wheel as it is installed.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::program::{self, Build};
use crate::{bindings, dist, python, run};

/// The versions of CPython that one wheel is for.
const VERSIONS: [&str; 4] = ["3.10", "3.11", "3.12", "3.13"];
/// The package's folder.
const PACKAGE: &str = "bindings/python";

/// Which Pythons are tested.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Pythons {
    /// The machine's own.
    Own,
    /// All that are found.
    All,
}

/// The package's tests, those of its types, and the first example of its page, with a wheel of the library
/// as cargo builds it.
pub fn test(root: &Path, build: Build, pythons: Pythons) -> Result<()> {
    if let Err(e) = prepare(root) {
        eprintln!("xtask: SKIPPED Python: {e:#}");
        return Ok(());
    }
    let wheel = pack(root, build)?;
    test_wheel(root, &wheel, &program::build(root, build)?, pythons)
}

/// The same with a wheel that is there.
pub fn test_given(root: &Path, wheel: &str) -> Result<()> {
    let wheel = Path::new(wheel).canonicalize().with_context(|| wheel.to_string())?;
    test_wheel(root, &wheel, &program::build(root, Build::Dev)?, Pythons::All)
}

/// Installs what the tests need beside the package.
pub fn prepare(root: &Path) -> Result<PathBuf> {
    let requirements = root.join(PACKAGE).join("tests").join("requirements.txt");
    python::venv(root, "python/venv", &requirements)
}

/// A wheel of the library as cargo builds it.
fn pack(root: &Path, build: Build) -> Result<PathBuf> {
    let library = program::python_library(root, build)?;
    let out = root.join("target").join("python").join("wheels");
    let mut pack = python::python3(root);
    pack.arg(root.join(PACKAGE).join("wheel.py")).arg(&library).arg(&out);
    let output = pack.output().with_context(|| format!("{pack:?}"))?;
    if !output.status.success() {
        bail!("{pack:?} says: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(PathBuf::from(String::from_utf8_lossy(&output.stdout).trim()))
}

fn test_wheel(root: &Path, wheel: &Path, command: &Path, pythons: Pythons) -> Result<()> {
    let own = prepare(root)?;
    let of = |python: &Path| -> Result<()> {
        install(python, wheel)?;
        let mut tests = pytest(root, python, "tests");
        run(tests.env("LAPIDARY_COMMAND", command))
    };
    of(&own)?;
    let mut mypy = Command::new(&own);
    mypy.current_dir(root.join(PACKAGE)).args(["-m", "mypy", "--cache-dir"]);
    mypy.arg(root.join("target").join("python").join("mypy"));
    run(mypy.args(["lapidary", "tests/typed.py"]))?;
    example(root, &own)?;
    if pythons == Pythons::Own {
        return Ok(());
    }
    for version in VERSIONS {
        let Some(python) = find(version) else {
            eprintln!("xtask: SKIPPED Python {version}: it is not installed");
            continue;
        };
        let requirements = root.join(PACKAGE).join("tests").join("requirements.txt");
        let name = format!("python/venv-{version}");
        let venv = python::venv_of(root, Command::new(python), &name, &requirements)?;
        eprintln!("xtask: Python {version}");
        of(&venv)?;
    }
    Ok(())
}

/// Puts the wheel in place of whatever was there.
fn install(python: &Path, wheel: &Path) -> Result<()> {
    let mut pip = python::pip(python);
    run(pip.args(["install", "--force-reinstall", "--no-deps", "--no-index"]).arg(wheel))
}

fn pytest(root: &Path, python: &Path, tests: &str) -> Command {
    let mut pytest = Command::new(python);
    // Not in the package's folder, where Python would find its sources instead of the wheel.
    pytest.current_dir(root.join(PACKAGE).join(tests)).args(["-m", "pytest", "-c"]);
    // Ray's have packages of their own; its folder would stand in the place of the library.
    let ray = ["--rootdir=.", "--ignore=ray", "."];
    pytest.arg(root.join(PACKAGE).join("pyproject.toml")).args(ray);
    pytest.env("PYTHONDONTWRITEBYTECODE", "1").env("PYTHONUTF8", "1").env("LAPIDARY_ROOT", root);
    pytest
}

/// Runs the first example of the page.
fn example(root: &Path, python: &Path) -> Result<()> {
    let page = root.join("docs").join("python.md");
    let file = root.join("target").join("python").join("example.py");
    std::fs::write(&file, bindings::first_example(&page, "python")?)?;
    let output = Command::new(python).arg(&file).output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() || !said.contains(bindings::EXAMPLE_WORDS) {
        let wrong = String::from_utf8_lossy(&output.stderr);
        bail!("the first example of {} says: {said}{wrong}", page.display());
    }
    Ok(())
}

/// A Python of this version: of pyenv, or on the path.
fn find(version: &str) -> Option<PathBuf> {
    let home = std::env::var_os("HOME").map(PathBuf::from);
    let versions = home.map(|home| home.join(".pyenv/versions"));
    let of_pyenv = versions.and_then(|folder| std::fs::read_dir(folder).ok());
    let begin = format!("{version}.");
    let mut found: Vec<PathBuf> = of_pyenv
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(&begin))
        .map(|entry| entry.path().join("bin").join(format!("python{version}")))
        .collect();
    found.push(PathBuf::from(format!("python{version}")));
    found.into_iter().find(|python| {
        let says = Command::new(python).args(["-c", "import venv"]).output();
        says.is_ok_and(|output| output.status.success())
    })
}

/// `lapidary.ray` on a cluster of this machine.
pub fn test_ray(root: &Path, build: Build) -> Result<()> {
    let wheel = pack(root, build)?;
    let requirements = root.join(PACKAGE).join("tests").join("ray-requirements.txt");
    let python = python::venv(root, "python/ray-venv", &requirements)?;
    install(&python, &wheel)?;
    run(pytest(root, &python, "tests/ray").env("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0"))
}

/// The wheel of a release, for Linux with the glibc that the command needs, packed by maturin.
pub fn release(root: &Path, target: &str, glibc: (u32, u32), out: &Path) -> Result<PathBuf> {
    let python = dist::zig(root)?;
    let mut build = Command::new(&python);
    build.current_dir(root.join(PACKAGE));
    dist::with_path(&mut build, &python)?;
    build.args(["-m", "maturin", "build", "--release", "--locked", "--zig", "--target", target]);
    build.args(["--compatibility", &format!("manylinux_{}_{}", glibc.0, glibc.1), "--out"]);
    run(build.arg(out))?;
    let wheels = std::fs::read_dir(out)?.flatten().map(|entry| entry.path());
    let wheel = wheels.filter(|path| path.extension().is_some_and(|e| e == "whl")).max();
    wheel.context("maturin built no wheel")
}
