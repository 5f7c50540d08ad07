//! Bad checkpoints. Each test is named after its row in the fault list.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use lapidary_gemma::{Error, OpenOptions, hf_config, open};
use serde_json::{Value, json};
use tempfile::TempDir;

fn tiny(family: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/tiny").join(family)
}

/// A copy of a tiny checkpoint that a test may damage.
fn copy(family: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(tiny(family)).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), folder.path().join(entry.file_name())).unwrap();
    }
    folder
}

fn try_open(path: &Path) -> Result<lapidary_program::Program, Error> {
    open(path, &OpenOptions::default())
}

fn refused(path: &Path) -> String {
    match try_open(path) {
        Ok(_) => panic!("a bad checkpoint was accepted"),
        Err(e) => e.to_string(),
    }
}

fn change_json(path: &Path, change: impl FnOnce(&mut Value)) {
    let mut value: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    change(&mut value);
    fs::write(path, serde_json::to_vec(&value).unwrap()).unwrap();
}

/// The checkpoint with one key of its configuration changed is refused with this answer.
fn with_config(family: &str, key: &str, value: Value) -> String {
    let folder = copy(family);
    change_json(&folder.path().join("config.json"), |c| c[key] = value);
    refused(folder.path())
}

fn safetensors(header: &Value, data: &[u8]) -> Vec<u8> {
    let header = serde_json::to_vec(header).unwrap();
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header);
    bytes.extend(data);
    bytes
}

#[test]
fn f02_folders_and_files_that_are_no_model() {
    let folder = tempfile::tempdir().unwrap();
    assert!(refused(folder.path()).contains("no config.json"));
    let file = folder.path().join("notes.txt");
    fs::write(&file, "these are just some notes, nothing else").unwrap();
    assert!(refused(&file).contains("no format that is known"));
    assert!(matches!(try_open(&folder.path().join("absent")), Err(Error::Io { .. })));
    fs::write(&file, "").unwrap();
    assert!(refused(&file).contains("invalid program at byte 0"));
    let drafter = refused(&tiny("gemma4_assistant"));
    assert!(drafter.contains("--draft"), "{drafter}");
}

#[test]
fn f08_other_families_are_named() {
    for (model_type, says) in [
        ("llama", "runs Gemma 3 and Gemma 4"),
        ("gemma3n", "not supported yet"),
        ("gemma2", "runs"),
    ] {
        let said = with_config("gemma3_text", "model_type", json!(model_type));
        assert!(said.contains(model_type) && said.contains(says), "{said}");
    }
}

