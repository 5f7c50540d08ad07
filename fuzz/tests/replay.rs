//! The corpus of each target, whole and mutated, never panics.

use std::fs;
use std::path::{Path, PathBuf};

use lapidary_fuzz::TARGETS;

/// The corpus of a target, and the fixtures of other tests that are of its format.
fn seeds(target: &str) -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut files = below(&root.join("fuzz/corpus").join(target), |_| true);
    files.extend(match target {
        "gguf_open" => below(&root.join("testdata/gguf"), |n| n == "model.gguf"),
        "mmproj_open" => below(&root.join("testdata/gguf"), |n| n == "mmproj.gguf"),
        "config_json" => below(&root.join("testdata/tiny"), |n| n.starts_with("config")),
        "tokenizer_json" => below(&root.join("crates/text/tests/data"), |n| n.ends_with(".json")),
        "image_decode" => below(&root.join("testdata/media/pictures"), |_| true),
        "audio_decode" => below(&root.join("testdata/media/sounds"), |_| true),
        _ => vec![],
    });
    files.sort();
    files
}

fn below(folder: &Path, wanted: fn(&str) -> bool) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(below(&path, wanted));
        } else if wanted(&path.file_name().unwrap().to_string_lossy()) {
            files.push(path);
        }
    }
    files
}

#[test]
fn every_target_survives_its_corpus_and_mutations_of_it() {
    let mut state = 1u64;
    let mut random = move |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) as usize % below.max(1)
    };
    for (name, body) in TARGETS {
        let files = seeds(name);
        assert!(files.len() >= 3, "{name} has only {} files", files.len());
        for file in files {
            let bytes = fs::read(&file).unwrap();
            body(&bytes);
            let rounds = match *name {
                // It writes and reads files.
                "pack_cache" => 60,
                _ if bytes.len() > 64 * 1024 => 150,
                _ => 1500,
            };
            for _ in 0..rounds {
                let mut changed = bytes.clone();
                for _ in 0..=random(3) {
                    match (random(4), changed.len()) {
                        (_, 0) => changed.push(random(256) as u8),
                        (0, n) => changed.truncate(random(n)),
                        (1, n) => changed.insert(random(n), random(256) as u8),
                        // Headers are where the lengths are.
                        (2, n) => changed[random(n.min(512))] = random(256) as u8,
                        (_, n) => changed[random(n)] ^= 1 << random(8),
                    }
                }
                body(&changed);
            }
        }
    }
}
