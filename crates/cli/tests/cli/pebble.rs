//! The command with the model that it carries: what a user sees who has no model.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::support::{Ran, heldout, lapidary, piped, run, temp};

const NOTE: &str = "note: no model was named; this is pebble";

#[test]
fn without_a_model_a_prompt_is_answered() {
    let ran = run(lapidary("run").args(["What is 47 + 38?", "-t", "0"])).done();
    assert_eq!(ran.text(), "47 + 38 = 85.\n");
    assert!(ran.stderr.starts_with(NOTE), "{}", ran.stderr);
    let quiet = run(lapidary("run").args(["What is 47 + 38?", "-t", "0", "-q"])).done();
    assert_eq!((quiet.text(), quiet.stderr.as_str()), (ran.text(), ""));
    let read = piped(lapidary("run").args(["-t", "0"]), "What is 47 + 38?\n").done();
    assert_eq!(read.text(), ran.text());
    for named in [&["pebble", "What is 47 + 38?"][..], &["-p", "What is 47 + 38?", "pebble"]] {
        // The name is the built-in model's even where a folder has it.
        let folder = temp();
        fs::create_dir(folder.path().join("pebble")).expect("a folder");
        let mut command = lapidary("run");
        command.args(named).args(["-t", "0"]).current_dir(folder.path());
        let ran = run(&mut command).done();
        assert_eq!(ran.text(), "47 + 38 = 85.\n");
        assert!(!ran.stderr.contains(NOTE), "{}", ran.stderr);
    }
}

#[test]
fn what_could_be_a_model_is_never_taken_for_a_prompt() {
    for path in ["peble", "no/such", "my model.gguf", "gemma-3-1b-it.lap", "./a b"] {
        let ran = run(lapidary("run").arg(path)).refused(5, &[path, "-p"]);
        assert!(!ran.stderr.contains(NOTE), "{}", ran.stderr);
        run(lapidary("run").args([path, "hello"])).refused(5, &[path]);
    }
    let ran = run(lapidary("run").args(["-p", "hello", "-q"])).done();
    assert!(!ran.text().trim().is_empty());
    run(lapidary("run").args(["a b", "c", "-p", "d"])).refused(2, &["--prompt"]);
    run(&mut lapidary("run")).refused(2, &["give a prompt"]);
    run(lapidary("run").args(["pebble", "hi", "--draft", "x"])).refused(5, &["x"]);
}

#[test]
fn its_drafter_guesses_and_changes_no_word() {
    let story = |draft: &str| {
        let mut command = lapidary("run");
        command.args(["pebble", "Tell me a story about a brave fox.", "-t", "0", "--json"]);
        run(command.args(["--draft", draft])).done().json()
    };
    let (plain, drafted) = (story("off"), story("pebble"));
    assert_eq!(drafted["text"], plain["text"]);
    assert_eq!(plain["stats"]["draft_calls"], 0);
    let number = |name: &str| drafted["stats"][name].as_u64().expect("a number");
    assert!(number("accepted_tokens") > 2 * number("draft_calls"), "{drafted}");
}

#[test]
fn a_drawing_that_it_never_saw_is_described() {
    for (file, words) in
        [("drawing08.png", ["green", "triangle"]), ("drawing23.png", ["blue", "star"])]
    {
        let mut command = lapidary("run");
        command.arg("--image").arg(heldout().join("images").join(file));
        let ran = run(command.args(["Describe this image.", "-q", "-t", "0"])).done();
        assert!(words.iter().all(|word| ran.text().contains(word)), "{file}: {}", ran.text());
    }
}