#[test]
fn f11_configurations_that_lie() {
    let said = with_config("gemma3_text", "vocab_size", json!(1000));
    assert!(said.contains("1000") && said.contains("317"), "{said}");
    let said = with_config("gemma3_text", "num_key_value_heads", json!(5));
    assert!(said.contains("5 key-value heads"), "{said}");
    for key in ["sliding_window", "max_position_embeddings", "num_hidden_layers", "head_dim"] {
        let said = with_config("gemma3_text", key, json!(0));
        assert!(said.contains(key), "{said}");
        let said = with_config("gemma3_text", key, json!("many"));
        assert!(said.contains(key), "{said}");
        let said = with_config("gemma3_text", key, json!(-1));
        assert!(said.contains(key), "{said}");
        let said = with_config("gemma3_text", key, json!(1u64 << 31));
        assert!(said.contains(key), "{said}");
    }
    let said = with_config("gemma3_text", "sliding_window", json!(100_000));
    assert!(said.contains("100000") && said.contains("max_position_embeddings"), "{said}");
    let said = with_config("gemma3_text", "hidden_activation", json!("relu"));
    assert!(said.contains("relu"), "{said}");
    let said = with_config("gemma4_text_e", "num_kv_shared_layers", json!(999));
    assert!(said.contains("999"), "{said}");
    let said = with_config("gemma3_text", "layer_types", json!(["full_attention"]));
    assert!(said.contains("1 entries"), "{said}");
    let said = with_config("gemma4_text_moe", "top_k_experts", json!(100));
    assert!(said.contains("top_k 100"), "{said}");

    let folder = copy("gemma3_text");
    let generation = folder.path().join("generation_config.json");
    fs::write(&generation, r#"{"eos_token_id": [1, 4000]}"#).unwrap();
    let said = refused(folder.path());
    assert!(said.contains("4000") && said.contains("317"), "{said}");
}

/// The quickest of three runs: a machine that does something else for a moment is no fault of ours.
fn quickest(mut run: impl FnMut()) -> Duration {
    let mut time = || {
        let start = Instant::now();
        run();
        start.elapsed()
    };
    [time(), time(), time()].into_iter().min().unwrap()
}

#[test]
fn f12_a_tokenizer_of_300_mb_is_refused_unread() {
    let folder = copy("gemma3_text");
    let file = fs::File::create(folder.path().join("tokenizer.json")).unwrap();
    file.set_len(300 << 20).unwrap();
    let took = quickest(|| {
        let said = refused(folder.path());
        assert!(said.contains("tokenizer.json") && said.contains("314572800"), "{said}");
    });
    assert!(took < Duration::from_secs(1), "{took:?}");
}

#[test]
fn f14_index_names_that_leave_the_folder() {
    let outside = tempfile::tempdir().unwrap();
    let secret = outside.path().join("secret.safetensors");
    fs::write(&secret, "secret").unwrap();
    for name in [
        "../secret.safetensors".to_string(),
        secret.to_string_lossy().into_owned(),
        "a/../../secret.safetensors".into(),
        "..\\secret.safetensors".into(),
        ".".into(),
        "..".into(),
        String::new(),
    ] {
        let folder = copy("gemma3_text_sharded");
        change_json(&folder.path().join("model.safetensors.index.json"), |index| {
            let map = index["weight_map"].as_object_mut().unwrap();
            *map.values_mut().next().unwrap() = json!(name);
        });
        let said = refused(folder.path());
        assert!(said.contains("not a plain file name"), "{name}: {said}");
    }
    #[cfg(unix)]
    {
        let folder = copy("gemma3_text");
        fs::remove_file(folder.path().join("model.safetensors")).unwrap();
        std::os::unix::fs::symlink(&secret, folder.path().join("model.safetensors")).unwrap();
        let said = refused(folder.path());
        assert!(said.contains("leads out of the folder"), "{said}");
    }
}

/// Small files are held to the same rule, and pipes and devices are not waited for.
#[cfg(unix)]
#[test]
fn f14_links_of_small_files_and_devices_are_refused() {
    let outside = tempfile::tempdir().unwrap();
    let secret = outside.path().join("secret");
    fs::write(&secret, "secret").unwrap();
    for name in ["chat_template.jinja", "tokenizer.json", "generation_config.json"] {
        let folder = copy("gemma3_text");
        let _ = fs::remove_file(folder.path().join(name));
        std::os::unix::fs::symlink(&secret, folder.path().join(name)).unwrap();
        let said = refused(folder.path());
        assert!(said.contains("leads out of the folder"), "{name}: {said}");
        fs::remove_file(folder.path().join(name)).unwrap();
        std::os::unix::fs::symlink("/dev/zero", folder.path().join(name)).unwrap();
        let said = refused(folder.path());
        assert!(said.contains("not a regular file"), "{name}: {said}");
    }
    let pipe = outside.path().join("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    assert!(refused(&pipe).contains("not a regular file"));
}

/// As in transformers: a single file comes before an index that may be left from before.
#[test]
fn f15_a_stale_index_beside_a_single_file_is_let_be() {
    let folder = copy("gemma3_text");
    let index = r#"{"weight_map": {"a": "model-00001-of-00002.safetensors"}}"#;
    fs::write(folder.path().join("model.safetensors.index.json"), index).unwrap();
    assert!(try_open(folder.path()).is_ok());
}

/// A hub cache holds links to its own blobs, and those are followed.
#[cfg(unix)]
#[test]
fn f14_links_of_a_hub_cache_are_followed() {
    let cache = tempfile::tempdir().unwrap();
    let snapshot = cache.path().join("models--x/snapshots/abc");
    let blobs = cache.path().join("models--x/blobs");
    fs::create_dir_all(&snapshot).unwrap();
    fs::create_dir_all(&blobs).unwrap();
    for entry in fs::read_dir(tiny("gemma3_text")).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), blobs.join(entry.file_name())).unwrap();
        let link = Path::new("../../blobs").join(entry.file_name());
        std::os::unix::fs::symlink(link, snapshot.join(entry.file_name())).unwrap();
    }
    assert_eq!(try_open(&snapshot).unwrap().metadata().name, "x");

    // Newer tools keep large files once for all repositories, and link to them from there.
    let (large, shared) = (blobs.join("model.safetensors"), cache.path().join("blobs/ab"));
    fs::create_dir_all(&shared).unwrap();
    fs::rename(&large, shared.join("abcd")).unwrap();
    std::os::unix::fs::symlink("../../blobs/ab/abcd", &large).unwrap();
    assert!(try_open(&snapshot).is_ok());
    // Any other folder beside the cache's is not meant.
    fs::rename(cache.path().join("blobs"), cache.path().join("other")).unwrap();
    fs::remove_file(&large).unwrap();
    std::os::unix::fs::symlink("../../other/ab/abcd", &large).unwrap();
    assert!(refused(&snapshot).contains("leads out of the folder"));
}

