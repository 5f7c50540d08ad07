//! The hook over React Native's own JSI: the package's TypeScript and C++ in WebKitGTK's JavaScriptCore,
//! with a host of ours (`bindings/react-native/tests/jsi`). In a Debian that has this engine.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::program::{self, Build};
use crate::{bindgen, debian, react_native, run};

const PACKAGES: [(&str, &str); 2] = [
    ("g++", "usr/bin/g++"),
    ("libjavascriptcoregtk-4.1-dev", "usr/include/webkitgtk-4.1/JavaScriptCore/JavaScript.h"),
];
/// React Native's runtime for JavaScriptCore, and where it gives up on BigInt: two comments, where the
/// host has answers.
const RUNTIME: &str = "node_modules/react-native/ReactCommon/jsc/JSCRuntime.cpp";
const GIVES_UP: [&str; 2] = ["// WHAT ARE YOU\n", "// What are you?\n"];
const ANSWER: &str = "return bigInt(*this, value);\n";
/// What is copied into the other system: from the package, to a folder there.
const PARTS: [(&str, &str); 5] = [
    ("cpp", "cpp"),
    ("tests/jsi/host.cpp", "host.cpp"),
    ("node_modules/react-native/ReactCommon/callinvoker", "callinvoker"),
    ("node_modules/react-native/ReactCommon/jsi", "jsi"),
    ("node_modules/uniffi-bindgen-react-native/cpp/includes", "uniffi"),
];
const JSC_HEADER: &str = "node_modules/react-native/ReactCommon/jsc/JSCRuntime.h";
/// An image that pebble knows.
const IMAGE: &str = "pebble/heldout/images/drawing17.png";
/// The folder there.
const PLACE: &str = "/work/jsi";
const COMPILE: &str = "g++ -std=c++20 -O1 -DNDEBUG -I. -Icpp -Icpp/generated -Icallinvoker -Ijsi -Ijsc \
                       -Iuniffi -I/usr/include/webkitgtk-4.1 host.cpp cpp/*.cpp cpp/generated/*.cpp \
                       jsi/jsi/jsi.cpp jsi/jsi/jsilib-posix.cpp -L. -llapidary_ffi -Wl,-rpath,/work/jsi \
                       -ljavascriptcoregtk-4.1 -lpthread -o host";

/// Compiles and runs it.
pub fn test(root: &Path) -> Result<()> {
    let package = react_native::prepare(root)?;
    let library = program::library(root, Build::Dev)?;
    bindgen::fill_react_native(root, &library)?;
    let debian = debian::with(root, &PACKAGES)?;
    let work = debian.join(PLACE.trim_start_matches('/'));
    let _ = std::fs::remove_dir_all(&work);
    std::fs::create_dir_all(work.join("jsc/jsc"))?;
    let folder = bindgen::react_native_folder(root);
    for (from, to) in PARTS {
        run(Command::new("cp").arg("-R").arg(folder.join(from)).arg(work.join(to)))?;
    }
    std::fs::copy(folder.join(JSC_HEADER), work.join("JSCRuntime.h"))?;
    std::fs::write(work.join("JSCRuntime.cpp"), runtime(&folder.join(RUNTIME))?)?;
    let name = library.file_name().context("the library has no name")?;
    std::fs::copy(&library, work.join(name))?;
    std::fs::copy(root.join(IMAGE), work.join("image.png"))?;

    let mut bundle = package.command();
    bundle.arg("scripts/jsi.mjs").arg(work.join("scenario.js"));
    run(bundle.arg(format!("{PLACE}/image.png")))?;

    run(debian::command(&debian, PLACE, &[]).args(["sh", "-c", COMPILE]))?;
    run(debian::command(&debian, PLACE, &[]).args(["./host", "scenario.js"]))
}

/// React Native's runtime, with the host asked where it has no answer.
fn runtime(file: &Path) -> Result<String> {
    let mut text = std::fs::read_to_string(file).with_context(|| file.display().to_string())?;
    for place in GIVES_UP {
        if text.matches(place).count() != 1 {
            bail!("{} is another than we know: it has no place `{}`", file.display(), place.trim());
        }
        text = text.replace(place, ANSWER);
    }
    Ok(text)
}