#[test]
fn every_command_that_takes_a_model_knows_it() {
    let folder = temp();
    let out = folder.path().join("out");
    let ran = run(&mut lapidary("inspect")).done();
    assert!(ran.text().starts_with("pebble") && ran.stderr.contains(NOTE));
    let ran = run(&mut lapidary("verify")).done();
    assert!(ran.text().contains("bytes: as written") && ran.text().ends_with("passed\n"));
    assert_eq!(run(lapidary("tokens").arg("hello there")).done().json()[0], 2);
    assert_eq!(piped(&mut lapidary("tokens"), "hello there").done().json()[0], 2);
    run(lapidary("logits").args(["--tokens", "2,400", "-o"]).arg(&out)).done();
    let mut command = lapidary("bench");
    let ran = run(command.args(["-p", "4", "-n", "2", "-r", "1", "--json"])).done();
    assert!(ran.json()[0]["model_type"].as_str().is_some_and(|s| s.starts_with("pebble")));
    let mut command = lapidary("eval");
    command.args(["ppl", "--window", "64", "--tokens", "640", "--json", "-f"]);
    let ran = run(command.arg(heldout().join("story.txt"))).done();
    assert!(ran.json()["ppl"].as_f64().is_some_and(|x| x > 10.0 && x < 100.0), "{}", ran.text());
    // Written out, it is the same file.
    let lap = folder.path().join("pebble.lap");
    run(lapidary("export").args(["pebble", "--no-golden", "-o"]).arg(&lap)).done();
    let ids = |model: &[&str]| run(lapidary("tokens").args(model).arg("a b c")).done().json();
    assert_eq!(ids(&[lap.to_str().expect("UTF-8")]), ids(&["pebble"]));
}

#[test]
fn a_chat_needs_no_model() {
    let folder = temp();
    let saved = folder.path().join("chat.json");
    let picture = heldout().join("images/drawing08.png");
    let lines = format!(
        "/help\n/set temperature 0\n/set\nWhat is 12 + 30?\n\"\"\"What is\n47 + 38?\"\"\"\n/stats\n\
         /system Be brief.\n/image {}\nDescribe this image.\n/save {}\n/clear\nWhat can you do?\n",
        picture.display(),
        saved.display()
    );
    let ran = piped(&mut lapidary("chat"), &lines).done();
    let said: Vec<&str> = ran.text().lines().collect();
    assert_eq!(said.len(), 4, "{said:?}");
    assert!(said[0].ends_with("42."), "{said:?}");
    assert!(said[2].contains("green triangle") && said[3].contains("stories"), "{said:?}");
    let words = [NOTE, "/image FILE", "temperature 0 ", "tok/s", "64 tokens", "saved 7 messages"];
    for word in words {
        assert!(ran.stderr.contains(word), "{word}: {}", ran.stderr);
    }
    let saved: Value = serde_json::from_slice(&fs::read(saved).expect("saved")).expect("JSON");
    assert_eq!(saved["messages"][0]["content"], "Be brief.");
    assert_eq!(saved["messages"][3]["content"], "What is\n47 + 38?");
    assert_eq!(saved["messages"][6]["role"], "assistant");
}

#[cfg(unix)]
#[test]
fn ctrl_c_stops_an_answer_of_a_chat_and_then_the_chat() {
    let mut command = lapidary("chat");
    // The slowest backend, so that there is time to interrupt it.
    command.args(["--backend", "reference", "-t", "0", "-n", "2000"]).stdin(Stdio::piped());
    let mut child = command.spawn().expect("it starts");
    let mut stdin = child.stdin.take().expect("piped");
    let mut stdout = BufReader::new(child.stdout.take().expect("piped"));
    let pid = child.id().to_string();
    let interrupt = || {
        assert!(Command::new("kill").args(["-INT", &pid]).status().expect("kill runs").success());
    };
    writeln!(stdin, "Tell me a story about a brave fox.").expect("written");
    let mut first = [0];
    stdout.read_exact(&mut first).expect("a first byte");
    interrupt();
    let mut story = String::new();
    stdout.read_line(&mut story).expect("the rest of a line");
    assert!(!story.contains("ever after"), "it was not stopped: {story}");
    // The chat goes on.
    writeln!(stdin, "What is 47 + 38?").expect("written");
    let mut sum = String::new();
    stdout.read_line(&mut sum).expect("another line");
    assert!(sum.contains("85"), "{sum}");
    interrupt();
    let ran = Ran::of(child.wait_with_output().expect("it ends"));
    assert_eq!(ran.code, Some(130), "{}", ran.stderr);
    drop(stdin);
}

