//! `lapidary export`, `inspect` and `verify`.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::support::{
    FAMILIES, Ran, copy_of, edit_tensor, export, gguf, i64s, joined, lapidary, logits, names,
    place, run, sparse, temp, tiny, with_goldens_of,
};

/// Token ids that every tiny vocabulary has.
const IDS: &str = "2,9,40,7,100,200,33,8,250,11,9,9,80,4";

#[test]
fn every_family_survives_the_round_trip_exactly_and_verifies() {
    let dir = temp();
    for family in FAMILIES {
        let lap = export(&tiny(family), &dir.path().join(format!("{family}.lap")));
        let more = ["--greedy", "3"];
        let from_folder = logits(&tiny(family), IDS, &more, &dir.path().join("folder"));
        let from_lap = logits(&lap, IDS, &more, &dir.path().join("lap"));
        let (a, b) =
            (fs::read(from_folder).expect("written"), fs::read(from_lap).expect("written"));
        assert!(a == b, "{family}: the logits of folder and file differ");
        for backend in ["cpu", "reference"] {
            let ran = run(lapidary("verify").arg(&lap).args(["--backend", backend])).done();
            assert!(ran.text().contains("bytes: as written"), "{family}: {}", ran.text());
            assert!(ran.text().ends_with("passed\n"), "{family} on {backend}: {}", ran.text());
        }
    }
}

#[test]
fn a_gguf_survives_the_round_trip_with_its_text() {
    let dir = temp();
    let lap = export(&gguf(), &dir.path().join("model.lap"));
    for prompt in [&["--raw", "the world"][..], &["the world"]] {
        let text = |model: &Path| {
            run(lapidary("run").arg(model).args(prompt).args(["-n", "20", "--seed", "3"])).done()
        };
        assert_eq!(text(&gguf()).stdout, text(&lap).stdout);
    }
    assert!(run(lapidary("verify").arg(&lap)).done().text().ends_with("passed\n"));
}

#[test]
fn an_export_of_the_same_model_is_the_same_file() {
    let dir = temp();
    let a = export(&tiny("gemma4_text_moe"), &dir.path().join("a.lap"));
    let b = export(&tiny("gemma4_text_moe"), &dir.path().join("b.lap"));
    let c = export(&a, &dir.path().join("c.lap"));
    let read = |path| fs::read(path).expect("written");
    assert!(read(&a) == read(&b), "two exports differ");
    assert!(read(&a) == read(&c), "the export of an export differs");
}

#[test]
fn inspect_tells_what_a_model_is() {
    let dir = temp();
    let lap = export(&gguf(), &dir.path().join("model.lap"));
    for model in [gguf(), lap.clone()] {
        let seen = run(lapidary("inspect").arg(&model).arg("--json")).done().json();
        assert_eq!(seen["metadata"]["vocab_size"], 307);
        assert_eq!(seen["metadata"]["max_context_len"], 512);
        assert_eq!(seen["metadata"]["eos_ids"], json!([1, 6]));
        let forward = &seen["methods"]["forward"];
        assert_eq!(forward["ops"]["attention"], 5);
        let n_ops: u64 =
            forward["ops"].as_object().expect("by kind").values().filter_map(|n| n.as_u64()).sum();
        assert_eq!(forward["n_ops"].as_u64(), Some(n_ops));
        assert_eq!(forward["outputs"][0], json!({"name": "logits", "type": "f32 [R, 307]"}));
        assert_eq!(seen["states"].as_array().map(Vec::len), Some(5));
        let kinds = seen["quantisation"].as_array().expect("a list");
        assert!(kinds.iter().any(|k| k["encoding"] == "q4 g32 sym f16"), "{kinds:?}");
        let sum = |key: &str| kinds.iter().filter_map(|k| k[key].as_u64()).sum::<u64>();
        assert_eq!(Some(sum("params")), seen["n_params"].as_u64());
        assert_eq!(Some(sum("size_bytes")), seen["weight_bytes"].as_u64());
        assert!(seen["blobs"]["tokenizer.json"].as_u64() > Some(1000));
    }
    let seen = run(lapidary("inspect").arg(&lap).arg("--json")).done().json();
    assert!(seen["blobs"]["golden.safetensors"].is_u64());
    let text = run(lapidary("inspect").arg(&lap)).done();
    for word in ["vocabulary 307", "method forward", "q4 g32", "caches: 2 flat, 3 rings", "eos 1 6"]
    {
        assert!(text.text().contains(word), "{word}: {}", text.text());
    }
    assert_eq!(text.stderr, "");
}

