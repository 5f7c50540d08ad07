//! Downloads from a hub on this machine, with faults.

mod faults;
mod judge;
mod layout;
mod server;
mod table;

use std::path::Path;
use std::time::Duration;

use lapidary_hub::{Hub, Name, Patience, Settings, Transfer};

use crate::server::{File, Server};

/// A repository as Google publishes small ones.
const REPO: &str = "tiny/gemma";
/// Bytes of a range in these tests.
const RANGE: u64 = 16 << 10;

/// A hub whose requests are repeated at once.
fn hub(server: &Server, cache: &Path) -> Hub {
    hub_of(settings(server, cache))
}

fn hub_of(settings: Settings) -> Hub {
    let patience = Patience { retries: 4, first_wait: Duration::from_millis(1) };
    let transfer = Transfer { connections: 4, min_range: RANGE };
    Hub::new(settings).patience(patience).transfer(transfer)
}

fn settings(server: &Server, cache: &Path) -> Settings {
    let mut settings = Settings::of(|_| None).unwrap();
    settings.cache = cache.to_path_buf();
    settings.endpoint(&server.url()).unwrap()
}

fn name(text: &str) -> Name {
    Name::parse(text).unwrap()
}

/// Bytes that are no pattern, of a seed.
fn noise(n: usize, seed: u64) -> Vec<u8> {
    let mut x = seed.wrapping_mul(2).wrapping_add(1);
    let mut next = || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x.to_le_bytes()[3]
    };
    (0..n).map(|_| next()).collect()
}

/// A small model: its configuration, and weights of `n` bytes.
fn publish(server: &Server, n: usize) -> [File; 2] {
    let config = br#"{"model_type": "gemma3_text"}"#.to_vec();
    let config = server.add(REPO, "config.json", config, false);
    server.add(REPO, "README.md", b"read me".to_vec(), false);
    [config, server.add(REPO, "model.safetensors", noise(n, 7), true)]
}

/// Every file under a final name has the right bytes.
fn check_blobs(cache: &Path, files: &[File]) -> usize {
    let folder = cache.join(format!("models--{}", REPO.replace('/', "--"))).join("blobs");
    let Ok(entries) = std::fs::read_dir(folder) else { return 0 };
    let mut n = 0;
    for entry in entries.flatten() {
        let name = entry.file_name().into_string().unwrap();
        if name.contains('.') {
            continue;
        }
        let file = files.iter().find(|f| f.etag() == name).unwrap_or_else(|| panic!("{name}"));
        assert_eq!(std::fs::read(entry.path()).unwrap(), *file.bytes, "{name}");
        n += 1;
    }
    n
}