#[test]
fn the_demonstration_runs_on_every_backend_and_compares_them() {
    let ran = run(lapidary("demo").args(["--precision", "exact", "--json"])).done();
    let rows = ran.json();
    let rows = rows.as_array().expect("rows");
    let doctor = run(lapidary("doctor").arg("--json")).done().json();
    let usable = |b: &&Value| b["usable"] == true && b["devices"][0]["passed_over"].is_null();
    let backends = doctor["backends"].as_array().expect("a list").iter().filter(usable).count();
    assert_eq!(rows.len(), backends);
    for row in rows {
        assert_eq!((&row["n_right"], &row["n_answers"]), (&3.into(), &3.into()), "{row}");
        assert_eq!(row["same_tokens"], row["n_tokens"], "{row}");
        assert!(row["answer_tokens_per_s"].as_f64() > Some(0.0), "{row}");
        assert!(row["image_s"].as_f64() > Some(0.0), "{row}");
    }
    let text = run(lapidary("demo").args(["--precision", "exact"])).done();
    for word in
        ["> What can you do?", "yellow star", "<|tool_call>call:get_weather{", "| backend |"]
    {
        assert!(text.text().contains(word), "{word}: {}", text.text());
    }
    assert_eq!(text.text().matches("3 of 3").count(), backends);
}

#[test]
fn held_out_answers_are_counted() {
    let mut command = lapidary("eval");
    command.args(["heldout", "--set", "additions,tools,drawings,story", "--limit", "4", "--json"]);
    let ran = run(command.arg("--dir").arg(heldout()).args(["--against", "pebble"])).done();
    let report = ran.json();
    for set in ["additions", "tools", "drawings"] {
        assert_eq!(report["sets"][set]["n"], 4, "{report}");
        assert_eq!(report["sets"][set]["right"], 4, "{report}");
        assert_eq!(report["points_lost"][set], 0.0, "{report}");
    }
    assert!(report["sets"].get("mixed").is_none());
    assert_eq!(report["texts"]["story"]["n_scored"], 4 * 511);
    assert!(report["texts"]["story"]["ppl"].as_f64().is_some_and(|x| x < 60.0), "{report}");
    assert_eq!(report["against"]["sets"], report["sets"]);
    let mut command = lapidary("eval");
    command.args(["heldout", "--set", "mixed", "--limit", "1", "--dir"]).arg(heldout());
    let text = run(&mut command).done();
    assert!(
        text.text().contains("| mixed | ") && text.text().contains("of 1 |"),
        "{}",
        text.text()
    );
}

#[test]
fn backends_are_compared_on_held_out_questions() {
    let ask = |more: &[&str]| {
        let mut command = lapidary("eval");
        command.args(["agree", "--limit", "3", "--precision", "exact", "-n", "12", "--dir"]);
        command.arg(heldout()).args(more);
        run(&mut command).done()
    };
    let report = ask(&["--json"]).json();
    assert_eq!(report["n_answers"], 3);
    let others = report["others"].as_array().expect("a list");
    assert!(!others.is_empty());
    for other in others {
        assert_eq!(other["same_answers"], 3, "{other}");
        assert_eq!(other["n_tokens"], report["n_tokens"]);
    }
    // Where two differ by more than a near tie, the command fails, and says so all the same.
    let mut command = lapidary("eval");
    command.args(["agree", "--backends", "cpu,reference", "--limit", "13", "--kv", "int8"]);
    let ran = run(command.args(["-n", "12", "--near-tie", "0", "--dir"]).arg(heldout()));
    assert_eq!(ran.code, Some(1), "{}", ran.text());
    assert!(ran.text().contains("after"), "{}", ran.text());
    // A backend agrees with itself.
    let text = ask(&["--backends", "cpu,cpu"]);
    assert!(text.text().contains("3 of 3 the same on cpu"), "{}", text.text());
}

#[test]
fn sets_that_are_not_there_are_refused() {
    let folder = temp();
    for what in ["heldout", "agree"] {
        let ask = |dir: PathBuf, more: &[&str]| {
            run(lapidary("eval").arg(what).arg("--dir").arg(dir).args(more))
        };
        ask(folder.path().join("none"), &[]).refused(5, &["none", "--dir"]);
        ask(heldout(), &["--set", "subtractions"]).refused(2, &["subtractions"]);
        fs::write(folder.path().join("mixed.jsonl"), "{}\n").expect("written");
        ask(folder.path().to_path_buf(), &[]).refused(2, &["mixed.jsonl, line 1"]);
    }
    let line = r#"{"id": "a", "kind": "k", "image": "no.png", "messages": [], "check": null}"#;
    fs::write(folder.path().join("mixed.jsonl"), line).expect("written");
    let mut command = lapidary("eval");
    run(command.arg("agree").arg("--dir").arg(folder.path())).refused(5, &["a:", "no.png"]);
    run(lapidary("eval").args(["agree", "--backends", "abacus", "--dir"]).arg(heldout()))
        .refused(2, &["abacus"]);
}
