//! Files that are not what they should be: exit code 3, and a sentence that helps.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use safetensors::SafeTensors;
use serde_json::json;

use crate::support::{
    Ran, copy_of, edit_json, export, gguf, lapidary, logits, names, run, temp, tiny,
};

fn inspect(model: &Path) -> Ran {
    run(lapidary("inspect").arg(model))
}

/// A `.lap` file to be broken.
fn lap_bytes() -> Vec<u8> {
    let dir = temp();
    fs::read(export(&tiny("gemma3_text"), &dir.path().join("model.lap"))).expect("written")
}

#[test]
fn f1_a_truncated_lap_is_refused_wherever_it_ends() {
    let dir = temp();
    let path = dir.path().join("model.lap");
    let bytes = lap_bytes();
    let (header, metadata) = SafeTensors::read_metadata(&bytes).expect("a safetensors file");
    let data = header + 8;
    let mut ends = vec![0, 1, 7, 8, 9, 16, 17, 100, data / 2, data - 1, data, bytes.len() - 1];
    ends.extend(
        metadata
            .offset_keys()
            .iter()
            .step_by(8)
            .map(|name| data + metadata.info(name).expect("it is listed").data_offsets.0),
    );
    for end in ends.into_iter().filter(|end| *end < bytes.len()) {
        fs::write(&path, &bytes[..end]).expect("written");
        inspect(&path).refused(3, &["model.lap"]);
    }
    // The same of every subcommand that opens a model.
    for (word, more) in [
        ("run", &["x", "--raw"][..]),
        ("verify", &[]),
        ("tokens", &["x"]),
        ("logits", &["--tokens", "2", "-o", "out"]),
        ("export", &["-o", "out"]),
    ] {
        let mut command = lapidary(word);
        run(command.current_dir(dir.path()).arg("model.lap").args(more))
            .refused(3, &["invalid program at byte"]);
        assert_eq!(names(dir.path()), ["model.lap"], "{word}");
    }
}

#[test]
fn f2_a_foreign_file_is_named_with_what_to_do() {
    let dir = temp();
    let path = dir.path().join("model.lap");
    let safetensors = fs::read(tiny("gemma3_text").join("model.safetensors")).expect("there");
    let lfs = b"version https://git-lfs.github.com/spec/v1\noid sha256:0123456789\nsize 42\n";
    let cases: &[(&[u8], &str, &str)] = &[
        (b"", "empty", "download"),
        (&safetensors, "safetensors file of another program", "config.json"),
        (b"PK\x03\x04archive/data.pkl and more", "PyTorch pickle", "safetensors form"),
        (b"\x80\x02}q\x00(X\x05\x00\x00\x00modelq\x01 and more", "pickle", "safetensors form"),
        (lfs, "Git LFS pointer", "git lfs pull"),
        (b"<!DOCTYPE html><html><body>404</body></html>", "web page", "download"),
        (b"\n<html lang=\"en\"><body>denied</body>", "web page", "download"),
        (b"\x08\x07\x12\x07pytorch\x1a\x05 and more bytes", "ONNX", "not read here"),
        (b"{\"model_type\": \"gemma3_text\"}", "JSON", "folder"),
        (b"just a few words, nothing more", "no format that is known", ""),
        (&[0; 64], "no format that is known", ""),
    ];
    for (bytes, what, advice) in cases {
        fs::write(&path, bytes).expect("written");
        inspect(&path).refused(3, &["model.lap", what, advice]);
    }
}

#[test]
fn f2_a_gguf_is_known_by_its_bytes_not_its_name() {
    let dir = temp();
    let path = dir.path().join("model.lap");
    let bytes = fs::read(gguf()).expect("it is there");
    fs::write(&path, &bytes).expect("written");
    inspect(&path).done();
    for end in [4, 5, 24, 1000, bytes.len() / 2, bytes.len() - 1] {
        fs::write(&path, &bytes[..end]).expect("written");
        inspect(&path).refused(3, &["GGUF"]);
    }
}