#[test]
fn a_drafter_becomes_the_method_draft_and_changes_no_logit() {
    let dir = temp();
    for (target, drafter) in
        [("gemma4_text_dense", "gemma4_assistant"), ("gemma4_text_e", "gemma4_assistant_e")]
    {
        let out = dir.path().join(format!("{target}.lap"));
        let mut command = lapidary("export");
        command.arg(tiny(target)).arg("--draft").arg(tiny(drafter)).arg("-o").arg(&out);
        run(&mut command).done();
        let seen = run(lapidary("inspect").arg(&out).arg("--json")).done().json();
        assert!(seen["methods"]["draft"]["n_ops"].as_u64() > Some(10), "{target}");
        assert!(run(lapidary("verify").arg(&out)).done().text().ends_with("passed\n"));
        let alone = logits(&tiny(target), IDS, &["--greedy", "2"], &dir.path().join("alone"));
        let both = logits(&out, IDS, &["--greedy", "2"], &dir.path().join("both"));
        assert!(fs::read(alone).expect("written") == fs::read(both).expect("written"), "{target}");
    }
}

#[test]
fn a_wrong_drafter_is_refused() {
    let dir = temp();
    let out = dir.path().join("model.lap");
    let try_with = |target: &Path, drafter: &Path| {
        run(lapidary("export").arg(target).arg("--draft").arg(drafter).arg("-o").arg(&out))
    };
    let target = tiny("gemma4_text_dense");
    try_with(&target, &tiny("gemma3_text")).refused(3, &["not a drafter"]);
    try_with(&target, &tiny("gemma4_assistant_e")).refused(3, &[]);
    try_with(&target, &dir.path().join("missing")).refused(5, &["missing"]);
    // A drafter alone is no model.
    run(lapidary("inspect").arg(tiny("gemma4_assistant"))).refused(3, &["--draft"]);
    assert!(names(dir.path()).is_empty());
    // A file that is written already takes one, but no second.
    let lap = export(&target, &out);
    let drafter = tiny("gemma4_assistant");
    let mut command = lapidary("inspect");
    let seen = run(command.arg(&lap).arg("--draft").arg(&drafter).arg("--json")).done().json();
    assert!(seen["methods"]["draft"]["n_ops"].as_u64() > Some(10));
    let both = dir.path().join("both.lap");
    let mut command = lapidary("export");
    run(command.arg(&target).arg("--draft").arg(&drafter).arg("-o").arg(&both)).done();
    let mut command = lapidary("inspect");
    run(command.arg(&both).arg("--draft").arg(&drafter)).refused(3, &["already"]);
}

#[test]
fn f16_a_file_that_is_there_is_replaced_only_if_asked() {
    let dir = temp();
    let out = dir.path().join("model.lap");
    fs::write(&out, "precious").expect("written");
    let mut command = lapidary("export");
    command.arg(tiny("gemma3_text")).arg("-o").arg(&out);
    run(&mut command).refused(2, &["model.lap", "--force"]);
    assert_eq!(fs::read(&out).expect("still there"), b"precious");
    run(command.arg("--force")).done();
    assert!(run(lapidary("verify").arg(&out)).done().text().ends_with("passed\n"));
    // A file may replace the one it is made from.
    run(lapidary("export").arg(&out).arg("-o").arg(&out).arg("--force")).done();
    assert!(run(lapidary("verify").arg(&out)).done().text().ends_with("passed\n"));
    assert_eq!(names(dir.path()), ["model.lap"]);
}

#[test]
fn f16_a_place_that_can_not_be_written_is_refused_before_the_work() {
    let dir = temp();
    let file = dir.path().join("file");
    fs::write(&file, "").expect("written");
    let missing = dir.path().join("missing").join("model.lap");
    let inside_a_file = file.join("model.lap");
    let cases = [
        (missing.as_path(), 5, "missing"),
        (inside_a_file.as_path(), 2, "is a file"),
        (dir.path(), 2, "is a folder; name a file"),
    ];
    for (out, code, why) in cases {
        let ran = run(lapidary("export").arg(tiny("gemma3_text")).arg("-o").arg(out));
        let ran = ran.refused(code, &[why]);
        assert!(!ran.stderr.contains("golden"), "{}", ran.stderr);
        assert_eq!(names(dir.path()), ["file"]);
    }
}

