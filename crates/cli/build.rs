//! What a build says of itself: `lapidary --version --verbose`, and `build_commit` of `bench --json`.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-env-changed=LAPIDARY_COMMIT");
    let commit = std::env::var("LAPIDARY_COMMIT").ok().filter(|commit| !commit.is_empty());
    let commit = commit.or_else(of_package).or_else(of_git).unwrap_or_default();
    println!("cargo::rustc-env=LAPIDARY_BUILD_COMMIT={commit}");
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let compiler = said(Command::new(rustc).arg("--version")).unwrap_or_default();
    println!("cargo::rustc-env=LAPIDARY_BUILD_RUSTC={compiler}");
    for name in ["TARGET", "PROFILE"] {
        let value = std::env::var(name).unwrap_or_default();
        println!("cargo::rustc-env=LAPIDARY_BUILD_{name}={value}");
    }
}

/// What a published package was made of.
fn of_package() -> Option<String> {
    let text = std::fs::read_to_string(".cargo_vcs_info.json").ok()?;
    let (_, rest) = text.split_once("\"sha1\"")?;
    rest.split('"').nth(1).map(short)
}

/// What is checked out here.
fn of_git() -> Option<String> {
    let git = |words: &[&str]| said(Command::new("git").args(words));
    // A folder of another project's may hold this one.
    if !Path::new(&git(&["rev-parse", "--show-toplevel"])?).join("crates/cli/build.rs").exists() {
        return None;
    }
    // It grows whenever something is committed or checked out.
    let log = git(&["rev-parse", "--git-path", "logs/HEAD"])?;
    if Path::new(&log).exists() {
        println!("cargo::rerun-if-changed={log}");
    }
    println!("cargo::rerun-if-changed=build.rs");
    git(&["rev-parse", "HEAD"]).map(|commit| short(&commit))
}

fn short(commit: &str) -> String {
    commit.chars().take(9).collect()
}

fn said(command: &mut Command) -> Option<String> {
    let output = command.output().ok().filter(|output| output.status.success())?;
    let text = String::from_utf8(output.stdout).ok()?;
    Some(text.trim().to_string()).filter(|text| !text.is_empty())
}
