//! Compiles the kernels of the CUDA backend into the bundle that ships with it.
//!
//! nvcc comes from PyPI, by package name, into a virtual environment under `target/cuda`: no CUDA
//! toolkit and no GPU is needed. `LAPIDARY_NVCC` names another nvcc.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use anyhow::{Context, Result, bail};
use serde_json::json;

use crate::run;

/// What nvcc consists of. The compiler's version is that of the oldest driver that can load what it
/// makes.
const PACKAGES: [&str; 5] = [
    "nvidia-cuda-nvcc==13.0.88",
    "nvidia-nvvm==13.0.88",
    "nvidia-cuda-crt==13.0.88",
    "nvidia-cuda-runtime==13.0.96",
    "nvidia-cuda-cccl==13.0.85",
];
/// The GPUs that get machine code: Ampere, Ada, Hopper, Blackwell.
const MACHINES: [&str; 6] = ["80", "86", "89", "90a", "100", "120"];
/// What GPUs that are none of these compile for themselves.
const PTX: &str = "80";
const FLAGS: [&str; 6] =
    ["-std=c++17", "-O3", "-fatbin", "-Xptxas=-v", "-Xfatbin=-compress-all", "--threads=1"];
/// Files whose kernels may not spill registers: those that decode.
const NO_SPILLS: [&str; 1] = ["packed.cu"];

/// Compiles all kernels and writes the bundle.
pub fn build(root: &Path) -> Result<()> {
    let kernels = root.join("crates/backend-cuda/kernels");
    let (bytes, manifest) = compiled(root, &kernels)?;
    std::fs::write(kernels.join("bundle.bin"), &bytes)?;
    std::fs::write(kernels.join("bundle.json"), manifest)?;
    eprintln!("xtask: a bundle of {} KiB", bytes.len() >> 10);
    Ok(())
}

/// Compiles all kernels and fails if the bundle is another, where nvcc can be had.
pub fn check(root: &Path) -> Result<()> {
    if let Err(e) = nvcc(root) {
        eprintln!("xtask: SKIPPED compiling CUDA kernels: {e:#}");
        return Ok(());
    }
    let kernels = root.join("crates/backend-cuda/kernels");
    let (bytes, manifest) = compiled(root, &kernels)?;
    let same = std::fs::read(kernels.join("bundle.bin"))? == bytes
        && std::fs::read_to_string(kernels.join("bundle.json"))? == manifest;
    if !same {
        bail!(
            "the bundle of CUDA kernels is not what their sources compile to: run `cargo xtask cuda`"
        );
    }
    Ok(())
}

/// The bundle and its manifest.
fn compiled(root: &Path, kernels: &Path) -> Result<(Vec<u8>, String)> {
    let nvcc = nvcc(root)?;
    let sources = sources(kernels)?;
    // What a `static` function has in shared memory is named after the folder it was compiled in. Each run
    // has a folder of another name, so that `--check` finds such a function where it was written.
    let out = root.join(format!("target/cuda/run-{}", std::process::id()));
    std::fs::create_dir_all(&out)?;
    for name in sources.keys() {
        std::fs::copy(kernels.join(name), out.join(name))?;
    }
    let files: Vec<&String> = sources.keys().filter(|name| name.ends_with(".cu")).collect();
    let made: Vec<Result<Vec<u8>>> = thread::scope(|scope| {
        let compile = |file: &&String| {
            let (from, to) = (out.join(file), out.join(format!("{file}.fatbin")));
            let nvcc = &nvcc;
            scope.spawn(move || compile(nvcc, &from, &to))
        };
        let threads: Vec<_> = files.iter().map(compile).collect();
        threads
            .into_iter()
            .map(|t| t.join().unwrap_or_else(|_| bail!("a thread panicked")))
            .collect()
    });
    std::fs::remove_dir_all(&out)?;
    let (mut bytes, mut places) = (Vec::new(), BTreeMap::new());
    for (file, image) in files.iter().zip(made) {
        let image = image?;
        // A fat binary is read in words of 8 bytes.
        places.insert((*file).clone(), json!({ "start": bytes.len(), "bytes": image.len() }));
        bytes.extend(&image);
        bytes.resize(bytes.len().next_multiple_of(64), 0);
    }
    let manifest = json!({
        "flags": FLAGS,
        "machines": MACHINES,
        "ptx": PTX,
        "packages": PACKAGES,
        "files": places,
        "sources": sources,
        "hash": blake3::hash(&bytes).to_hex().to_string(),
    });
    Ok((bytes, format!("{}\n", serde_json::to_string_pretty(&manifest)?)))
}

/// The hash of every source.
fn sources(kernels: &Path) -> Result<BTreeMap<String, String>> {
    let mut sources = BTreeMap::new();
    for entry in std::fs::read_dir(kernels)? {
        let path = entry?.path();
        if path.extension().is_some_and(|e| e == "cu" || e == "cuh") {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            sources.insert(name, blake3::hash(&std::fs::read(&path)?).to_hex().to_string());
        }
    }
    Ok(sources)
}

fn compile(nvcc: &Path, from: &Path, to: &Path) -> Result<Vec<u8>> {
    let mut command = Command::new(nvcc);
    command.args(FLAGS);
    for machine in MACHINES {
        command.arg(format!("-gencode=arch=compute_{machine},code=sm_{machine}"));
    }
    command.arg(format!("-gencode=arch=compute_{PTX},code=compute_{PTX}"));
    let output = command.arg("-o").arg(to).arg(from).output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        bail!("{}:\n{said}", from.display());
    }
    let name = from.file_name().unwrap_or_default().to_string_lossy().into_owned();
    if NO_SPILLS.contains(&name.as_str()) {
        let spills =
            |line: &&str| line.contains("spill stores") && !line.contains(" 0 bytes spill stores");
        if let Some(line) = said.lines().find(spills) {
            bail!("{name} spills registers: {line}");
        }
    }
    std::fs::read(to).with_context(|| to.display().to_string())
}

/// The compiler, installed if need be.
fn nvcc(root: &Path) -> Result<PathBuf> {
    if let Some(named) = std::env::var_os("LAPIDARY_NVCC") {
        return Ok(named.into());
    }
    let venv = root.join("target/cuda/venv");
    if let Some(found) = installed(&venv) {
        return Ok(found);
    }
    std::fs::create_dir_all(root.join("target/cuda"))?;
    run(Command::new("python3").args(["-m", "venv"]).arg(&venv))?;
    run(Command::new(venv.join("bin/pip")).args(["install", "--quiet"]).args(PACKAGES))?;
    installed(&venv).context("the packages have no nvcc")
}

fn installed(venv: &Path) -> Option<PathBuf> {
    let pythons = std::fs::read_dir(venv.join("lib")).ok()?;
    let nvcc = |python: PathBuf| python.join("site-packages/nvidia/cu13/bin/nvcc");
    pythons.filter_map(|entry| Some(nvcc(entry.ok()?.path()))).find(|path| path.exists())
}
