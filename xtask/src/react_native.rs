//! The package for React Native: its types, the hook and the example under jest with React Native's
//! preset, and the example in Chromium. The engine is the real one, through Node's flavour of the
//! bindings.

use std::path::Path;

use anyhow::Result;

use crate::program::{self, Build};
use crate::web::{self, Web};
use crate::{bindgen, run};

/// Says to the tests where the library is.
const LIBRARY_ENV: &str = "LAPIDARY_FFI";

/// Where the example is tried.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Example {
    /// Under jest.
    Jest,
    /// In Chromium, too: stopping an answer there is a race with a model that is soon done.
    Browser,
}

/// Types, the hook and the example. What npm can't install here is said loudly, and nothing is tested.
pub fn test(root: &Path, build: Build, example: Example) -> Result<()> {
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        eprintln!(
            "xtask: SKIPPED React Native: what calls a library from Node is for x86_64 Linux"
        );
        return Ok(());
    }
    let package = match prepare(root) {
        Ok(package) => package,
        Err(e) => {
            eprintln!("xtask: SKIPPED React Native: {e:#}");
            return Ok(());
        }
    };
    let library = program::library(root, build)?;
    bindgen::fill_react_native(root, &library)?;
    let node = |script: &str, arguments: &[&str]| -> Result<()> {
        let mut command = package.command();
        command.arg(script).args(arguments).env(LIBRARY_ENV, &library);
        run(&mut command)
    };
    node("node_modules/typescript/bin/tsc", &["--noEmit"])?;
    // Engines have threads, which jest waits for.
    node("node_modules/jest/bin/jest.js", &["--forceExit"])?;
    node("scripts/example.mjs", &["--bundle"])?;
    if example == Example::Jest {
        return Ok(());
    }
    if let Err(e) = web::prepare_browser() {
        eprintln!("xtask: SKIPPED the example in Chromium: {e:#}");
        return Ok(());
    }
    node("node_modules/@playwright/test/cli.js", &["test"])
}

/// Brings what npm has for it.
pub fn prepare(root: &Path) -> Result<Web> {
    Web::open_at(root, bindgen::react_native_folder(root))
}

/// What an event costs on its way from the library, in Node.
pub fn time_events(root: &Path) -> Result<()> {
    let package = prepare(root)?;
    let library = program::library(root, Build::Release)?;
    bindgen::fill_react_native(root, &library)?;
    let mut events = package.command();
    run(events.arg("scripts/events.mjs").env(LIBRARY_ENV, &library))
}

/// Writes anew what is generated: the sources, and the native modules.
pub fn generate(root: &Path) -> Result<()> {
    bindgen::react_native(root, &program::library(root, Build::Dev)?)?;
    let mut ubrn = prepare(root)?.command();
    ubrn.arg("node_modules/uniffi-bindgen-react-native/bin/cli.cjs");
    ubrn.args(["generate", "jsi", "turbo-module", "--config", "ubrn.config.yaml", "lapidary"]);
    // Where its command is compiled.
    run(ubrn.env("CARGO_TARGET_DIR", root.join("target/bindgen")))
}
