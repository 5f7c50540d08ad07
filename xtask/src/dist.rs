//! What a release is made of: the command for old and new Linux, packages for other languages, checksums
//! and a list of what is inside.
//!
//! zig, which comes from PyPI, links against the glibc of 2018, so that what is built on any machine runs
//! on all that are younger. Nothing is published here.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::{cargo, dist_bindings, python, run, wheel};

/// The glibc that the command needs: that of Debian 10, RHEL 8 and Ubuntu 18.10.
const GLIBC: (u32, u32) = (2, 28);
/// Libraries of the system that the command may need. Drivers are loaded where they are found.
const SYSTEM: [&str; 8] = [
    "libc.so.6",
    "libm.so.6",
    "libdl.so.2",
    "libpthread.so.0",
    "librt.so.1",
    "libgcc_s.so.1",
    "ld-linux-x86-64.so.2",
    "ld-linux-aarch64.so.1",
];
/// Files that lie beside the command.
const BESIDE: [&str; 6] = [
    "LICENSE-APACHE",
    "LICENSE-MIT",
    "README.md",
    "CHANGELOG.md",
    "dist/lapidary.service",
    "docs/serve.md",
];

/// Makes everything that can be made here, in `target/dist`.
pub fn make(root: &Path) -> Result<()> {
    let out = root.join("target").join("dist");
    if out.exists() {
        std::fs::remove_dir_all(&out).with_context(|| out.display().to_string())?;
    }
    std::fs::create_dir_all(&out)?;
    let version = version(root)?;
    let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);

    let command = build_command(root, &target)?;
    check_needs(&command)?;
    let name = format!("lapidary-{version}-{}-linux", std::env::consts::ARCH);
    let inside = std::iter::once(command.clone()).chain(BESIDE.map(|file| root.join(file)));
    archive(root, &out, &name, &inside.collect::<Vec<_>>())?;
    wheel::release(root, &target, GLIBC, &out)?;
    packages(root, &out)?;
    dist_bindings::make(root, &out, &version, &target)?;
    let bill = bill(root, &version, &target)?;
    let mut text = serde_json::to_string_pretty(&bill)?;
    text.push('\n');
    std::fs::write(out.join(format!("lapidary-{version}.cdx.json")), text)?;
    checksums(&out)?;
    eprintln!("xtask: {}", out.display());
    Ok(())
}

/// The most bytes that a registry takes for one package.
const MAX_PACKAGE: u64 = 10 << 20;

/// Packs every crate as a registry would get it.
fn packages(root: &Path, out: &Path) -> Result<()> {
    let folder = root.join("target").join("package");
    if folder.exists() {
        std::fs::remove_dir_all(&folder)?;
    }
    run(cargo(root).args(["package", "--workspace", "--locked", "--no-verify", "--quiet"]))?;
    let to = out.join("crates");
    std::fs::create_dir_all(&to)?;
    for entry in std::fs::read_dir(&folder)? {
        let path = entry?.path();
        if path.extension().is_none_or(|e| e != "crate") {
            continue;
        }
        let bytes = std::fs::metadata(&path)?.len();
        if bytes > MAX_PACKAGE {
            bail!("{} has {bytes} bytes; a registry takes {MAX_PACKAGE}", path.display());
        }
        std::fs::copy(&path, to.join(path.file_name().context("a file has a name")?))?;
    }
    Ok(())
}

/// The Python that has zig, and what makes cargo use it.
pub fn zig(root: &Path) -> Result<PathBuf> {
    python::venv(root, "dist-venv", &root.join("dist").join("requirements.txt"))
}

/// `PATH` with the programs of a virtual environment before all others.
pub fn with_path(command: &mut Command, python: &Path) -> Result<()> {
    let bin = python.parent().context("a Python lies in a folder")?;
    let path = std::env::var_os("PATH").unwrap_or_default();
    let paths = [bin.to_path_buf()].into_iter().chain(std::env::split_paths(&path));
    command.env("PATH", std::env::join_paths(paths)?);
    Ok(())
}

/// The workspace's version.
fn version(root: &Path) -> Result<String> {
    let metadata = metadata(root, &["--no-deps"])?;
    let packages = metadata["packages"].as_array().context("cargo metadata has no packages")?;
    let command = packages.iter().find(|package| package["name"] == "lapidary-cli");
    let version = command.and_then(|package| package["version"].as_str());
    Ok(version.context("there is no lapidary-cli")?.to_string())
}

fn build_command(root: &Path, target: &str) -> Result<PathBuf> {
    built(root, target, "lapidary-cli", "lapidary")
}

/// Builds a package against the old glibc, and gives the file of that name.
pub fn built(root: &Path, target: &str, package: &str, file: &str) -> Result<PathBuf> {
    let python = zig(root)?;
    let mut build = Command::new("cargo-zigbuild");
    build.current_dir(root).env("CARGO_TARGET_DIR", root.join("target"));
    with_path(&mut build, &python)?;
    let glibc = format!("{target}.{}.{}", GLIBC.0, GLIBC.1);
    run(build.args(["zigbuild", "--release", "--locked", "--package", package]).args([
        "--target",
        &glibc,
        "--config",
        "profile.release.strip=\"symbols\"",
    ]))?;
    let built = root.join("target").join(target).join("release").join(file);
    if !built.is_file() {
        bail!("cargo built no {}", built.display());
    }
    Ok(built)
}

