//! The table of faults and the tests that bear its rows' names.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::tidy::sources;

const TABLE: &str = "docs/faults.md";
/// What rows are about: files, memory and devices, requests, concurrency, exposure.
const KINDS: [char; 5] = ['F', 'M', 'R', 'C', 'X'];

/// Fails if a row has no test, or a test's row is not in the table.
pub fn check(root: &Path) -> Result<()> {
    let table = std::fs::read_to_string(root.join(TABLE)).context(TABLE)?;
    let listed = rows(&table);
    let mut tested = BTreeSet::new();
    for file in sources(&root.join("crates"))? {
        tested.extend(tests(&std::fs::read_to_string(file)?));
    }
    for file in page_tests(&root.join("web").join("tests"))? {
        tested.extend(tests_of_the_page(&std::fs::read_to_string(file)?));
    }
    if let Some(row) = listed.difference(&tested).next() {
        bail!("{TABLE}: no test bears the name of row {row}");
    }
    if let Some(row) = tested.difference(&listed).next() {
        bail!("{TABLE} has no row {row}, and a test is named after it");
    }
    Ok(())
}

/// The rows of the table: `F1`.
fn rows(table: &str) -> BTreeSet<String> {
    let first = |line: &str| line.strip_prefix("| ")?.split(' ').next().map(str::to_string);
    table.lines().filter_map(first).filter(|row| is_row(row)).collect()
}

/// The rows that tests are named after: `fn f01_…`, `fn f9_m6_…`.
fn tests(source: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut lines = source.lines().map(str::trim);
    while let Some(line) = lines.next() {
        if line != "#[test]" {
            continue;
        }
        let name = lines.by_ref().find_map(|line| line.strip_prefix("fn ")).unwrap_or_default();
        found.extend(name.split('_').map_while(row));
    }
    found
}

/// The same of the page's tests: `test("x7: …")`.
fn tests_of_the_page(source: &str) -> BTreeSet<String> {
    let name = |line: &str| row(line.trim().strip_prefix("test(\"")?.split(':').next()?);
    source.lines().filter_map(name).collect()
}

fn page_tests(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        if path.is_dir() {
            found.extend(page_tests(&path)?);
        } else if path.to_string_lossy().ends_with(".test.ts") {
            found.push(path);
        }
    }
    Ok(found)
}

/// A row as the table writes it, of a word in a test's name: `F1` of `f01`.
fn row(word: &str) -> Option<String> {
    let word = word.to_uppercase();
    is_row(&word).then(|| {
        let (kind, number) = word.split_at(1);
        format!("{kind}{}", number.trim_start_matches('0'))
    })
}

fn is_row(word: &str) -> bool {
    let number = word.strip_prefix(KINDS).unwrap_or_default();
    !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_and_tests_are_found() {
        let all = |rows: &[&str]| rows.iter().map(|r| r.to_string()).collect::<BTreeSet<_>>();
        let table =
            "| row | fault |\n|---|---|\n| F1 | a |\n| M10 | b |\n| C11 | c |\nF2 is no row\n";
        assert_eq!(rows(table), all(&["C11", "F1", "M10"]));
        let source = "#[test]\nfn f01_a() {}\n#[test]\n#[cfg(unix)]\n    fn f9_m6_b() {}\n\
            fn f3_not_a_test() {}\n#[test]\nfn first_f4() {}";
        assert_eq!(tests(source), all(&["F1", "F9", "M6"]));
        let source =
            "test(\"x7: payloads stay text\", async () => {\n  test(\"phone: narrow\", f);\n";
        assert_eq!(tests_of_the_page(source), all(&["X7"]));
    }

    #[test]
    fn every_row_has_a_test() {
        check(&Path::new(env!("CARGO_MANIFEST_DIR")).join("..")).unwrap();
    }
}
