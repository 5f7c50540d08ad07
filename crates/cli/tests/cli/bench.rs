//! `lapidary bench`, and `export --quant`.

use std::fs;

use serde_json::{Value, json};

use crate::serve::{Serving, serve};
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
fn json_says_what_was_measured() {
    let doctor = run(lapidary("doctor").arg("--json")).done().json();
    let cpu = doctor["backends"].as_array().expect("a list").iter().find(|b| b["name"] == "cpu");
    let cpu = &cpu.expect("it is always there")["devices"][0];
    let mut command = lapidary("bench");
    command.arg(gguf()).args(["-p", "8", "-n", "0", "-r", "2", "--json", "--backend", "cpu"]);
    let rows = run(command.args(["--threads", "1", "--kv", "int8", "--chunk", "4"])).done().json();
    let row = &rows[0];
    let file = gguf().display().to_string();
    for (name, value) in [
        ("backends", json!("cpu")),
        ("gpu_info", json!("")),
        ("devices", cpu["id"].clone()),
        ("n_threads", json!(1)),
        ("type_k", json!("int8")),
        ("type_v", json!("int8")),
        ("n_ubatch", json!(4)),
        ("n_prompt", json!(8)),
        ("n_gen", json!(0)),
        ("n_depth", json!(0)),
        ("model_filename", json!(file)),
    ] {
        assert_eq!(row[name], value, "{name}: {row}");
    }
    // A device's name goes on to say what it multiplies with.
    let told = row["cpu_info"].as_str().expect("a name");
    let device = cpu["name"].as_str().expect("a name");
    assert!(!told.is_empty() && device.starts_with(&format!("{told}, ")), "{told}; {device}");
    let seconds = row["samples_ns"][0].as_f64().expect("a number") / 1e9;
    let rate = row["samples_ts"][0].as_f64().expect("a number");
    assert!((seconds * rate / 8.0 - 1.0).abs() < 1e-3, "{row}");
    let time = row["test_time"].as_str().expect("a time");
    assert!(time.len() == 20 && time.starts_with("20") && time.ends_with('Z'), "{time}");
    // Many threads, if nobody asked for a number.
    let mut command = lapidary("bench");
    command.arg(gguf()).args(["-p", "4", "-n", "0", "-r", "1", "--json", "--backend", "cpu"]);
    let rows = run(&mut command).done().json();
    let n = rows[0]["n_threads"].as_u64().expect("a number");
    assert!(rows[0]["device_info"].as_str().is_some_and(|d| d.contains(&format!("{n} thread"))));
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
fn sequences_at_once_are_decoded_in_one_call_each_time() {
    let mut command = lapidary("bench");
    command.args(["--parallel", "1,5", "-p", "130", "-n", "6", "-r", "1", "--backend", "cpu"]);
    let rows: Vec<Value> =
        serde_json::from_slice(&run(command.arg("--json")).done().stdout).expect("JSON");
    assert_eq!(rows.len(), 2);
    for (row, n) in rows.iter().zip([1, 5]) {
        assert_eq!((&row["pl"], &row["pp"], &row["tg"]), (&json!(n), &json!(130), &json!(6)));
        assert_eq!(row["n_kv"], n * 136);
        assert_eq!(row["decode_tokens"], n * 6, "{row}");
        assert_eq!(row["decode_calls"], 6, "every call has a token of each sequence: {row}");
        for key in ["t_pp", "speed_pp", "t_tg", "speed_tg", "t", "speed"] {
            assert!(row[key].as_f64() > Some(0.0), "{key}: {row}");
        }
    }
    let mut command = lapidary("bench");
    command.arg(tiny("gemma4_text_moe")).args(["--parallel", "2", "-p", "4", "-n", "2"]);
    let ran = run(command.args(["-r", "1"])).done();
    let lines: Vec<&str> = ran.text().lines().collect();
    let cells = |line: &str| -> Vec<String> {
        line.trim_matches('|').split('|').map(|cell| cell.trim().to_string()).collect()
    };
    let names = "PP TG B N_KV T_PP s S_PP t/s T_TG s S_TG t/s T s S t/s";
    assert_eq!(cells(lines[0]).join(" "), names);
    assert_eq!(cells(lines[2])[..4], ["4", "2", "2", "12"]);
}

#[test]
fn sequences_that_do_not_fit_are_refused() {
    let bench = |args: &[&str]| {
        let mut command = lapidary("bench");
        run(command.args(["--backend", "cpu", "--parallel"]).args(args))
    };
    // 4096 of them need terabytes.
    bench(&["4096", "--synthetic", "gemma-3-27b", "--quant", "int4", "-p", "100000"])
        .refused(4, &["need", "GiB", "try"]);
    bench(&["0"]).refused(2, &["--parallel"]);
    bench(&["2", "-p", "0"]).refused(2, &["-p 1"]);
    bench(&["2", "-d", "8"]).refused(2, &["--parallel"]);
}

#[test]
fn a_server_is_measured_at_each_number_of_requests() {
    let mut command = serve();
    let server = Serving::start(command.args(["--api-key", "k1"]));
    let bench = || {
        let mut command = lapidary("bench");
        command.arg("--url").arg(format!("http://{}", server.at)).args(["-p", "60", "-n", "12"]);
        command
    };
    let mut command = bench();
    command.args(["--parallel", "1,3", "--requests", "6", "--api-key", "k1", "--json"]);
    let rows: Vec<Value> = serde_json::from_slice(&run(&mut command).done().stdout).expect("JSON");
    assert_eq!(rows.len(), 2);
    for (row, at_once) in rows.iter().zip([1, 3]) {
        assert_eq!(row["model_id"], "pebble");
        assert_eq!(row["max_concurrency"], at_once);
        assert_eq!((&row["completed"], &row["failed"]), (&json!(6), &json!(0)), "{row}");
        assert_eq!(row["total_output_tokens"], 6 * 12, "answers have their full length: {row}");
        let read = row["total_input_tokens"].as_f64().expect("a number") / 6.0;
        assert!((48.0..72.0).contains(&read), "prompts have about 60 tokens: {row}");
        for key in ["duration", "request_throughput", "output_throughput", "mean_tpot_ms"] {
            assert!(row[key].as_f64() > Some(0.0), "{key}: {row}");
        }
        for name in ["ttft", "itl"] {
            let ms = |which: &str| row[format!("{which}_{name}_ms")].as_f64().expect("a number");
            let (p50, p90, p99) = (ms("median"), ms("p90"), ms("p99"));
            assert!(p50 > 0.0 && p50 <= p90 && p90 <= p99, "{row}");
        }
    }
    // A list of keys is what `serve` takes from the variable.
    let mut command = bench();
    let ran = run(command.args(["pebble", "--requests", "2"]).env("LAPIDARY_API_KEY", "k1,k2"));
    let lines: Vec<String> = ran.done().text().lines().map(String::from).collect();
    assert_eq!(lines.len(), 3, "{lines:?}");
    assert!(lines[2].starts_with("| pebble | 4 | 2 | 0 |"), "{lines:?}");
    assert!(lines.iter().all(|line| line.matches('|').count() == 15), "{lines:?}");

    run(&mut bench()).refused(1, &["401"]);
    run(bench().args(["marble", "--api-key", "k1"])).refused(1, &["404", "marble"]);
}

#[test]
fn a_server_that_can_t_be_measured_is_refused() {
    let bench = |args: &[&str]| run(lapidary("bench").arg("--url").args(args));
    // A port that was free a moment ago.
    let port = std::net::TcpListener::bind("127.0.0.1:0").expect("a port").local_addr();
    let nobody = format!("http://{}", port.expect("an address"));
    bench(&[&nobody]).refused(1, &[&nobody["http://".len()..], "running"]);
    bench(&["https://127.0.0.1"]).refused(2, &["https", "http://127.0.0.1:8080"]);
    bench(&["127.0.0.1:8080"]).refused(2, &["http://"]);
    bench(&[&nobody, "-n", "0"]).refused(2, &["-n 1"]);
    bench(&[&nobody, "--rate", "0"]).refused(2, &["--rate"]);
    for flag in ["--image", "--chunk=4", "-d=8", "-r=2", "--synthetic=gemma-3-1b"] {
        bench(&[&nobody, flag]).refused(2, &["--url"]);
    }
    run(lapidary("bench").args(["--requests", "2"])).refused(2, &["required"]);
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
