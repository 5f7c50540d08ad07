//! Files that are not what they should be: exit code 3, and a sentence that helps.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use safetensors::SafeTensors;
use serde_json::json;

use crate::support::{
    Ran, copy_of, edit_json, export, gguf, lapidary, logits, names, run, temp, testdata, tiny,
    with_tokenizer,
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

#[cfg(target_os = "linux")]
#[test]
fn f23_input_without_end_is_read_to_a_limit() {
    let zeros = || fs::File::open("/dev/zero").expect("it is there");
    let limited = |words: &str| {
        let line = format!("ulimit -v 4000000; exec {} {words}", env!("CARGO_BIN_EXE_lapidary"));
        let mut command = std::process::Command::new("sh");
        command.args(["-c", &line]);
        crate::support::undisturbed(command)
    };
    run(limited("tokens").stdin(zeros())).refused(2, &["standard input", "16 MiB"]);
    run(limited("run").stdin(zeros())).refused(2, &["standard input", "16 MiB"]);
    run(limited("run 'Summarise this'").stdin(fs::File::open("/dev/null").expect("there"))).done();
    run(&mut limited("tokens -f /dev/zero")).refused(2, &["/dev/zero", "16 MiB"]);
    run(&mut limited("logits --tokens /dev/zero -o /tmp/none"))
        .refused(2, &["/dev/zero", "16 MiB"]);
    run(&mut limited("run --image /dev/zero 'What is it?'")).refused(1, &["/dev/zero", "64 MiB"]);
    for word in ["inspect", "verify"] {
        run(&mut limited(&format!("{word} /dev/zero"))).refused(1, &["/dev/zero", "regular file"]);
    }
}

/// What is piped in goes with the prompt.
#[test]
fn a_text_and_what_to_do_with_it_go_together() {
    let dir = temp();
    let model = with_tokenizer(dir.path());
    let text = dir.path().join("report.txt");
    fs::write(&text, "and a text").expect("written");
    let answer = |prompt: &str, piped: Option<&Path>| {
        let mut command = lapidary("run");
        command.arg(&model).args(["--raw", "-t", "0", "-n", "8"]);
        if !prompt.is_empty() {
            command.arg(prompt);
        }
        if let Some(path) = piped {
            command.stdin(fs::File::open(path).expect("it is there"));
        }
        run(&mut command).done()
    };
    let both = answer("words", Some(&text));
    assert_eq!(both.stdout, answer("words\n\nand a text", None).stdout);
    assert_ne!(both.stdout, answer("words", None).stdout);
    assert_eq!(answer("", Some(&text)).stdout, answer("and a text", None).stdout);
}

/// What a damaged file beside a model would have given is named, and so is the file.
#[test]
fn f25_a_damaged_companion_is_a_loud_note() {
    let pair = testdata("gguf/gemma4_mm_e");
    let dir = temp();
    let model = dir.path().join("model.gguf");
    fs::copy(pair.join("model.gguf"), &model).expect("copied");
    let whole = fs::read(pair.join("mmproj.gguf")).expect("there");
    let companion = dir.path().join("mmproj-f16.gguf");
    let mut changed = whole.clone();
    changed[4] = 99;
    let half = &whole[..whole.len() / 2];
    for bytes in [&b""[..], b"GGUF", half, &changed, b"<html>404</html> and more of it"] {
        fs::write(&companion, bytes).expect("written");
        let mut command = lapidary("run");
        let ran = run(command.arg(&model).args(["--raw", "the world", "-n", "2"])).done();
        let said = ran.stderr.lines().find(|line| line.contains("mmproj-f16.gguf"));
        let said = said.unwrap_or_else(|| panic!("nothing names it: {}", ran.stderr));
        assert!(said.starts_with("note: ") && said.contains("no images or audio"), "{said}");
    }
    fs::write(&companion, &whole).expect("written");
    let mut command = lapidary("run");
    let ran = run(command.arg(&model).args(["--raw", "the world", "-n", "2"])).done();
    assert!(!ran.stderr.contains("can't be read"), "{}", ran.stderr);
}

#[test]
fn f25_what_can_not_be_used_of_a_generation_config_is_said() {
    let dir = temp();
    let model = with_tokenizer(dir.path());
    let file = model.join("generation_config.json");
    let ask = || {
        let mut command = lapidary("run");
        run(command.arg(&model).args(["--raw", "the world", "-n", "2"]))
    };
    for (key, value) in [
        ("temperature", json!("hot")),
        ("temperature", json!(-3)),
        ("top_k", json!(-5)),
        ("top_p", json!(7)),
        ("repetition_penalty", json!(1.5)),
    ] {
        edit_json(&file, |c| c[key] = value);
        let ran = ask().done();
        let said = ran.stderr.lines().find(|line| line.contains("generation_config.json"));
        assert!(said.is_some_and(|line| line.contains(key)), "{key}: {}", ran.stderr);
        edit_json(&file, |c| c[key] = json!(null));
    }
    let plain = ask().done();
    assert!(!plain.stderr.contains("generation_config.json"), "{}", plain.stderr);
    for bytes in [&b"{"[..], b"[]", b"\xff", b"{\"eos_token_id\": \"no\"}"] {
        fs::write(&file, bytes).expect("written");
        let ran = ask().refused(3, &[]);
        let names = ["generation_config.json", "eos_token_id"];
        assert!(names.iter().any(|name| ran.stderr.contains(name)), "{}", ran.stderr);
    }
}

#[test]
fn numbers_that_make_no_sense_are_refused_alike() {
    let model = tiny("gemma3_text");
    for (word, more, why) in [
        ("run", ["--fps", "nan"], "--fps"),
        ("run", ["--fps", "0"], "--fps"),
        ("run", ["--fps", "-1"], "from 0 on"),
        ("run", ["-t", "-1"], "temperature"),
        ("run", ["--top-p", "-0.5"], "top_p"),
        ("run", ["--top-k", "-1"], "--top-k"),
        ("verify", ["--tolerance", "nan"], "--tolerance"),
        ("verify", ["--tolerance", "-1"], "from 0 on"),
    ] {
        let mut command = lapidary(word);
        if word == "run" {
            command.args(["pebble", "-p", "x"]);
        } else {
            command.arg(&model);
        }
        let ran = run(command.args(more));
        assert_eq!(ran.code, Some(2), "{more:?}: {}", ran.stderr);
        assert!(ran.stderr.contains(why), "{more:?}: {}", ran.stderr);
    }
}

/// One word is a question, unless it is nearly the name of a model.
#[test]
fn a_word_that_is_no_model_is_a_question() {
    let dir = temp();
    let ask = |word: &str| {
        let mut command = lapidary("run");
        command.current_dir(dir.path()).args(["-n", "1", word]);
        run(&mut command)
    };
    for word in ["Hello", "Why?", "What is 1/2?"] {
        ask(word).done();
    }
    ask("peble").refused(5, &["did you mean pebble?"]);
    ask("models/gemma").refused(5, &["models/gemma", "-p"]);
}

#[cfg(unix)]
#[test]
fn f22_what_stands_at_the_output_path_is_never_lost() {
    let dir = temp();
    let (kept, link, pipe) =
        (dir.path().join("kept"), dir.path().join("link"), dir.path().join("pipe"));
    fs::write(&kept, "kept").expect("written");
    std::os::unix::fs::symlink(&kept, &link).expect("a link");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status();
    assert!(made.is_ok_and(|status| status.success()));
    let before = names(dir.path());
    for path in [link.as_path(), &pipe, Path::new("/dev/null"), Path::new("/dev/stdout")] {
        let mut logits = lapidary("logits");
        logits.arg(tiny("gemma3_text")).args(["--tokens", "2", "-f", "-o"]).arg(path);
        run(&mut logits).refused(2, &["name"]);
        let mut export = lapidary("export");
        export.arg(tiny("gemma3_text")).args(["--no-golden", "-f", "-o"]).arg(path);
        run(&mut export).refused(2, &["name"]);
        let mut chat = lapidary("chat");
        run(chat.args(["--force", "--save"]).arg(path)).refused(2, &["name"]);
    }
    for word in ["logits", "export"] {
        let mut command = lapidary(word);
        command.arg(tiny("gemma3_text")).arg("-o").arg(&kept);
        if word == "logits" {
            command.args(["--tokens", "2"]);
        }
        run(&mut command).refused(2, &["kept", "--force"]);
    }
    run(lapidary("chat").arg("--save").arg(&kept)).refused(2, &["kept", "--force"]);
    assert_eq!(fs::read(&kept).expect("it is there"), b"kept");
    assert_eq!(names(dir.path()), before);
    // As readable as the user wants new files to be.
    let mut command = std::process::Command::new("sh");
    let line = format!(
        "umask 027; exec {} logits '{}' --tokens 2 -o out",
        env!("CARGO_BIN_EXE_lapidary"),
        tiny("gemma3_text").canonicalize().expect("there").display()
    );
    command.args(["-c", &line]).current_dir(dir.path());
    run(&mut crate::support::undisturbed(command)).done();
    let mode = std::os::unix::fs::PermissionsExt::mode(
        &fs::metadata(dir.path().join("out")).expect("written").permissions(),
    );
    assert_eq!(mode & 0o777, 0o640);
}

#[cfg(target_os = "linux")]
#[test]
fn f13_a_file_that_is_cut_short_while_it_is_in_use_ends_with_a_sentence() {
    use std::io::{BufRead, BufReader, Read, Write};
    let dir = temp();
    let model = dir.path().join("model.gguf");
    let ask = |more: &[&str]| {
        fs::copy(gguf(), &model).expect("copied");
        let mut command = lapidary("chat");
        command.arg(&model).args(["--backend", "reference", "-n", "1"]).args(more);
        let mut child = command.stdin(std::process::Stdio::piped()).spawn().expect("it starts");
        let mut stderr = BufReader::new(child.stderr.take().expect("a pipe"));
        let mut said = String::new();
        while !said.contains("running on") {
            assert!(stderr.read_line(&mut said).expect("it speaks") > 0, "{said}");
        }
        // The reference reads weights when it computes with them.
        fs::OpenOptions::new().write(true).open(&model).and_then(|f| f.set_len(0)).expect("cut");
        let mut stdin = child.stdin.take().expect("a pipe");
        stdin.write_all(b"hi\n").expect("written");
        drop(stdin);
        stderr.read_to_string(&mut said).expect("it speaks");
        (child.wait().expect("it ends").code(), said)
    };
    let (code, said) = ask(&[]);
    assert_eq!(code, Some(1), "{said}");
    assert_eq!(said.matches("error: a file that is in use was cut short").count(), 1, "{said}");
    let (code, said) = ask(&["--no-mmap"]);
    assert_eq!(code, Some(0), "{said}");
}
