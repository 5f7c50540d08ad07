//! The corpus of each target, whole and mutated, never panics.

use std::fs;
use std::path::{Path, PathBuf};

use lapidary_fuzz::TARGETS;

fn corpus(target: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
    let mut files: Vec<PathBuf> =
        fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
    files.sort();
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
        let files = corpus(name);
        assert!(files.len() >= 3, "{name} has only {} files", files.len());
        for file in files {
            let bytes = fs::read(&file).unwrap();
            body(&bytes);
            let rounds = if bytes.len() > 64 * 1024 { 20 } else { 200 };
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