#[test]
fn f2_a_foreign_file_in_a_folder_is_named_too() {
    let dir = temp();
    let model = copy_of("gemma3_text", dir.path());
    let weights = model.join("model.safetensors");
    fs::write(&weights, "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
        .expect("written");
    inspect(&model).refused(3, &["model.safetensors", "git lfs pull"]);
    fs::write(&weights, "<!doctype html>").expect("written");
    inspect(&model).refused(3, &["model.safetensors", "web page"]);
}

#[test]
fn f3_another_version_says_what_this_build_reads() {
    let dir = temp();
    let path = dir.path().join("model.lap");
    let text = b"\"version\":\"1\"";
    let mut bytes = lap_bytes();
    let at = bytes.windows(text.len()).position(|w| w == text).expect("it is in the header");
    for (version, remedy) in [(b'2', "upgrade lapidary"), (b'0', "export"), (b'x', "export")] {
        bytes[at + text.len() - 2] = version;
        fs::write(&path, &bytes).expect("written");
        let found = format!("version {}", char::from(version));
        inspect(&path).refused(3, &[&found, "reads versions 1 to 1", remedy]);
    }
}

#[test]
fn f4_a_header_longer_than_the_file_is_refused_at_once() {
    let dir = temp();
    let path = dir.path().join("model.lap");
    let mut bytes = lap_bytes();
    for length in [u64::MAX, 1 << 62, 1 << 32, bytes.len() as u64] {
        bytes[..8].copy_from_slice(&length.to_le_bytes());
        fs::write(&path, &bytes).expect("written");
        let started = Instant::now();
        inspect(&path).refused(3, &["model.lap"]);
        assert!(started.elapsed() < Duration::from_secs(20), "{length}: {:?}", started.elapsed());
    }
}

#[test]
fn f7_bytes_behind_the_end_are_refused() {
    let dir = temp();
    let path = dir.path().join("model.lap");
    let mut bytes = lap_bytes();
    bytes.push(0);
    fs::write(&path, &bytes).expect("written");
    inspect(&path).refused(3, &["length"]);
}

#[test]
fn f11_a_config_that_lies_is_refused_with_both_values() {
    let dir = temp();
    let model = copy_of("gemma3_text", dir.path());
    let config = model.join("config.json");
    let whole = fs::read(&config).expect("it is there");
    let lies = [
        ("vocab_size", json!(318), ["318", "317"]),
        ("hidden_size", json!(63), ["63", "64"]),
        ("num_attention_heads", json!(3), ["48", "64"]),
        ("max_position_embeddings", json!(0), ["max_position_embeddings", "0"]),
    ];
    for (key, value, why) in lies {
        fs::write(&config, &whole).expect("written");
        edit_json(&config, |c| c[key] = value);
        inspect(&model).refused(3, &why);
    }
    fs::write(&config, "{").expect("written");
    inspect(&model).refused(3, &["config.json"]);
}

#[test]
fn f14_an_index_can_not_lead_out_of_the_folder() {
    let dir = temp();
    let model = copy_of("gemma3_text_sharded", dir.path());
    let shard = "model-00002-of-00004.safetensors";
    fs::copy(model.join(shard), dir.path().join("outside.safetensors")).expect("copied");
    let absolute = dir.path().join("outside.safetensors").to_string_lossy().into_owned();
    let index = model.join("model.safetensors.index.json");
    let whole = fs::read(&index).expect("it is there");
    for name in ["../outside.safetensors", absolute.as_str(), "./x/../../outside.safetensors", ".."]
    {
        fs::write(&index, &whole).expect("written");
        edit_json(&index, |i| {
            for file in i["weight_map"].as_object_mut().expect("a map").values_mut() {
                if file == shard {
                    *file = json!(name);
                }
            }
        });
        inspect(&model).refused(3, &[name, "not read"]);
    }
    fs::write(&index, &whole).expect("written");
    inspect(&model).done();
    fs::remove_file(model.join(shard)).expect("removed");
    inspect(&model).refused(5, &[shard]);
}

#[test]
fn f15_a_checkpoint_that_lacks_a_tensor_names_it() {
    let dir = temp();
    let model = copy_of("gemma3_text", dir.path());
    // One layer more than the file has.
    edit_json(&model.join("config.json"), |c| {
        c["num_hidden_layers"] = json!(6);
        if let Some(types) = c["layer_types"].as_array_mut() {
            types.push(json!("full_attention"));
        }
    });
    inspect(&model).refused(3, &["model.layers.5.", "missing"]);
    // Tensors that the model does not use are left alone.
    let model = tiny("gemma4_mm_e");
    logits(&model, "2,9", &["-q"; 0], &dir.path().join("out"));
}

#[test]
fn f18_a_pickle_is_refused_with_the_reason() {
    let dir = temp();
    let model = copy_of("gemma3_text", dir.path());
    fs::rename(model.join("model.safetensors"), model.join("pytorch_model.bin")).expect("renamed");
    inspect(&model).refused(3, &["pytorch_model.bin", "run code", "safetensors"]);
}

#[test]
fn what_is_not_there_is_not_found() {
    let dir = temp();
    for word in ["run", "inspect", "verify", "tokens"] {
        let ran = run(lapidary(word).arg(dir.path().join("gemma.lap")));
        let ran = ran.refused(5, &["gemma.lap", "No such file"]);
        // Once is enough.
        assert_eq!(ran.stderr.matches("No such file").count(), 1, "{}", ran.stderr);
        assert_eq!(ran.stderr.matches("gemma.lap").count(), 1, "{}", ran.stderr);
    }
    // A folder that is there but is no model is an invalid one.
    inspect(dir.path()).refused(3, &["config.json"]);
}

#[test]
fn a_model_of_another_family_is_refused_by_name() {
    let dir = temp();
    let model = copy_of("gemma3_text", dir.path());
    edit_json(&model.join("config.json"), |c| c["model_type"] = json!("llama"));
    inspect(&model).refused(3, &["llama"]);
}

#[test]
fn f12_a_gguf_with_a_broken_vocabulary_is_refused_by_all_who_need_it() {
    let dir = temp();
    let path = dir.path().join("model.gguf");
    let mut bytes = fs::read(gguf()).expect("it is there");
    let token = b"\x05\0\0\0\0\0\0\0<pad>";
    let at = bytes.windows(token.len()).position(|w| w == token).expect("it is a token");
    bytes[at + 8] = 0xFF;
    fs::write(&path, bytes).expect("written");
    for (word, more) in [
        ("run", &["x", "--raw"][..]),
        ("tokens", &["x"]),
        ("inspect", &[]),
        ("export", &["-o", "out"]),
    ] {
        let mut command = lapidary(word);
        run(command.current_dir(dir.path()).arg("model.gguf").args(more))
            .refused(3, &["damaged GGUF", "token 0 is not UTF-8"]);
        assert_eq!(names(dir.path()), ["model.gguf"], "{word}");
    }
    let mut command = lapidary("tokens");
    run(command.arg(&path).arg("x")).refused(3, &["can't open", "model.gguf"]);
}
