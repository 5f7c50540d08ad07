//! Every row of the project's fault list that is about serving has tests that are called after it.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Each row, and the folder of its tests: of this crate, of the command, of the model hub, or of
/// the page.
const ROWS: &[(&str, &[&str])] = &[
    ("r01", &["crates/server"]),
    ("r02", &["crates/server"]),
    ("r03", &["crates/server"]),
    ("r04", &["crates/server"]),
    ("r05", &["crates/server"]),
    ("r06", &["crates/server"]),
    ("r07", &["crates/server"]),
    ("r08", &["crates/server"]),
    ("r09", &["crates/server"]),
    ("r10", &["crates/server"]),
    ("r11", &["crates/server"]),
    ("r12", &["crates/server"]),
    ("r13", &["crates/server"]),
    ("r14", &["crates/server"]),
    ("c1", &["crates/server"]),
    ("c2", &["crates/server"]),
    ("c3", &["crates/server"]),
    ("c4", &["crates/server"]),
    ("c5", &["crates/server"]),
    ("c6", &["crates/server"]),
    ("c7", &["crates/server", "crates/cli"]),
    ("c8", &["crates/server", "crates/cli"]),
    ("c11", &["crates/server"]),
    ("x1", &["crates/server"]),
    ("x2", &["crates/server"]),
    ("x3", &["crates/server", "crates/cli"]),
    ("x4", &["crates/server"]),
    ("x5", &["crates/server"]),
    ("x6", &["crates/hub"]),
    ("x7", &["crates/server", "web/tests"]),
    ("x8", &["crates/server"]),
    ("x9", &["crates/server"]),
];

/// Names of tests below a folder, by the row that they are called after.
fn tests(folder: &Path, found: &mut BTreeMap<String, usize>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            tests(&path, found);
            continue;
        }
        let Ok(text) = fs::read_to_string(&path) else { continue };
        let is_rust = path.extension().is_some_and(|e| e == "rs");
        let mut is_test = false;
        for line in text.lines() {
            let line = line.trim();
            let name = match is_rust {
                true => line.strip_prefix("fn ").filter(|_| is_test),
                // `test("x7: …")`
                false => line.strip_prefix("test(\""),
            };
            let row = name.and_then(|name| name.split(|c: char| "_:(".contains(c)).next());
            if let Some(row) = row {
                *found.entry(row.to_string()).or_default() += 1;
            }
            is_test = line == "#[test]" || (is_test && line.starts_with("#["));
        }
    }
}

#[test]
fn every_row_of_the_fault_list_has_tests() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut missing = Vec::new();
    for (row, folders) in ROWS {
        for folder in *folders {
            let folder = root.join(folder);
            // A part that is not in this tree has no rows to hold.
            if !folder.exists() {
                continue;
            }
            let mut found = BTreeMap::new();
            let at =
                if folder.ends_with("web/tests") { folder.clone() } else { folder.join("tests") };
            tests(&at, &mut found);
            if !found.contains_key(*row) {
                missing.push(format!("{row} in {}", folder.display()));
            }
        }
    }
    assert!(missing.is_empty(), "no test is called after {missing:?}");
}
