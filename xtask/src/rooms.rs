//! Which room may know which, read from `cargo metadata`.
//!
//! This is the table of ARCHITECTURE.md as a test. A backend is added by one crate, one line in
//! `backends` and one runner in `conformance`; this file then needs one line too, on purpose.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::cargo;

/// Each crate with the crates of this workspace that it may use outside its tests.
const ROOMS: &[(&str, &[&str])] = &[
    ("lapidary-program", &[]),
    ("lapidary-backend", &["lapidary-program"]),
    ("lapidary-backend-kit", &["lapidary-program", "lapidary-backend"]),
    ("lapidary-reference", &["lapidary-program", "lapidary-backend", "lapidary-backend-kit"]),
    ("lapidary-backend-cpu", &["lapidary-program", "lapidary-backend", "lapidary-backend-kit"]),
    ("lapidary-backend-cuda", &["lapidary-program", "lapidary-backend", "lapidary-backend-kit"]),
    ("lapidary-backend-mlx", &["lapidary-program", "lapidary-backend", "lapidary-backend-kit"]),
    ("lapidary-backend-wgpu", &["lapidary-program", "lapidary-backend", "lapidary-backend-kit"]),
    (
        "lapidary-backends",
        &[
            "lapidary-backend",
            "lapidary-backend-cpu",
            "lapidary-backend-cuda",
            "lapidary-backend-mlx",
            "lapidary-backend-wgpu",
            "lapidary-reference",
        ],
    ),
    ("lapidary-gemma", &["lapidary-program", "lapidary-quantise"]),
    ("lapidary-media", &["lapidary-program"]),
    ("lapidary-quantise", &["lapidary-program"]),
    ("lapidary-text", &["lapidary-program"]),
    (
        "lapidary-runner",
        &["lapidary-program", "lapidary-backend", "lapidary-backend-kit", "lapidary-text"],
    ),
    (
        "lapidary-measure",
        &["lapidary-program", "lapidary-backend", "lapidary-runner", "lapidary-text"],
    ),
    ("lapidary-mock-engine", &["lapidary-program", "lapidary-backend", "lapidary-backend-kit"]),
    ("lapidary-pebble", &["lapidary-pebble-1", "lapidary-pebble-2", "lapidary-program"]),
    ("lapidary-pebble-1", &[]),
    ("lapidary-pebble-2", &[]),
    ("lapidary-heldout", &["lapidary", "lapidary-gemma"]),
    (
        "lapidary-conformance",
        &[
            "lapidary-program",
            "lapidary-backend",
            "lapidary-reference",
            // What features bring, for tests over GPUs and models.
            "lapidary",
            "lapidary-backend-cuda",
            "lapidary-backend-mlx",
            "lapidary-backend-wgpu",
            "lapidary-backends",
            "lapidary-gemma",
            "lapidary-heldout",
            "lapidary-measure",
            "lapidary-pebble",
            "lapidary-quantise",
            "lapidary-runner",
            "lapidary-text",
        ],
    ),
    (
        "lapidary",
        &[
            "lapidary-program",
            "lapidary-backend",
            "lapidary-backends",
            "lapidary-gemma",
            "lapidary-hub",
            "lapidary-media",
            "lapidary-pebble",
            "lapidary-quantise",
            "lapidary-runner",
            "lapidary-text",
        ],
    ),
    ("lapidary-hub", &[]),
    ("lapidary-ffi", &["lapidary"]),
    ("lapidary-python", &["lapidary"]),
    ("lapidary-server", &["lapidary", "lapidary-web"]),
    ("lapidary-web", &[]),
    ("lapidary-cli", &["lapidary", "lapidary-heldout", "lapidary-measure", "lapidary-server"]),
    (
        "lapidary-fuzz",
        &[
            "lapidary-program",
            "lapidary-backend",
            "lapidary-backend-cpu",
            "lapidary-gemma",
            "lapidary-measure",
            "lapidary-media",
            "lapidary-reference",
            "lapidary-server",
            "lapidary-text",
        ],
    ),
    ("xtask", &[]),
];

/// Rooms in whose sources no model of the family may be named.
const NAMELESS: &[&str] = &[
    "program",
    "reference",
    "backend",
    "backend-kit",
    "backend-cpu",
    "backend-mlx",
    "backend-wgpu",
    "backends",
    "measure",
    "media",
    "mock-engine",
    "quantise",
    "runner",
    "text",
];

/// Fails on an edge that the table doesn't have, and on a crate that it doesn't know.
pub fn check(root: &Path) -> Result<()> {
    let mut command = cargo(root);
    command.args(["metadata", "--format-version", "1", "--no-deps"]);
    let output = command.output().context("cargo metadata")?;
    let metadata: Value = serde_json::from_slice(&output.stdout).context("cargo metadata")?;
    let allowed: BTreeMap<&str, &[&str]> = ROOMS.iter().copied().collect();
    let packages = metadata["packages"].as_array().context("no packages")?;
    for package in packages {
        let name = package["name"].as_str().unwrap_or_default();
        let Some(may) = allowed.get(name) else {
            bail!("crate `{name}` is not in the table of rooms");
        };
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            let of = dependency["name"].as_str().unwrap_or_default();
            let in_tests_only = dependency["kind"].as_str() == Some("dev");
            if allowed.contains_key(of) && !in_tests_only && !may.contains(&of) {
                bail!("`{name}` uses `{of}`, which the table of rooms does not allow");
            }
        }
    }
    for room in NAMELESS {
        nameless(&root.join("crates").join(room).join("src"))?;
    }
    Ok(())
}

fn nameless(folder: &Path) -> Result<()> {
    for file in crate::tidy::sources(folder)? {
        let text = std::fs::read_to_string(&file)?;
        for (i, line) in text.lines().enumerate() {
            let code = line.split("//").next().unwrap_or_default();
            if code.to_lowercase().contains("gemma") {
                bail!("{}:{}: a model is named in a room that knows none", file.display(), i + 1);
            }
        }
    }
    Ok(())
}