#[test]
fn f15_damaged_and_odd_safetensors() {
    let folder = copy("gemma3_text");
    let path = folder.path().join("model.safetensors");
    let good = fs::read(&path).unwrap();

    let mut long = (101u64 << 20).to_le_bytes().to_vec();
    long.extend(&good[8..]);
    fs::write(&path, &long).unwrap();
    let took = quickest(|| assert!(refused(folder.path()).contains("damaged safetensors")));
    assert!(took < Duration::from_millis(200), "{took:?}");

    for cut in [0, 7, 8, 100, good.len() / 2, good.len() - 1] {
        fs::write(&path, &good[..cut]).unwrap();
        assert!(refused(folder.path()).contains("safetensors"), "cut at {cut}");
    }

    let overlapping = json!({
        "a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
        "b": {"dtype": "F32", "shape": [2], "data_offsets": [4, 12]},
    });
    fs::write(&path, safetensors(&overlapping, &[0; 12])).unwrap();
    assert!(refused(folder.path()).contains("damaged safetensors"));

    let n = u64::from_le_bytes(good[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&good[8..8 + n]).unwrap();
    let mut odd = header.clone();
    let norm = &mut odd["model.norm.weight"];
    let hidden = norm["shape"][0].as_u64().unwrap();
    norm["dtype"] = json!("F64");
    norm["shape"] = json!([hidden / 2]);
    fs::write(&path, safetensors(&odd, &good[8 + n..])).unwrap();
    let said = refused(folder.path());
    assert!(said.contains("model.norm.weight"), "{said}");

    let mut renamed = header.clone();
    let norm = renamed.as_object_mut().unwrap().remove("model.norm.weight").unwrap();
    renamed["model.norm.bias"] = norm;
    fs::write(&path, safetensors(&renamed, &good[8 + n..])).unwrap();
    let said = refused(folder.path());
    assert!(said.contains("model.norm.weight") && said.contains("missing"), "{said}");

    // Tensors that nobody asks for are let be, as in multimodal checkpoints.
    let mut extra = header;
    let end = good.len() - 8 - n;
    extra["some.tower.weight"] =
        json!({"dtype": "F64", "shape": [1], "data_offsets": [end, end + 8]});
    let mut data = good[8 + n..].to_vec();
    data.extend([0; 8]);
    fs::write(&path, safetensors(&extra, &data)).unwrap();
    assert!(try_open(folder.path()).is_ok());
}

#[test]
fn f15_a_missing_shard_is_named() {
    let folder = copy("gemma3_text_sharded");
    let shard = fs::read_dir(folder.path())
        .unwrap()
        .map(|e| e.unwrap().path())
        .find(|p| {
            p.extension().is_some_and(|e| e == "safetensors")
                && p.to_string_lossy().contains("00002")
        })
        .unwrap();
    fs::remove_file(&shard).unwrap();
    let said = refused(folder.path());
    assert!(said.contains(&*shard.file_name().unwrap().to_string_lossy()), "{said}");
}

#[test]
fn f18_pickles_are_refused_with_the_reason() {
    let folder = copy("gemma3_text");
    fs::rename(folder.path().join("model.safetensors"), folder.path().join("pytorch_model.bin"))
        .unwrap();
    let said = refused(folder.path());
    assert!(said.contains("pickle") && said.contains("safetensors form"), "{said}");
    let pickle = folder.path().join("model.pt");
    fs::write(&pickle, b"PK\x03\x04 and then a pickle inside of the archive").unwrap();
    assert!(refused(&pickle).contains("pickle"));
}

#[test]
fn configurations_never_panic() {
    let good = fs::read(tiny("gemma4_text_moe").join("config.json")).unwrap();
    let value: Value = serde_json::from_slice(&good).unwrap();
    let mut tried = 0;
    for key in value.as_object().unwrap().keys() {
        for bad in [
            json!(null),
            json!(-1),
            json!(0),
            json!(1),
            json!(1.5),
            json!(1e300),
            json!(u64::MAX),
            json!("x"),
            json!(true),
            json!([]),
            json!([[[]]]),
            json!({}),
            json!({"0": {"head_dim": 0}}),
        ] {
            let mut changed = value.clone();
            changed[key] = bad;
            let _ = hf_config::parse(&serde_json::to_vec(&changed).unwrap());
            tried += 1;
        }
    }
    for cut in 0..good.trim_ascii_end().len() {
        assert!(hf_config::parse(&good[..cut]).is_err());
    }
    assert!(tried > 200);
}

/// What transformers decides by the outer configuration of a multimodal file.
#[test]
fn outer_and_inner_configuration_are_read_as_transformers_reads_them() {
    let parse = |change: fn(&mut Value)| {
        let mut value: Value =
            serde_json::from_slice(&fs::read(tiny("gemma3_mm").join("config.json")).unwrap())
                .unwrap();
        change(&mut value);
        match hf_config::parse(&serde_json::to_vec(&value).unwrap()).unwrap() {
            hf_config::HfConfig::Model(m) => m.text,
            hf_config::HfConfig::Draft(_) => panic!("it is a model"),
        }
    };
    let untied = parse(|c| {
        c["tie_word_embeddings"] = json!(false);
        c["text_config"]["tie_word_embeddings"] = json!(true);
    });
    assert!(!untied.tie_word_embeddings);
    let capped = parse(|c| c["text_config"]["final_logit_softcapping"] = json!(3.0));
    assert_eq!(capped.final_logit_softcapping, None);
}
