//! `lapidary bench`, and `export --quant`.

use std::fs;

use serde_json::Value;

use crate::support::{gguf, lapidary, run, temp, tiny};

#[test]
fn json_has_the_names_of_llama_bench() {
    let mut command = lapidary("bench");
    command.arg(gguf()).args(["-p", "8", "-n", "4", "-d", "0,6", "-r", "2", "--json"]);
    let ran = run(&mut command).done();
    let rows: Vec<Value> = serde_json::from_slice(&ran.stdout).expect("JSON");
    let names: Vec<&str> = rows.iter().filter_map(|r| r["test"].as_str()).collect();
    assert_eq!(names, ["pp8", "tg4", "pp8 @ d6", "tg4 @ d6"]);
    for row in &rows {
        for key in ["avg_ns", "stddev_ns", "avg_ts", "stddev_ts", "n_prompt", "n_gen", "n_depth"] {
            assert!(row[key].is_number(), "{key}: {row}");
        }
        assert_eq!(row["samples_ns"].as_array().map(Vec::len), Some(2));
        assert!(row["avg_ts"].as_f64() > Some(0.0));
        assert!(row["model_n_params"].as_u64() > Some(0));
    }
}

#[test]
fn the_table_has_a_line_for_each_test() {
    let mut command = lapidary("bench");
    let ran =
        run(command.arg(tiny("gemma4_text_moe")).args(["-p", "4", "-n", "2", "-r", "1"])).done();
    let lines: Vec<&str> = ran.text().lines().collect();
    assert!(lines.len() >= 4, "{}", ran.text());
    assert!(lines[2].contains("pp4") && lines[3].contains("tg2"));
    if cfg!(target_os = "linux") {
        assert_eq!(lines.len(), 6, "{}", ran.text());
        assert!(lines[5].starts_with("peak memory: "), "{}", ran.text());
    }
}

#[test]
fn what_can_t_be_measured_is_refused() {
    run(lapidary("bench").arg(gguf()).args(["--synthetic", "gemma-3-1b"]))
        .refused(2, &["--synthetic"]);
    run(lapidary("bench").args(["--synthetic", "gemma-9"])).refused(2, &["gemma-9", "gemma-4-e2b"]);
    run(lapidary("bench").args(["--synthetic", "gemma-3-270m", "--quant", "int5"]))
        .refused(2, &["int5", "q4_0"]);
    for flag in ["-p", "-n", "-d"] {
        run(lapidary("bench").arg(gguf()).args([flag, "18446744073709551615"]))
            .refused(2, &["positions"]);
    }
    run(lapidary("bench").arg(gguf()).args(["-r", "0"])).refused(2, &["repetitions"]);
}

#[test]
fn a_recipe_quantises_on_the_way() {
    let folder = temp();
    let recipe = folder.path().join("mine.toml");
    fs::write(&recipe, "name = 'mine'\n[[rule]]\nmatch = '.*mlp.*'\nbits = 6\ngroup = 16\n")
        .expect("written");
    let recipe = recipe.to_str().expect("UTF-8");
    for (quant, label) in [
        ("int4", "q4 "),
        ("int8", "q8 "),
        ("q4_0", "q4 g32 sym"),
        ("bf16", "bf16"),
        (recipe, "q6 g16"),
    ] {
        let out = folder.path().join("out.lap");
        let mut export = lapidary("export");
        export.arg(tiny("gemma4_text_dense")).args(["--quant", quant, "--force", "-o"]).arg(&out);
        run(&mut export).done();
        let shown = run(lapidary("inspect").arg(&out)).done();
        assert!(shown.text().contains(label), "{quant}: {}", shown.text());
        run(lapidary("verify").arg(&out)).done();
    }
    let mut export = lapidary("export");
    export
        .arg(tiny("gemma3_text"))
        .args(["--quant", "none.toml", "-o"])
        .arg(folder.path().join("x"));
    run(&mut export).refused(5, &["none.toml"]);
}