/// Refuses a command or a library that would not start on the systems that it is for.
pub fn check_needs(command: &Path) -> Result<()> {
    let output = Command::new("readelf").args(["--wide", "-d", "-V"]).arg(command).output();
    let output = output.context("readelf (of the package binutils)")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let needs = Needs::read(&text);
    if needs.libraries.is_empty() {
        bail!("readelf finds no libraries in {}", command.display());
    }
    let foreign: Vec<&String> =
        needs.libraries.iter().filter(|name| !SYSTEM.contains(&name.as_str())).collect();
    if !foreign.is_empty() {
        bail!("{} needs {foreign:?}, which not every system has", command.display());
    }
    if needs.glibc > GLIBC {
        let (major, minor) = needs.glibc;
        bail!("{} needs glibc {major}.{minor}, newer than {GLIBC:?}", command.display());
    }
    eprintln!("xtask: needs glibc {}.{} and {:?}", needs.glibc.0, needs.glibc.1, needs.libraries);
    Ok(())
}

/// What an ELF file asks of its system.
#[derive(Debug, PartialEq, Eq)]
struct Needs {
    libraries: BTreeSet<String>,
    glibc: (u32, u32),
}

impl Needs {
    /// Reads what `readelf -d -V` prints.
    fn read(text: &str) -> Self {
        let mut needs = Needs { libraries: BTreeSet::new(), glibc: (0, 0) };
        for line in text.lines() {
            if line.contains("(NEEDED)")
                && let Some((_, name)) = line.split_once('[')
                && let Some((name, _)) = name.split_once(']')
            {
                needs.libraries.insert(name.to_string());
            }
            for version in line.split("GLIBC_").skip(1) {
                let mut parts = version.split(|c: char| !c.is_ascii_digit());
                let mut next = || parts.next().and_then(|part| part.parse().ok());
                if let (Some(major), Some(minor)) = (next(), next()) {
                    needs.glibc = needs.glibc.max((major, minor));
                }
            }
        }
        needs
    }
}

/// Packs files and folders into one. The same commit gives the same bytes.
pub fn archive(root: &Path, out: &Path, name: &str, parts: &[PathBuf]) -> Result<()> {
    let folder = out.join(name);
    std::fs::create_dir_all(&folder)?;
    run(Command::new("cp").arg("-R").args(parts).arg(&folder))?;
    let date = Command::new("git")
        .current_dir(root)
        .args(["log", "-1", "--format=%ct"])
        .output()
        .context("git log")?;
    let date = String::from_utf8_lossy(&date.stdout).trim().to_string();
    let mut tar = Command::new("tar");
    tar.current_dir(out).env("GZIP", "-9n").args(["--sort=name", "--owner=0", "--group=0"]);
    tar.args(["--numeric-owner", &format!("--mtime=@{date}"), "-czf"]);
    run(tar.arg(format!("{name}.tar.gz")).arg(name))?;
    std::fs::remove_dir_all(&folder)?;
    Ok(())
}

/// What the command is made of, in CycloneDX's words.
fn bill(root: &Path, version: &str, target: &str) -> Result<Value> {
    let metadata = metadata(root, &["--filter-platform", target])?;
    let sums = lock_sums(&std::fs::read_to_string(root.join("Cargo.lock"))?);
    let packages: BTreeMap<&str, &Value> = array(&metadata["packages"])
        .filter_map(|package| Some((package["id"].as_str()?, package)))
        .collect();
    let nodes: BTreeMap<&str, &Value> = array(&metadata["resolve"]["nodes"])
        .filter_map(|node| Some((node["id"].as_str()?, node)))
        .collect();
    let top = packages.iter().find(|(_, package)| package["name"] == "lapidary-cli");
    let (top, _) = top.context("there is no lapidary-cli")?;
    // Everything that is linked in; what builds and tests it is not inside.
    let (mut found, mut left) = (BTreeSet::new(), vec![*top]);
    while let Some(id) = left.pop() {
        if found.insert(id)
            && let Some(node) = nodes.get(id)
        {
            left.extend(linked(node));
        }
    }
    let components: Vec<Value> = found
        .iter()
        .filter(|id| *id != top)
        .filter_map(|id| Some(component(packages.get(id)?, &sums)))
        .collect();
    let dependencies: Vec<Value> = found
        .iter()
        .filter_map(|id| {
            let on: Vec<String> =
                linked(nodes.get(id)?).filter_map(|id| Some(purl(packages.get(id)?))).collect();
            Some(json!({ "ref": purl(packages.get(id)?), "dependsOn": on }))
        })
        .collect();
    Ok(json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "name": "lapidary",
                "version": version,
                "bom-ref": purl(packages.get(top).context("it has a package")?),
            },
        },
        "components": components,
        "dependencies": dependencies,
    }))
}

