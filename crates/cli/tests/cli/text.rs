//! `lapidary tokens` and `lapidary eval`.

use std::fs;
use std::io::Write;
use std::process::Stdio;

use serde_json::Value;

use crate::support::{Ran, edit_tensor, gguf, lapidary, run, temp, testdata, with_tokenizer};

#[test]
fn ids_are_those_of_the_makers_tokenizer_behind_a_bos() {
    let cases = fs::read(testdata("gguf/gemma4_text_dense/tokens.json")).expect("it is there");
    let cases: Vec<Value> = serde_json::from_slice(&cases).expect("it is JSON");
    let dir = temp();
    let file = dir.path().join("text");
    for case in cases.iter().step_by(5) {
        let text = case["text"].as_str().expect("a text");
        let mut want = vec![2u64];
        want.extend(case["ids"].as_array().expect("ids").iter().filter_map(Value::as_u64));
        fs::write(&file, text).expect("written");
        let ran = run(lapidary("tokens").arg(gguf()).arg("--file").arg(&file)).done();
        assert_eq!(ran.json(), Value::from(want), "{text:?}");
        assert_eq!(ran.stderr, "");
    }
}

#[test]
fn a_text_may_be_given_in_three_ways_but_once() {
    let dir = temp();
    let file = dir.path().join("text");
    fs::write(&file, "the world\n").expect("written");
    let given = run(lapidary("tokens").arg(gguf()).arg("the world\n")).done();
    let read = run(lapidary("tokens").arg(gguf()).arg("-f").arg(&file)).done();
    let mut child = lapidary("tokens").arg(gguf()).stdin(Stdio::piped()).spawn().expect("starts");
    child.stdin.take().expect("piped").write_all(b"the world\n").expect("written");
    let piped = Ran::of(child.wait_with_output().expect("it ends")).done();
    assert_eq!(given.json(), read.json());
    assert_eq!(given.json(), piped.json());
    run(lapidary("tokens").arg(gguf()).arg("x").arg("-f").arg(&file)).refused(2, &["--file"]);
}

#[test]
fn texts_that_can_not_be_read_are_refused() {
    let dir = temp();
    let file = dir.path().join("bytes");
    fs::write(&file, b"\xff").expect("written");
    run(lapidary("tokens").arg(gguf()).arg("-f").arg(&file)).refused(2, &["not UTF-8"]);
    let missing = dir.path().join("missing");
    run(lapidary("tokens").arg(gguf()).arg("-f").arg(&missing)).refused(5, &["missing"]);
    let tiny = testdata("tiny/gemma3_text");
    run(lapidary("tokens").arg(&tiny).arg("x")).refused(1, &["no tokenizer"]);
}

#[test]
fn perplexity_is_that_of_a_random_model_on_every_backend() {
    let dir = temp();
    let file = dir.path().join("text");
    fs::write(&file, "the world is the hand of the other and then the rest ".repeat(6))
        .expect("ok");
    let ppl = |more: &[&str]| {
        let mut command = lapidary("eval");
        command.arg("ppl").arg(gguf()).arg("-f").arg(&file).args(["--json", "--window", "16"]);
        run(command.args(more)).done().json()
    };
    let cpu = ppl(&["--backend", "cpu"]);
    let reference = ppl(&["--backend", "reference"]);
    let value = |report: &Value| report["ppl"].as_f64().expect("a number");
    assert!(value(&cpu) > 20.0 && value(&cpu) < 1e5, "{cpu}");
    assert!((value(&cpu) / value(&reference) - 1.0).abs() < 1e-3, "{cpu} {reference}");
    let first = ppl(&["--tokens", "32"]);
    assert_eq!(first["n_windows"], 2, "{first}");
    assert_eq!(first["window"], 16);
}

#[test]
fn perplexity_of_too_little_or_of_nothing_finite_is_refused() {
    let dir = temp();
    let file = dir.path().join("text");
    fs::write(&file, "the world is the hand of the other").expect("written");
    let mut command = lapidary("eval");
    run(command.arg("ppl").arg(gguf()).arg("-f").arg(&file)).refused(2, &["window"]);
    let model = with_tokenizer(dir.path());
    edit_tensor(&model.join("model.safetensors"), "model.norm.weight", |b| {
        b[..4].copy_from_slice(&f32::NAN.to_le_bytes());
    });
    let mut command = lapidary("eval");
    command.arg("ppl").arg(&model).arg("-f").arg(&file).args(["--window", "4"]);
    run(&mut command).refused(1, &["non-finite logits", "model.norm"]);
}
