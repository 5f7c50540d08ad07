//! The table of faults and the tests that bear its rows' names.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::tidy::sources;

const TABLE: &str = "docs/faults.md";

/// Fails if a row has no test, or a test's row is not in the table.
pub fn check(root: &Path) -> Result<()> {
    let table = std::fs::read_to_string(root.join(TABLE)).context(TABLE)?;
    let listed = rows(&table);
    let mut tested = BTreeSet::new();
    for file in sources(&root.join("crates"))? {
        tested.extend(tests(&std::fs::read_to_string(file)?));
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
        for word in name.split('_') {
            let word = word.to_uppercase();
            if !is_row(&word) {
                break;
            }
            let (kind, number) = word.split_at(1);
            found.insert(format!("{kind}{}", number.trim_start_matches('0')));
        }
    }
    found
}

fn is_row(word: &str) -> bool {
    let number = word.strip_prefix(['F', 'M']).unwrap_or_default();
    !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_and_tests_are_found() {
        let all = |rows: &[&str]| rows.iter().map(|r| r.to_string()).collect::<BTreeSet<_>>();
        let table = "| row | fault |\n|---|---|\n| F1 | a |\n| M10 | b |\nF2 is no row\n";
        assert_eq!(rows(table), all(&["F1", "M10"]));
        let source = "#[test]\nfn f01_a() {}\n#[test]\n#[cfg(unix)]\n    fn f9_m6_b() {}\n\
            fn f3_not_a_test() {}\n#[test]\nfn first_f4() {}";
        assert_eq!(tests(source), all(&["F1", "F9", "M6"]));
    }

    #[test]
    fn every_row_has_a_test() {
        check(&Path::new(env!("CARGO_MANIFEST_DIR")).join("..")).unwrap();
    }
}