/// The packages that one links.
fn linked<'a>(node: &'a Value) -> impl Iterator<Item = &'a str> {
    let is_normal = |dep: &&'a Value| array(&dep["dep_kinds"]).any(|kind| kind["kind"].is_null());
    array(&node["deps"]).filter(is_normal).filter_map(|dep| dep["pkg"].as_str())
}

fn component(package: &Value, sums: &BTreeMap<(String, String), String>) -> Value {
    let text = |key: &str| package[key].as_str().unwrap_or_default().to_string();
    let mut component = json!({
        "type": "library",
        "bom-ref": purl(package),
        "name": text("name"),
        "version": text("version"),
        "purl": purl(package),
    });
    if let Some(licence) = package["license"].as_str() {
        // Cargo's old way to write "or".
        let expression = licence.replace('/', " OR ");
        component["licenses"] = json!([{ "expression": expression }]);
    }
    if let Some(sum) = sums.get(&(text("name"), text("version"))) {
        component["hashes"] = json!([{ "alg": "SHA-256", "content": sum }]);
    }
    component
}

fn purl(package: &Value) -> String {
    let text = |key: &str| package[key].as_str().unwrap_or_default();
    format!("pkg:cargo/{}@{}", text("name"), text("version"))
}

/// Name and version of each package of a lock file, with its checksum.
fn lock_sums(lock: &str) -> BTreeMap<(String, String), String> {
    let quoted = |line: &str, key: &str| {
        let value = line.strip_prefix(key)?.strip_prefix(" = \"")?;
        Some(value.strip_suffix('"')?.to_string())
    };
    let mut sums = BTreeMap::new();
    for block in lock.split("[[package]]").skip(1) {
        let find = |key: &str| block.lines().find_map(|line| quoted(line, key));
        if let (Some(name), Some(version), Some(sum)) =
            (find("name"), find("version"), find("checksum"))
        {
            sums.insert((name, version), sum);
        }
    }
    sums
}

/// Writes the checksum of every file into one more.
fn checksums(out: &Path) -> Result<()> {
    let mut names = files(out, out)?;
    names.sort();
    let output = Command::new("sha256sum").current_dir(out).args(&names).output();
    let output = output.context("sha256sum")?;
    if !output.status.success() {
        bail!("sha256sum failed with {}", output.status);
    }
    std::fs::write(out.join("SHA256SUMS"), output.stdout)?;
    Ok(())
}

/// All files below a folder, by their path from the top.
fn files(top: &Path, folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = vec![];
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            found.extend(files(top, &path)?);
        } else {
            found.push(path.strip_prefix(top)?.to_path_buf());
        }
    }
    Ok(found)
}

fn array(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn metadata(root: &Path, arguments: &[&str]) -> Result<Value> {
    let output = cargo(root)
        .args(["metadata", "--locked", "--format-version", "1"])
        .args(arguments)
        .output()
        .context("cargo metadata")?;
    if !output.status.success() {
        bail!("cargo metadata failed: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_command_needs_is_read() {
        let text = " 0x0000000000000001 (NEEDED)             Shared library: [libm.so.6]\n\
                    0x0000000000000001 (NEEDED)             Shared library: [libz.so.1]\n\
                    002:   1 (*global*)      2 (GLIBC_2.2.5)   3 (GLIBC_2.17)\n\
                    0x0060:   Name: GLIBC_2.9  Flags: none  Version: 2\n";
        let needs = Needs::read(text);
        assert_eq!(needs.glibc, (2, 17));
        assert_eq!(needs.libraries.into_iter().collect::<Vec<_>>(), ["libm.so.6", "libz.so.1"]);
    }

    #[test]
    fn checksums_of_a_lock_file_are_read() {
        let lock = "version = 4\n\n[[package]]\nname = \"a\"\nversion = \"1.0.0\"\nsource = \"x\"\n\
                    checksum = \"00ff\"\n\n[[package]]\nname = \"ours\"\nversion = \"0.1.0\"\n";
        let sums = lock_sums(lock);
        assert_eq!(sums.len(), 1);
        assert_eq!(sums[&("a".into(), "1.0.0".into())], "00ff");
    }

    #[test]
    fn the_bill_lists_what_is_linked_and_nothing_else() {
        let root = crate::root();
        let bill = bill(&root, "0.1.0", "x86_64-unknown-linux-gnu").unwrap();
        let names: BTreeSet<&str> =
            array(&bill["components"]).filter_map(|c| c["name"].as_str()).collect();
        for inside in ["lapidary", "lapidary-backend-cpu", "safetensors", "serde_json"] {
            assert!(names.contains(inside), "{inside}");
        }
        for outside in ["lapidary-conformance", "proptest", "windows-sys"] {
            assert!(!names.contains(outside), "{outside}");
        }
        let foreign = |c: &&Value| !c["name"].as_str().is_some_and(|n| n.starts_with("lapidary"));
        for component in array(&bill["components"]).filter(foreign) {
            assert!(
                component["licenses"].is_array() && component["hashes"].is_array(),
                "{component}"
            );
        }
    }
}
