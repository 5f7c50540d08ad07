//! `lapidary eval kl`.

use std::fs;
use std::path::PathBuf;

use serde_json::Value;
use tempfile::TempDir;

use crate::support::{Ran, gguf, lapidary, run, temp, tiny, with_tokenizer};

/// A folder with a text of some 90 tokens.
fn text() -> (TempDir, PathBuf) {
    let dir = temp();
    let file = dir.path().join("text");
    fs::write(&file, "the world is the hand of the other and then the rest ".repeat(6))
        .expect("written");
    (dir, file)
}

fn kl(more: &[&str]) -> Ran {
    let (_dir, file) = text();
    let mut command = lapidary("eval");
    command.arg("kl").arg(gguf()).arg("-f").arg(&file).args(["--window", "16"]);
    run(command.args(more))
}

fn number(row: &Value, key: &str) -> f64 {
    row[key].as_f64().unwrap_or_else(|| panic!("{key}: {row}"))
}

#[test]
fn every_recipe_is_measured_and_fewer_bits_diverge_more() {
    let report = kl(&["--reference", "bf16", "--quant", "all", "--json"]).done().json();
    assert_eq!((&report["reference"], &report["window"]), (&"bf16".into(), &16.into()));
    let rows = report["models"].as_array().expect("a list");
    let names: Vec<&str> = rows.iter().filter_map(|r| r["name"].as_str()).collect();
    let others = ["int8", "int4-sensitive", "int4-sensitive-minmax", "int4", "int4-minmax", "q4_0"];
    assert_eq!(names, others);
    let row = |name: &str| rows.iter().find(|r| r["name"] == name).expect("measured");
    let mean = |name: &str| number(row(name), "kl_mean");
    assert!(mean("int8") > 0.0 && mean("int8") < mean("int4") / 10.0, "{report}");
    assert!(mean("int4") <= mean("int4-minmax"), "{report}");
    for row in rows {
        let quantiles = ["kl_median", "kl_p90", "kl_p95", "kl_p99", "kl_p99_9", "kl_max"];
        let quantiles: Vec<f64> = quantiles.iter().map(|key| number(row, key)).collect();
        assert!(quantiles.is_sorted(), "{row}");
        assert!(number(row, "kl_stderr") > 0.0 && number(row, "delta_p_rms") > 0.0, "{row}");
        assert!((0.0..=1.0).contains(&number(row, "same_top")), "{row}");
        let ratio = (number(row, "ppl") / number(row, "ppl_reference")).ln();
        assert!((ratio - number(row, "ln_ppl_ratio")).abs() < 1e-9, "{row}");
    }
    let table = kl(&["--reference", "bf16", "--quant", "int8,int4", "--quant", "q4_0"]).done();
    let lines: Vec<&str> = table.text().lines().collect();
    assert!(lines[2].starts_with("| int8 ") && lines[4].starts_with("| q4_0 "), "{lines:?}");
}

#[test]
fn a_model_does_not_diverge_from_itself() {
    let model = gguf();
    let report = kl(&["--reference", model.to_str().expect("UTF-8"), "--json"]).done().json();
    let row = &report["models"][0];
    assert!(number(row, "kl_max") < 1e-12, "{row}");
    assert_eq!(number(row, "same_top"), 1.0);
    assert_eq!(number(row, "ln_ppl_ratio"), 0.0);
    // The perplexities are those of `eval ppl`.
    let (_dir, file) = text();
    let mut command = lapidary("eval");
    command.arg("ppl").arg(gguf()).arg("-f").arg(&file).args(["--window", "16", "--json"]);
    let ppl = run(&mut command).done().json();
    assert!((number(&ppl, "ppl") / number(row, "ppl") - 1.0).abs() < 1e-5, "{ppl} {row}");
    let list = kl(&["--reference", "bf16"]).done();
    assert!(list.text().contains("mean KL") && list.text().contains("same top token"));
}

#[test]
fn what_can_not_be_compared_is_refused() {
    kl(&["--reference", "bf16", "--quant", "int5"]).refused(2, &["int5", "int4-minmax"]);
    kl(&["--reference", "no-such-model"]).refused(5, &["no-such-model"]);
    kl(&[]).refused(2, &["required"]);
    let dir = temp();
    let (_text, file) = text();
    let model = with_tokenizer(dir.path());
    let mut command = lapidary("eval");
    command.arg("kl").arg(&model).arg("-f").arg(&file).args(["--window", "16", "--reference"]);
    run(command.arg(tiny("gemma4_text_e"))).refused(2, &["reference", "tokens"]);
}
