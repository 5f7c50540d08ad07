//! Rules about the text of the sources.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

/// Lines of one source file, tests and tables aside.
const MAX_LINES: usize = 800;
/// Names that say nothing about what is inside.
const EMPTY_NAMES: &[&str] = &["utils.rs", "util.rs", "helpers.rs", "common.rs", "misc.rs"];

/// Fails on the first broken rule.
pub fn check(root: &Path) -> Result<()> {
    for file in all_sources(root)? {
        let text = std::fs::read_to_string(&file)?;
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let shown = file.strip_prefix(root).unwrap_or(&file).display().to_string();
        if EMPTY_NAMES.contains(&name.as_str()) {
            bail!("{shown}: a file is named after what is in it");
        }
        let is_test = shown.contains("/tests/") || shown.contains("/benches/");
        let n = text.lines().count();
        if n > MAX_LINES && !is_test {
            bail!("{shown} has {n} lines, more than {MAX_LINES}");
        }
        if shown.starts_with("xtask/") {
            continue;
        }
        if let Some(path) = text.lines().filter_map(included).find(|path| leaves(&file, path))
            && !is_test
            && !shown.starts_with("fuzz/")
        {
            bail!("{shown} includes {path}, which is not in its package");
        }
        let count = |what: &str| text.matches(what).count();
        let (blocks, reasons) = (count("unsafe {"), count("SAFETY:"));
        if blocks > reasons {
            bail!("{shown}: {blocks} unsafe blocks, {reasons} SAFETY comments");
        }
        for banned in ["#[ignore", "#[should_panic", "todo!(", "unimplemented!(", "dbg!("] {
            if text.contains(banned) {
                bail!("{shown}: `{banned}` is not used here");
            }
        }
    }
    Ok(())
}

/// The file that a line includes by a path from where it stands.
fn included(line: &str) -> Option<&str> {
    let (_, rest) = line.split_once("include")?;
    let (kind, rest) = rest.split_once("!(\"")?;
    let (path, _) = rest.split_once('"')?;
    matches!(kind, "" | "_str" | "_bytes").then_some(path)
}

/// Whether a path from a source leads out of the source's package, where it is not published with it.
fn leaves(source: &Path, path: &str) -> bool {
    let package = source.ancestors().skip(1).find(|folder| folder.join("Cargo.toml").is_file());
    let mut at = source.parent().unwrap_or(source).to_path_buf();
    for part in path.split('/') {
        match part {
            ".." => _ = at.pop(),
            part => at.push(part),
        }
    }
    package.is_some_and(|package| !at.starts_with(package))
}

/// Prints the lines of each crate.
pub fn sizes(root: &Path) -> Result<()> {
    let mut crates: Vec<(String, usize, usize)> = Vec::new();
    for entry in std::fs::read_dir(root.join("crates"))? {
        let folder = entry?.path();
        let lines = |folder: PathBuf| -> Result<usize> {
            let mut n = 0;
            for file in sources(&folder)? {
                n += std::fs::read_to_string(file)?.lines().count();
            }
            Ok(n)
        };
        let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        crates.push((name, lines(folder.join("src"))?, lines(folder.join("tests"))?));
    }
    crates.sort();
    println!("{:<14} {:>7} {:>7}", "crate", "src", "tests");
    for (name, src, tests) in crates {
        println!("{name:<14} {src:>7} {tests:>7}");
    }
    Ok(())
}

fn all_sources(root: &Path) -> Result<Vec<PathBuf>> {
    let mut files = sources(&root.join("crates"))?;
    files.extend(sources(&root.join("xtask"))?);
    files.extend(sources(&root.join("fuzz"))?);
    files.extend(sources(&root.join("pebble"))?);
    files.push(root.join("web").join("page.rs"));
    files.extend(sources(&root.join("bindings").join("python").join("src"))?);
    Ok(files)
}

/// All Rust files below a folder.
pub fn sources(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let Ok(entries) = std::fs::read_dir(folder) else { return Ok(found) };
    for entry in entries {
        let path = entry?.path();
        if path.is_dir() {
            if path.file_name().is_some_and(|n| n != "target") {
                found.extend(sources(&path)?);
            }
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_included_file_must_be_in_the_package() {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join("tidy.rs");
        let of = |line| included(line).map(|path| leaves(&source, path));
        assert_eq!(of("const A: &str = include_str!(\"../../README.md\");"), Some(true));
        assert_eq!(of("const A: &[u8] = include_bytes!(\"../Cargo.toml\");"), Some(false));
        assert_eq!(of("const A: u8 = include!(\"a/../../../b.rs\");"), Some(true));
        assert_eq!(of("let included = \"nothing\";"), None);
    }
}
