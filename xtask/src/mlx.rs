//! Brings MLX here, so that the backend for it can be tested: on Linux MLX for the CPU, on a Mac MLX
//! for Metal.
//!
//! MLX comes from PyPI. The source of mlx-c, its interface for C, comes in the package of the crate
//! `mlx-sys`, and is compiled against the headers that come with MLX; its build script is not run.
//! Everything lies below `target/mlx`, and nothing that the project builds needs it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::thread;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::{cargo, python, run};

/// Tells the backend where its libraries are.
pub const PLACE_ENV: &str = "LAPIDARY_MLX";

const PACKAGE: &str =
    if cfg!(target_os = "macos") { "mlx-metal==0.32.2" } else { "mlx-cpu==0.32.2" };
/// The crate whose package holds mlx-c of the same version.
const SOURCE: (&str, &str) = ("mlx-sys", "0.7.0");
const LIBRARY: &str = if cfg!(target_os = "macos") { "libmlxc.dylib" } else { "libmlxc.so" };
/// GCC 12 has no `std::format`, which mlx-c uses in messages about files alone.
const SHIM: &str = "\
#pragma once
#if __has_include(<format>)
#include <format>
#else
#include <string>
namespace std {
template <class... A> inline string format(const char* text, const A&...) { return text; }
}
#endif
";

/// The folder with the libraries, made on first use.
pub fn fetch(root: &Path) -> Result<PathBuf> {
    let folder = root.join("target").join("mlx");
    std::fs::create_dir_all(&folder)?;
    let requirements = folder.join("requirements.txt");
    std::fs::write(&requirements, format!("{PACKAGE}\n"))?;
    let python = python::venv(root, "mlx/venv", &requirements)?;
    let package = package(&python).context("the package of MLX has no library")?;
    let library = package.join("lib").join(LIBRARY);
    // Written last, and removed with MLX itself.
    if !library.is_file() {
        let source = source(root, &folder)?;
        compile(&folder, &source, &package, &library)?;
    }
    Ok(package.join("lib"))
}

/// Brings MLX here and says how to use it.
pub fn build(root: &Path) -> Result<()> {
    let folder = fetch(root)?;
    println!("{PLACE_ENV}={}", folder.display());
    Ok(())
}

/// The folder of the Python package.
fn package(python: &Path) -> Option<PathBuf> {
    let lib = python.parent()?.parent()?.join("lib");
    let pythons = std::fs::read_dir(lib).ok()?;
    let package = |python: PathBuf| python.join("site-packages").join("mlx");
    let mut packages = pythons.filter_map(|entry| Some(package(entry.ok()?.path())));
    packages.find(|package| package.join("include").is_dir())
}

/// The folder of mlx-c's source, which cargo fetches as it fetches any dependency.
fn source(root: &Path, folder: &Path) -> Result<PathBuf> {
    let (name, version) = SOURCE;
    let project = folder.join("source");
    std::fs::create_dir_all(&project)?;
    let manifest = format!(
        "[package]\nname = \"source\"\nedition = \"2024\"\n[lib]\npath = \"lib.rs\"\n[workspace]\n\
         [dependencies]\n{name} = {{ version = \"={version}\", default-features = false }}\n"
    );
    std::fs::write(project.join("Cargo.toml"), manifest)?;
    std::fs::write(project.join("lib.rs"), "")?;
    let mut metadata = cargo(root);
    metadata.current_dir(&project).args(["metadata", "--quiet", "--format-version", "1"]);
    let output = metadata.output().context("cargo metadata")?;
    if !output.status.success() {
        bail!("{name} can't be fetched: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    let metadata: Value = serde_json::from_slice(&output.stdout)?;
    let packages = metadata["packages"].as_array().into_iter().flatten();
    let mut found = packages.filter(|package| package["name"] == name);
    let manifest = found.next().and_then(|package| package["manifest_path"].as_str());
    let source = manifest.and_then(|path| Some(Path::new(path).parent()?.join("src/mlx-c")));
    source.filter(|folder| folder.is_dir()).with_context(|| format!("{name} holds no mlx-c"))
}

/// Compiles mlx-c, one file on each core.
fn compile(folder: &Path, source: &Path, package: &Path, library: &Path) -> Result<()> {
    eprintln!("xtask: compiling mlx-c (once, a minute or so)");
    let objects = folder.join("objects");
    std::fs::create_dir_all(&objects)?;
    let shim = objects.join("format.h");
    std::fs::write(&shim, SHIM)?;
    let compiler = std::env::var_os("CXX").unwrap_or_else(|| "c++".into());
    let files = files(&source.join("mlx/c"))?;
    let rest = Mutex::new(files.iter());
    let next = || rest.lock().ok().and_then(|mut rest| rest.next());
    let object = |file: &Path| {
        let name = file.file_stem().unwrap_or_default();
        objects.join(name).with_extension("o")
    };
    let work = || -> Result<()> {
        while let Some(file) = next() {
            let mut command = Command::new(&compiler);
            command.args(["-std=c++20", "-O1", "-fPIC", "-w", "-include"]).arg(&shim);
            command.arg("-I").arg(source).arg("-I").arg(package.join("include"));
            run(command.arg("-c").arg(file).arg("-o").arg(object(file)))?;
        }
        Ok(())
    };
    let cores = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        let threads: Vec<_> = (0..cores.min(files.len())).map(|_| scope.spawn(work)).collect();
        threads
            .into_iter()
            .try_for_each(|t| t.join().unwrap_or_else(|_| bail!("a thread panicked")))
    })?;
    let mut link = Command::new(&compiler);
    link.arg("-shared");
    files.iter().for_each(|file| _ = link.arg(object(file)));
    link.arg("-L").arg(package.join("lib")).arg("-lmlx");
    let here = if cfg!(target_os = "macos") { "@loader_path" } else { "$ORIGIN" };
    let made = objects.join(LIBRARY);
    run(link.arg(format!("-Wl,-rpath,{here}")).arg("-o").arg(&made))?;
    std::fs::rename(&made, library).with_context(|| library.display().to_string())
}

/// The sources of a folder.
fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    let paths = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    Ok(paths.into_iter().filter(|path| path.extension().is_some_and(|e| e == "cpp")).collect())
}
