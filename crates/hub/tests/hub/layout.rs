//! The folders that a download makes, and what is found in them.

use std::fs;

use lapidary_hub::{Error, Watch};

use crate::server::{COMMIT, Server};
use crate::{REPO, hub, name, noise, publish};

#[test]
fn a_download_looks_as_pythons_does() {
    let server = Server::start();
    let files = publish(&server, 40_000);
    let cache = tempfile::tempdir().unwrap();
    let hub = hub(&server, cache.path());
    assert!(matches!(hub.find(&name(REPO)), Err(Error::NotHere { why: None, .. })));
    let offer = hub.ask(&name(REPO)).unwrap();
    assert_eq!(offer.missing, offer.total);
    let found = hub.pull(&offer, &Watch::default()).unwrap();

    let repo = cache.path().join("models--tiny--gemma");
    let snapshot = repo.join("snapshots").join(COMMIT);
    assert_eq!(fs::read_to_string(repo.join("refs/main")).unwrap(), COMMIT);
    assert_eq!((&found.model, &found.towers), (&snapshot, &None));
    for (file, bytes) in ["config.json", "model.safetensors"].iter().zip(&files) {
        let pointer = snapshot.join(file);
        assert_eq!(fs::read(&pointer).unwrap(), *bytes.bytes);
        #[cfg(unix)]
        assert_eq!(
            fs::read_link(&pointer).unwrap().to_str().unwrap(),
            format!("../../blobs/{}", bytes.etag())
        );
    }
    assert!(!snapshot.join("README.md").exists(), "only what a model needs is brought");
    assert!(cache.path().join("CACHEDIR.TAG").is_file());

    // Again, nothing comes; by its commit it is found, too.
    server.requests();
    let again = hub.ask(&name(REPO)).unwrap();
    assert_eq!(again.missing, 0);
    assert_eq!(hub.pull(&again, &Watch::default()).unwrap(), found);
    assert!(server.bodies().is_empty());
    assert_eq!(hub.find(&name(&format!("{REPO}@{COMMIT}"))).unwrap().model, found.model);

    let all = hub.list().unwrap();
    assert_eq!(all.len(), 1);
    assert_eq!((all[0].repo.as_str(), &all[0].path), (REPO, &snapshot));
    assert!(all[0].bytes >= 40_000);
    assert!(hub.remove(&name(REPO)).unwrap() >= 40_000);
    assert!(!repo.exists());
    assert!(matches!(hub.remove(&name(REPO)), Err(Error::NotHere { .. })));
}

#[test]
fn a_gguf_file_comes_with_its_towers_and_quants_share_a_folder() {
    let server = Server::start();
    for (i, file) in ["g-Q4_0.gguf", "g-Q8_0.gguf", "mmproj-g-f16.gguf"].iter().enumerate() {
        server.add(REPO, file, noise(1000, i as u64), true);
    }
    let cache = tempfile::tempdir().unwrap();
    let hub = hub(&server, cache.path());
    let small = hub.pull(&hub.ask(&name(REPO)).unwrap(), &Watch::default()).unwrap();
    assert!(small.model.ends_with("g-Q4_0.gguf"), "{small:?}");
    assert!(small.towers.as_ref().unwrap().ends_with("mmproj-g-f16.gguf"));
    let large = name("tiny/gemma:Q8_0");
    assert!(matches!(hub.find(&large), Err(Error::NotHere { why: Some(_), .. })));
    let offer = hub.ask(&large).unwrap();
    assert_eq!(offer.missing, 1000);
    assert!(hub.pull(&offer, &Watch::default()).unwrap().model.ends_with("g-Q8_0.gguf"));
    assert_eq!(hub.find(&name(REPO)).unwrap().model, small.model);
}

#[test]
fn a_model_in_parts_is_there_when_all_parts_are() {
    let server = Server::start();
    let part = |i: u32| format!("model-0000{i}-of-00002.safetensors");
    server.add(REPO, "config.json", b"{}".to_vec(), false);
    let index = format!(r#"{{"weight_map": {{"a": "{}", "b": "{}"}}}}"#, part(1), part(2));
    server.add(REPO, "model.safetensors.index.json", index.into_bytes(), false);
    server.add(REPO, &part(1), noise(1000, 1), true);
    server.add(REPO, &part(2), noise(1000, 2), true);
    let cache = tempfile::tempdir().unwrap();
    let hub = hub(&server, cache.path());
    let found = hub.pull(&hub.ask(&name(REPO)).unwrap(), &Watch::default()).unwrap();
    assert_eq!(found.files.len(), 4);
    fs::remove_file(found.model.join(part(2))).unwrap();
    let said = hub.find(&name(REPO)).unwrap_err().to_string();
    assert!(said.contains("model-00002-of-00002.safetensors is missing"), "{said}");
    assert!(said.contains("lapidary pull tiny/gemma"), "{said}");
    assert!(hub.list().unwrap().is_empty());
}

#[test]
fn another_branch_is_kept_under_its_own_name() {
    let server = Server::start();
    publish(&server, 100);
    let cache = tempfile::tempdir().unwrap();
    let hub = hub(&server, cache.path());
    let request = name(&format!("{REPO}@refs/pr/1"));
    let found = hub.pull(&hub.ask(&request).unwrap(), &Watch::default()).unwrap();
    assert!(cache.path().join("models--tiny--gemma/refs/refs/pr/1").is_file());
    assert_eq!(hub.find(&request).unwrap(), found);
    assert!(hub.find(&name(REPO)).is_err(), "main was not asked for");
}