#[test]
fn f16_a_model_that_can_not_be_read_leaves_no_file() {
    let dir = temp();
    let model = copy_of("gemma3_text", dir.path());
    let weights = model.join("model.safetensors");
    let bytes = fs::read(&weights).expect("it is there");
    fs::write(&weights, &bytes[..bytes.len() - 1]).expect("written");
    let out = temp();
    let mut command = lapidary("export");
    run(command.arg(&model).arg("-o").arg(out.path().join("x.lap"))).refused(3, &["safetensors"]);
    assert!(names(out.path()).is_empty());
}

#[test]
fn f16_an_export_that_is_killed_leaves_nothing_under_the_final_name() {
    let model = temp();
    sparse("gemma-3-1b", model.path());
    let dir = temp();
    let out = dir.path().join("model.lap");
    let mut command = lapidary("export");
    command.arg(model.path()).arg("--no-golden").arg("-o").arg(&out);
    let mut child = command.spawn().expect("it starts");
    let started = Instant::now();
    let writing = || {
        names(dir.path())
            .iter()
            .any(|n| fs::metadata(dir.path().join(n)).is_ok_and(|m| m.len() > 1 << 20))
    };
    while !writing() {
        assert!(child.try_wait().expect("it runs").is_none(), "it ended before it was killed");
        assert!(started.elapsed() < Duration::from_secs(20), "nothing is written");
        std::thread::yield_now();
    }
    assert!(!out.exists(), "the final name is there before the file is whole");
    child.kill().expect("killed");
    child.wait().expect("it ends");
    assert!(!out.exists());
}

#[cfg(unix)]
#[test]
fn f16_an_export_that_is_interrupted_leaves_no_file() {
    let dir = temp();
    let out = dir.path().join("model.lap");
    let mut command = lapidary("export");
    command.args(["--synthetic", "gemma-3-1b", "--quant", "int4"]).arg("-o").arg(&out);
    let mut child = command.spawn().expect("it starts");
    let started = Instant::now();
    let written = |n: &String| fs::metadata(dir.path().join(n)).map_or(0, |m| m.len());
    while names(dir.path()).iter().all(|n| written(n) < 1 << 20) {
        assert!(child.try_wait().expect("it runs").is_none(), "it ended before it was stopped");
        assert!(started.elapsed() < Duration::from_secs(60), "nothing is written");
        std::thread::yield_now();
    }
    let asked = Instant::now();
    let pid = child.id().to_string();
    assert!(Command::new("kill").args(["-INT", &pid]).status().expect("kill runs").success());
    let ran = Ran::of(child.wait_with_output().expect("it ends"));
    assert!(asked.elapsed() < Duration::from_secs(20), "{:?}", asked.elapsed());
    assert_eq!(ran.code, Some(130), "{}", ran.stderr);
    assert!(names(dir.path()).is_empty(), "{:?}", names(dir.path()));
}

#[test]
fn what_is_quantised_stays_so_unless_asked() {
    let dir = temp();
    let export = |more: &[&str], name: &str| {
        let out = dir.path().join(name);
        let mut command = lapidary("export");
        command.arg(gguf()).args(["--no-golden", "--quant", "int8"]).args(more).arg("-o");
        let ran = run(command.arg(&out)).done();
        let seen = run(lapidary("inspect").arg(&out)).done().text().to_string();
        (ran.stderr, seen)
    };
    let (said, kept) = export(&[], "kept.lap");
    assert!(said.contains("--requantise") && kept.contains("q4 g32"), "{said}{kept}");
    let (said, made) = export(&["--requantise"], "made.lap");
    assert!(!said.contains("--requantise") && !made.contains("q4 g32"), "{said}{made}");
    assert!(made.contains("q8 "), "{made}");
}

#[test]
fn f16_two_exports_to_one_path_leave_one_whole_file() {
    let dir = temp();
    let out = dir.path().join("model.lap");
    let start = |family: &str| {
        let mut command = lapidary("export");
        command.arg(tiny(family)).arg("-o").arg(&out).arg("--force");
        command.spawn().expect("it starts")
    };
    let children = [start("gemma3_text"), start("gemma4_text_moe")];
    for child in children {
        assert!(child.wait_with_output().expect("it ends").status.success());
    }
    assert!(run(lapidary("verify").arg(&out)).done().text().ends_with("passed\n"));
    assert_eq!(names(dir.path()), ["model.lap"]);
}

