//! A program outside the workspace that depends on the library alone.

use std::path::Path;
use std::process::Command;

/// The most lines that text, image, tool call and cancel may take.
const MAX_LINES: usize = 40;

#[test]
fn a_program_outside_the_workspace_needs_the_library_alone() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = here.join("tests/outside");
    let source = std::fs::read_to_string(folder.join("src/main.rs")).unwrap();
    let n = source.lines().count();
    assert!(n < MAX_LINES, "it has {n} lines");

    // The workspace's lock file says which dependencies there are; all are at hand.
    let root = here.join("../..").canonicalize().unwrap();
    let work = tempfile::tempdir().unwrap();
    let manifest = std::fs::read_to_string(folder.join("Cargo.toml")).unwrap();
    let path = here.canonicalize().unwrap();
    let manifest = manifest.replace("../..", &path.display().to_string());
    std::fs::write(work.path().join("Cargo.toml"), manifest).unwrap();
    std::fs::copy(root.join("Cargo.lock"), work.path().join("Cargo.lock")).unwrap();
    std::fs::create_dir(work.path().join("src")).unwrap();
    std::fs::write(work.path().join("src/main.rs"), source).unwrap();
    let ran = Command::new(env!("CARGO"))
        .args(["run", "--offline", "--quiet"])
        .env("CARGO_TARGET_DIR", Path::new(env!("CARGO_TARGET_TMPDIR")).join("outside"))
        .env("DRAWING", root.join("pebble/heldout/images/drawing17.png"))
        .current_dir(work.path())
        .output()
        .unwrap();
    let (said, err) = (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    assert!(ran.status.success(), "{err}");
    let lines: Vec<&str> = said.lines().collect();
    assert!(lines[0].starts_with("text: ") && lines[0].contains("stories"), "{said}");
    assert!(lines[1].starts_with("image: ") && lines[1].contains("star"), "{said}");
    assert!(said.contains("tool call: get_weather String(\"Auckland\")"), "{said}");
    assert!(said.ends_with("cancelled after a word: true\n"), "{said}");
}
