//! What a release has for other languages: the library, the npm package, and the sources of the packages
//! for Kotlin and Swift, with what is generated.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::{bindgen, dist, react_native, run};

const LIBRARY: &str = "liblapidary_ffi.so";
/// What each package consists of, below `bindings/`.
const KOTLIN: [&str; 6] = [
    "README.md",
    "android.sh",
    "build.gradle.kts",
    "consumer-rules.pro",
    "settings.gradle.kts",
    "src",
];
const SWIFT: [&str; 5] = ["Package.swift", "README.md", "Sources", "Tests", "xcframework.sh"];

/// Makes them.
pub fn make(root: &Path, out: &Path, version: &str, target: &str) -> Result<()> {
    let library = dist::built(root, target, "lapidary-ffi", LIBRARY)?;
    dist::check_needs(&library)?;
    bindgen::fill_uniffi(root, &library)?;
    bindgen::fill_react_native(root, &library)?;
    let licences = ["LICENSE-APACHE", "LICENSE-MIT"].map(|file| root.join(file));
    let pack = |name: String, mut parts: Vec<PathBuf>| {
        parts.extend(licences.clone());
        dist::archive(root, out, &name, &parts)
    };
    let below = |folder: &str, parts: &[&str]| -> Vec<PathBuf> {
        parts.iter().map(|part| root.join("bindings").join(folder).join(part)).collect()
    };
    let system = format!("{}-linux", std::env::consts::ARCH);
    pack(format!("lapidary-ffi-{version}-{system}"), vec![library])?;
    pack(format!("lapidary-kotlin-{version}"), below("kotlin", &KOTLIN))?;
    pack(format!("lapidary-swift-{version}"), below("swift", &SWIFT))?;

    let package = react_native::prepare(root)?;
    let manifest = bindgen::react_native_folder(root).join("package.json");
    let manifest: Value = serde_json::from_slice(&std::fs::read(&manifest)?)?;
    let has = manifest["version"].as_str().context("the npm package has no version")?;
    if has != version {
        bail!("the npm package has version {has}, and the workspace {version}");
    }
    run(package.npm().args(["pack", "--loglevel=error", "--pack-destination"]).arg(out))
}
