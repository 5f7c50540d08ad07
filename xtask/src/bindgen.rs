//! The sources of the packages below `bindings/` that are written of `crates/ffi`, as it is built.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::program::{self, Build};
use crate::web::Web;
use crate::{cargo, run};

/// Kotlin's sources, below the root.
const KOTLIN: &str = "bindings/kotlin/src/main/generated";
/// A source of each kind that React Native has.
const REACT_NATIVE: [&str; 3] = ["cpp/generated", "node/generated", "src/generated"];
/// Swift's, by the names that UniFFI gives them. A package has its C header in a target of its own.
const SWIFT: [(&str, &str); 2] = [
    ("Lapidary.swift", "Sources/Lapidary/Generated/Lapidary.swift"),
    ("LapidaryFFI.h", "Sources/LapidaryFFI/LapidaryFFI.h"),
];

/// Writes Kotlin's and Swift's sources of the library as it is.
pub fn generate(root: &Path) -> Result<()> {
    uniffi(root, &program::library(root, Build::Dev)?)
}

/// Writes Kotlin's and Swift's sources if there are none.
pub fn fill_uniffi(root: &Path, library: &Path) -> Result<()> {
    let swift = SWIFT.map(|(_, place)| root.join("bindings/swift").join(place));
    match root.join(KOTLIN).is_dir() && swift.iter().all(|file| file.is_file()) {
        true => Ok(()),
        false => uniffi(root, library),
    }
}

/// Writes React Native's and Node's sources if there are none.
pub fn fill_react_native(root: &Path, library: &Path) -> Result<()> {
    let package = react_native_folder(root);
    match REACT_NATIVE.iter().all(|folder| package.join(folder).is_dir()) {
        true => Ok(()),
        false => react_native(root, library),
    }
}

fn uniffi(root: &Path, library: &Path) -> Result<()> {
    let write = |language: &str, out: &Path| {
        let mut command = generator(root, "bindings/bindgen/Cargo.toml");
        command.args(["generate", "--no-format", "--language", language, "--out-dir"]);
        run(command.arg(out).arg(library))
    };
    write("kotlin", &root.join(KOTLIN))?;
    let made = root.join("target/bindgen/swift");
    write("swift", &made)?;
    for (file, place) in SWIFT {
        let place = root.join("bindings/swift").join(place);
        std::fs::create_dir_all(place.parent().unwrap_or(&place))?;
        std::fs::copy(made.join(file), &place).with_context(|| place.display().to_string())?;
    }
    Ok(())
}

/// Writes React Native's and Node's sources of a library.
pub fn react_native(root: &Path, library: &Path) -> Result<()> {
    // The generator is made of what npm brings.
    Web::open_at(root, react_native_folder(root))?;
    let mut command = generator(root, "bindings/react-native/bindgen/Cargo.toml");
    run(command.arg(library).arg(react_native_folder(root)))
}

/// The package for React Native.
pub fn react_native_folder(root: &Path) -> PathBuf {
    root.join("bindings/react-native")
}

/// A crate outside the workspace, with a lock file of its own.
fn generator(root: &Path, manifest: &str) -> Command {
    let mut command = cargo(root);
    command.args(["run", "--quiet", "--locked", "--manifest-path", manifest, "--target-dir"]);
    command.arg(root.join("target/bindgen")).arg("--");
    command
}
