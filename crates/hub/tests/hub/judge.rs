//! `huggingface_hub` itself says whether the cache is as it keeps it.

use std::path::{Path, PathBuf};
use std::process::Command;

use lapidary_hub::Watch;

use crate::server::Server;
use crate::{REPO, check_blobs, hub, name, publish};

/// A Python that has `huggingface_hub`; `cargo xtask test` sets it.
const PYTHON: &str = "LAPIDARY_HUB_PYTHON";

fn python() -> Option<PathBuf> {
    let python = std::env::var_os(PYTHON).map(PathBuf::from);
    if python.is_none() {
        eprintln!("SKIPPED: {PYTHON} names no Python with huggingface_hub; see `cargo xtask hub`");
    }
    python
}

fn run(python: &Path, server: &Server, cache: &Path, what: &str) -> String {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/judge.py");
    let mut command = Command::new(python);
    command.args([script, what, REPO]).env("HF_ENDPOINT", server.url());
    command.env("HF_HUB_CACHE", cache).env("HF_HOME", cache.join("home"));
    command.env("NO_PROXY", "127.0.0.1").env("no_proxy", "127.0.0.1");
    command
        .env("HF_HUB_DISABLE_TELEMETRY", "1")
        .env("PYTHONUTF8", "1")
        .env("HF_HUB_DISABLE_XET", "1");
    command.env_remove("HF_HUB_OFFLINE").env_remove("HF_TOKEN");
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{what}: {said}");
    String::from_utf8(output.stdout).unwrap().trim().to_string()
}

#[test]
fn python_finds_what_we_pulled() {
    let Some(python) = python() else { return };
    let server = Server::start();
    publish(&server, 70_000);
    let cache = tempfile::tempdir().unwrap();
    let hub = hub(&server, cache.path());
    let found = hub.pull(&hub.ask(&name(REPO)).unwrap(), &Watch::default()).unwrap();
    server.requests();
    assert_eq!(run(&python, &server, cache.path(), "offline"), found.model.to_str().unwrap());
    assert!(server.requests().is_empty(), "offline");
    // Asked of the hub, too, it needs no bytes.
    assert_eq!(run(&python, &server, cache.path(), "online"), found.model.to_str().unwrap());
    let bodies = server.bodies();
    assert!(bodies.is_empty(), "{bodies:?}");
}

#[test]
fn we_find_what_python_pulled() {
    let Some(python) = python() else { return };
    let server = Server::start();
    let files = publish(&server, 70_000);
    let cache = tempfile::tempdir().unwrap();
    let folder = run(&python, &server, cache.path(), "pull");
    server.requests();
    let hub = hub(&server, cache.path());
    assert_eq!(hub.find(&name(REPO)).unwrap().model, Path::new(&folder));
    assert_eq!(hub.list().unwrap().len(), 1);
    assert!(server.requests().is_empty());
    let offer = hub.ask(&name(REPO)).unwrap();
    assert_eq!(offer.missing, 0);
    hub.pull(&offer, &Watch::default()).unwrap();
    assert!(server.bodies().is_empty());
    assert_eq!(check_blobs(cache.path(), &files), 2);
}
