//! The Swift package's tests, and the first example of its page: with the Swift that is installed, or
//! else with Debian's in a system of its own below `target`, which takes root, 450 MB and minutes.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::bindings::{EXAMPLE_WORDS, first_example};
use crate::program::{self, Build};
use crate::{bindgen, debian, run};

/// What is copied beside the package: an image that tests show.
const IMAGE: &str = "pebble/heldout/images/drawing17.png";

/// Runs both.
pub fn test(root: &Path) -> Result<()> {
    let library = program::library(root, Build::Dev)?;
    bindgen::fill_uniffi(root, &library)?;
    let has_swift = Command::new("swift").arg("--version").output();
    let system = match has_swift.is_ok_and(|output| output.status.success()) {
        true => System { root: None },
        false => System { root: Some(debian::with(root, &[("swiftlang", "usr/bin/swift")])?) },
    };
    let work = match &system.root {
        Some(debian) => debian.join("work"),
        None => root.join("target").join("swift"),
    };
    stage(root, &library, &work)?;
    system.swift(&work, &["test"])?;
    let output = system.command(&work, &["run", "Example"]).output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() || !said.contains(EXAMPLE_WORDS) {
        let wrong = String::from_utf8_lossy(&output.stderr);
        bail!("the first example of docs/swift.md says: {said}{wrong}");
    }
    Ok(())
}

/// The package, the library and what tests read, in one folder.
fn stage(root: &Path, library: &Path, work: &Path) -> Result<()> {
    let package = work.join("package");
    for part in ["Package.swift", "Sources", "Tests"] {
        std::fs::create_dir_all(&package)?;
        let _ = std::fs::remove_dir_all(package.join(part));
        let part = root.join("bindings/swift").join(part);
        run(Command::new("cp").arg("-R").arg(part).arg(&package))?;
    }
    let put = |from: &Path, to: PathBuf| {
        std::fs::create_dir_all(to.parent().unwrap_or(work))?;
        std::fs::copy(from, &to).with_context(|| to.display().to_string())
    };
    let name = library.file_name().context("the library has no name")?;
    put(library, work.join("lib").join(name))?;
    put(&root.join(IMAGE), work.join(IMAGE))?;
    let example = package.join("Sources/Example");
    std::fs::create_dir_all(&example)?;
    let code = first_example(&root.join("docs/swift.md"), "swift")?;
    Ok(std::fs::write(example.join("main.swift"), code)?)
}

/// Where Swift is.
struct System {
    /// The folder that is its root, unless it is this system.
    root: Option<PathBuf>,
}

impl System {
    fn swift(&self, work: &Path, arguments: &[&str]) -> Result<()> {
        run(&mut self.command(work, arguments))
    }

    fn command(&self, work: &Path, arguments: &[&str]) -> Command {
        let (mut command, work) = match &self.root {
            Some(root) => {
                let work = Path::new("/work");
                let mut command = debian::command(root, "/work", &settings(work));
                command.arg("swift");
                (command, work.to_path_buf())
            }
            None => {
                let mut command = Command::new("swift");
                command.envs(settings(work));
                (command, work.to_path_buf())
            }
        };
        command.args(&arguments[..1]).arg("--package-path").arg(work.join("package"));
        command.arg("-Xlinker").arg(format!("-L{}", work.join("lib").display()));
        command.args(&arguments[1..]);
        command
    }
}

/// What the package and its tests read.
fn settings(work: &Path) -> [(&'static str, String); 5] {
    let lib = work.join("lib").display().to_string();
    [
        ("LD_LIBRARY_PATH", lib.clone()),
        ("DYLD_LIBRARY_PATH", lib),
        ("LAPIDARY_ROOT", work.display().to_string()),
        ("LAPIDARY_SHARED", "1".into()),
        ("LAPIDARY_EXAMPLE", "1".into()),
    ]
}
