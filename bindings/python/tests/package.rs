//! What the package says of itself in several places.

use std::path::Path;

fn read(name: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(name)).unwrap()
}

#[test]
fn the_wheel_has_the_version_and_the_python_of_the_crate() {
    let project: toml::Table = read("pyproject.toml").parse().unwrap();
    let project = project["project"].as_table().unwrap();
    assert_eq!(project["version"].as_str(), Some(env!("CARGO_PKG_VERSION")));
    // What pyo3's feature `abi3-py310` promises.
    assert_eq!(project["requires-python"].as_str(), Some(">=3.10"));
}

#[test]
fn the_stub_names_every_class_and_function_of_the_library() {
    let stub = read("lapidary/_native.pyi");
    let library = read("src/lib.rs");
    let mut named = 0;
    for line in library.lines().filter_map(|line| line.trim().strip_prefix("use super::")) {
        let names = line.trim_end_matches(';').rsplit("::").next().unwrap();
        for name in names.trim_matches(['{', '}']).split(", ") {
            let is_there =
                stub.contains(&format!("class {name}:")) || stub.contains(&format!("def {name}("));
            assert!(is_there, "{name}");
            named += 1;
        }
    }
    assert!(named >= 10, "{named} names were found");
}