#[test]
fn verify_names_the_tensor_whose_bytes_changed() {
    let dir = temp();
    let lap = export(&tiny("gemma4_text_dense"), &dir.path().join("model.lap"));
    for tensor in ["model.layers.3.mlp.up_proj.weight", "lapidary/golden.safetensors"] {
        let broken = dir.path().join("broken.lap");
        fs::copy(&lap, &broken).expect("copied");
        // The last byte, so that a blob still parses.
        edit_tensor(&broken, tensor, |bytes| *bytes.last_mut().expect("not empty") ^= 1);
        run(lapidary("verify").arg(&broken)).refused(3, &[tensor]);
    }
}

#[test]
fn verify_names_the_first_op_that_differs() {
    let dir = temp();
    let lap = export(&tiny("gemma4_text_dense"), &dir.path().join("model.lap"));
    // No backend rounds everywhere as the reference does, and none may differ with no tolerance.
    let ran = run(lapidary("verify").arg(&lap).args(["--backend", "cpu", "--tolerance", "0"]));
    assert_eq!(ran.code, Some(1));
    assert!(ran.text().contains("FAILED"), "{}", ran.text());
    let line = ran.text().lines().last().expect("a last line");
    assert!(line.starts_with("first op that diverges: model.layers.0."), "{line}");
    assert!(line.contains("got ") && line.contains("reference "), "{line}");
    // The verdict counts even if nobody reads it.
    let mut child =
        lapidary("verify").arg(&lap).args(["--tolerance", "0"]).spawn().expect("starts");
    drop(child.stdout.take());
    assert_eq!(child.wait().expect("it ends").code(), Some(1));
}

#[test]
fn verify_says_when_the_goldens_are_of_other_weights() {
    let dir = temp();
    let original = export(&tiny("gemma4_text_dense"), &dir.path().join("original.lap"));
    let tuned = copy_of("gemma4_text_dense", dir.path());
    edit_tensor(&tuned.join("model.safetensors"), "model.norm.weight", |bytes| {
        bytes[..4].copy_from_slice(&40f32.to_le_bytes());
    });
    let mixed = dir.path().join("mixed.lap");
    with_goldens_of(&tuned, &original, &mixed);
    for backend in ["cpu", "reference"] {
        let ran = run(lapidary("verify").arg(&mixed).args(["--backend", backend]));
        assert_eq!(ran.code, Some(1), "{}", ran.stderr);
        assert!(ran.text().contains("bytes: as written"), "{}", ran.text());
        assert!(ran.text().contains("FAILED"), "{}", ran.text());
        assert!(ran.text().contains("goldens were made from other weights"), "{}", ran.text());
    }
}

#[test]
fn f9_verify_does_not_pass_weights_that_are_not_finite() {
    let dir = temp();
    let model = copy_of("gemma4_text_dense", dir.path());
    edit_tensor(&model.join("model.safetensors"), "model.layers.2.mlp.gate_proj.weight", |bytes| {
        bytes[..4].copy_from_slice(&f32::NAN.to_le_bytes());
    });
    let lap = export(&model, &dir.path().join("model.lap"));
    let ran = run(lapidary("verify").arg(&lap));
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    assert!(ran.text().contains("model.layers.2.mlp.gate_proj"), "{}", ran.text());
}

#[test]
fn verify_of_a_model_without_goldens_says_how_to_get_them() {
    let dir = temp();
    run(lapidary("verify").arg(tiny("gemma3_text"))).refused(1, &["golden", "lapidary export"]);
    let out = dir.path().join("model.lap");
    let mut command = lapidary("export");
    let ran = run(command.arg(tiny("gemma3_text")).arg("--no-golden").arg("-o").arg(&out)).done();
    assert!(ran.stderr.contains("without golden logits"), "{}", ran.stderr);
    let ran = run(lapidary("verify").arg(&out)).done();
    assert!(ran.text().starts_with("bytes: as written\nlogits: not checked: "), "{}", ran.text());
}

#[test]
fn other_tools_can_open_the_file() {
    let dir = temp();
    let lap = export(&tiny("gemma3_text"), &dir.path().join("model.lap"));
    let (ours, theirs) =
        (fs::read(&lap).expect("written"), fs::read(tiny("gemma3_text").join("model.safetensors")));
    let theirs = theirs.expect("it is there");
    for weight in ["model.embed_tokens.weight", "model.layers.4.self_attn.q_proj.weight"] {
        assert!(ours[place(&ours, weight)] == theirs[place(&theirs, weight)], "{weight}");
    }
    let (shape, ids) = i64s(&tiny("gemma3_text").join("reference.safetensors"), "input_ids");
    assert_eq!(shape[1], ids.len());
    let out = logits(&lap, &joined(&ids, " "), &["--rows", "last"], &dir.path().join("out"));
    assert!(out.exists());
}
