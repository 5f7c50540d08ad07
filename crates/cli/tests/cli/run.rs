//! `lapidary run`.

use std::collections::HashSet;
use std::fs;
use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::{
    Ran, edit_json, edit_tensor, endless, gguf, lapidary, run, temp, tiny, with_tokenizer,
};

/// Long enough for a loaded machine, far below what an unstopped answer takes.
const SOON: Duration = Duration::from_secs(30);

fn raw(more: &[&str]) -> Command {
    let mut command = lapidary("run");
    command.arg(gguf()).args(["--raw", "the world"]).args(more);
    command
}

#[test]
fn stdout_holds_the_text_and_stderr_the_rest() {
    let ran = run(&mut raw(&["-n", "12", "--seed", "1"])).done();
    assert!(ran.text().ends_with('\n'));
    assert!(ran.text().trim().chars().count() >= 4, "{:?}", ran.text());
    for word in ["note: running on cpu", "tok/s", "answer 12 ", "length", "seed 1"] {
        assert!(ran.stderr.contains(word), "{word}: {}", ran.stderr);
        assert!(!ran.text().contains(word));
    }
}

#[test]
fn quiet_says_nothing_and_changes_nothing() {
    let loud = run(&mut raw(&["-n", "12", "--seed", "1"])).done();
    let quiet = run(&mut raw(&["-n", "12", "--seed", "1", "-q"])).done();
    assert_eq!(quiet.stderr, "");
    assert_eq!(quiet.stdout, loud.stdout);
}

#[test]
fn a_seed_gives_the_same_text_on_every_backend_and_number_of_threads() {
    for seed in ["1", "2", "18446744073709551615"] {
        let ran = |more: &[&str]| {
            let more = [&["-n", "40", "--seed", seed, "-q", "--precision", "exact"], more].concat();
            run(&mut raw(&more)).done().stdout
        };
        let want = ran(&["--backend", "cpu"]);
        assert_eq!(ran(&["--backend", "cpu"]), want, "twice");
        assert_eq!(ran(&["--backend", "cpu", "--threads", "1"]), want, "one thread");
        assert_eq!(ran(&["--backend", "reference"]), want, "reference");
        assert_eq!(ran(&["--no-mmap"]), want, "not mapped");
    }
}

#[test]
fn caches_are_kept_as_asked_and_as_they_are_for_exact_results() {
    let kept = |more: &[&str], kv: &str| {
        let ran = run(raw(&["-n", "4"]).args(more)).done();
        assert!(ran.stderr.contains(&format!("KV {kv}\n")), "{more:?}: {}", ran.stderr);
    };
    kept(&[], "bf16");
    kept(&["--precision", "exact"], "f32");
    kept(&["--precision", "exact", "--kv", "bf16"], "bf16");
    kept(&["--kv", "int8"], "int8");
    kept(&["--kv", "f32"], "f32");
    let ran = run(raw(&["-n", "4"]).env("LAPIDARY_KV", "int8")).done();
    assert!(ran.stderr.contains("KV int8\n"), "{}", ran.stderr);
    run(&mut raw(&["--kv", "int4"])).refused(2, &["int4", "--kv"]);
}

#[test]
fn seeds_differ() {
    let texts: HashSet<Vec<u8>> = (0..8)
        .map(|seed: u32| run(&mut raw(&["-q", "-n", "12", "--seed", &seed.to_string()])).stdout)
        .collect();
    assert!(texts.len() >= 7, "{texts:?}");
}

#[test]
fn the_seed_that_is_shown_makes_the_same_text_again() {
    let first = run(&mut raw(&["-n", "20"])).done();
    let seed = first.stderr.split_once("seed ").expect("it is shown").1;
    let seed: String = seed.chars().take_while(char::is_ascii_digit).collect();
    let again = run(&mut raw(&["-n", "20", "--seed", &seed])).done();
    assert_eq!(again.stdout, first.stdout);
}

#[test]
fn temperature_0_needs_no_seed() {
    let texts: HashSet<Vec<u8>> =
        (0..3).map(|_| run(&mut raw(&["-t", "0", "-n", "20", "-q"])).done().stdout).collect();
    assert_eq!(texts.len(), 1);
}

#[test]
fn a_prompt_may_come_from_stdin() {
    let want = run(&mut raw(&["-q", "-n", "12", "--seed", "5"])).done();
    // A last line break is what `echo` adds.
    for piped in ["the world", "the world\n"] {
        let mut command = lapidary("run");
        command.arg(gguf()).args(["--raw", "-q", "-n", "12", "--seed", "5"]);
        let mut child = command.stdin(Stdio::piped()).spawn().expect("it starts");
        let mut stdin = child.stdin.take().expect("piped");
        stdin.write_all(piped.as_bytes()).expect("written");
        drop(stdin);
        let got = Ran::of(child.wait_with_output().expect("it ends")).done();
        assert_eq!(got.stdout, want.stdout, "{piped:?}");
    }
}

#[test]
fn r4_a_prompt_that_is_not_utf8_is_refused() {
    let mut command = lapidary("run");
    let mut child = command.arg(gguf()).arg("--raw").stdin(Stdio::piped()).spawn().expect("starts");
    child.stdin.take().expect("piped").write_all(b"a\xff\xfeb").expect("written");
    Ran::of(child.wait_with_output().expect("it ends")).refused(2, &["not UTF-8"]);
}

#[test]
fn r4_an_empty_prompt_starts_from_the_token_that_begins_a_text() {
    let given = run(lapidary("run").arg(gguf()).args(["--raw", "", "-n", "6", "--seed", "1"]));
    let piped = run(lapidary("run").arg(gguf()).args(["--raw", "-n", "6", "--seed", "1"]));
    let (given, piped) = (given.done(), piped.done());
    assert!(given.stderr.contains("prompt 1 "), "{}", given.stderr);
    assert_eq!(given.stdout, piped.stdout);
}

#[test]
fn r5_stop_cuts_the_text_exactly() {
    let whole = run(&mut raw(&["-q", "-n", "40", "--seed", "1"])).done();
    let whole = whole.text().strip_suffix('\n').expect("a line break at the end");
    let chars: Vec<(usize, char)> = whole.char_indices().collect();
    // Any three characters of the middle; where they stand first is where the text must end.
    let (from, to) = (chars[chars.len() / 2].0, chars[chars.len() / 2 + 3].0);
    let stop = &whole[from..to];
    let want = &whole[..whole.find(stop).expect("it is part of the text")];
    let ran = run(&mut raw(&["-n", "40", "--seed", "1", "--stop", "\u{1}", "--stop", stop])).done();
    assert_eq!(ran.text(), format!("{want}\n"));
    assert!(ran.stderr.contains("· stop ·"), "{}", ran.stderr);
    run(&mut raw(&["--stop", ""])).refused(2, &["stop", "empty"]);
}

#[test]
fn r3_the_context_bounds_prompt_and_answer() {
    // Prompt and answer fill it, and no more is taken than there is.
    let ran = run(&mut raw(&["--ctx", "8", "-n", "100", "--seed", "1"])).done();
    assert!(ran.stderr.contains("prompt 3 ") && ran.stderr.contains("answer 5 "), "{}", ran.stderr);
    assert!(ran.stderr.contains("length"));
    run(&mut raw(&["--ctx", "3"])).refused(2, &["3 tokens", "holds 3", "--ctx"]);
    run(&mut raw(&["--ctx", "0"])).refused(2, &["0", "512"]);
    run(&mut raw(&["--ctx", "513"])).refused(2, &["513", "512"]);
    run(&mut raw(&["--ctx", "-1"])).refused(2, &[]);
    run(raw(&[]).env("LAPIDARY_CTX", "513")).refused(2, &["513", "512"]);
}

#[test]
fn r2_parameters_out_of_range_are_refused_by_name() {
    let cases = [
        ("--temperature=nan", "temperature"),
        ("--temperature=inf", "temperature"),
        ("--temperature=-1", "temperature"),
        ("--top-p=0", "top_p"),
        ("--top-p=2", "top_p"),
        ("--top-k=-1", "top-k"),
        ("--min-p=2", "min_p"),
        ("--repetition-penalty=0", "repetition_penalty"),
        ("--repetition-penalty=inf", "repetition_penalty"),
        ("--seed=18446744073709551616", "seed"),
        ("--max-tokens=0", "max_tokens"),
        ("--max-tokens=-1", "max-tokens"),
        ("--max-tokens=99999999999999999999", "max-tokens"),
    ];
    for (flag, name) in cases {
        run(&mut raw(&[flag])).refused(2, &[name]);
    }
    // The largest that is a number is more than the context holds, and that is no error.
    run(&mut raw(&["--max-tokens=18446744073709551615", "--ctx", "8"])).done();
}

#[test]
fn m7_a_backend_that_is_asked_for_is_never_replaced() {
    // One of another system, and none at all.
    let other = if cfg!(windows) { "metal" } else { "dx12" };
    for name in [other, "abacus"] {
        let why = [name, "cpu", "reference"];
        run(&mut raw(&["--backend", name])).refused(2, &why);
        run(raw(&[]).env("LAPIDARY_BACKEND", name)).refused(2, &why);
    }
    // One of this build that finds no driver is not replaced either.
    let doctor = run(lapidary("doctor").arg("--json")).done().json();
    let mut backends = doctor["backends"].as_array().expect("a list").iter();
    let cuda = backends.find(|b| b["name"] == "cuda").expect("listed");
    let mut asked = raw(&["-n", "1", "--backend", "cuda"]);
    if cuda["usable"] == true {
        run(&mut asked).done();
    } else if cuda["reason"] != "not part of this build" {
        run(&mut asked).refused(4, &["cuda", "driver", "cpu"]);
    }
    // The flag beats the environment.
    run(raw(&["-n", "1", "--backend", "cpu"]).env("LAPIDARY_BACKEND", "abacus")).done();
}

#[test]
fn a_model_without_a_chat_template_is_not_chatted_with() {
    let dir = temp();
    let model = with_tokenizer(dir.path());
    let ran = run(lapidary("run").arg(&model).arg("hello")).refused(2, &["template", "--raw"]);
    assert!(!ran.stderr.contains("running on"), "it was loaded first: {}", ran.stderr);
    run(lapidary("run").arg(&model).args(["hello", "--raw", "-n", "2"])).done();
    run(lapidary("run").arg(&model).args(["x", "--raw", "--system", "y"]))
        .refused(2, &["--system"]);
}

#[test]
fn a_model_without_a_tokenizer_says_so() {
    for more in [&["--raw"][..], &[]] {
        let mut command = lapidary("run");
        command.arg(tiny("gemma4_text_dense")).arg("hello").args(more);
        run(&mut command).refused(1, &["no tokenizer"]);
    }
}

#[test]
fn f12_a_broken_tokenizer_is_an_invalid_model() {
    let dir = temp();
    let model = with_tokenizer(dir.path());
    let path = model.join("tokenizer.json");
    let whole = fs::read(&path).expect("it is there");
    let deep = format!("{}{}", "[".repeat(1 << 20), "]".repeat(1 << 20)).into_bytes();
    let cases: [&[u8]; 5] = [b"", b"{}", b"\xff\xfe", &whole[..whole.len() / 2], &deep];
    for bytes in cases {
        fs::write(&path, bytes).expect("written");
        let mut command = lapidary("run");
        run(command.arg(&model).args(["--raw", "a"])).refused(3, &["tokenizer"]);
        // Raw ids do not need it.
        let out = dir.path().join("out");
        crate::support::logits(&model, "2,5", &["-q"; 0], &out);
    }
}

#[test]
fn f9_m6_non_finite_logits_end_the_answer_and_name_the_op() {
    let dir = temp();
    let model = with_tokenizer(dir.path());
    edit_tensor(&model.join("model.safetensors"), "model.layers.1.self_attn.o_proj.weight", |b| {
        b[..4].copy_from_slice(&f32::INFINITY.to_le_bytes());
    });
    for backend in ["cpu", "reference"] {
        let mut command = lapidary("run");
        command.arg(&model).args(["--raw", "the", "--backend", backend, "--seed", "1"]);
        run(&mut command).refused(1, &["non-finite logits", "model.layers.1.self_attn.o_proj"]);
    }
}

#[test]
fn f11_an_end_token_outside_the_vocabulary_is_refused() {
    let dir = temp();
    let model = with_tokenizer(dir.path());
    edit_json(&model.join("generation_config.json"), |c| c["eos_token_id"] = 307.into());
    run(lapidary("run").arg(&model).args(["--raw", "a"])).refused(3, &["eos", "307"]);
}

#[cfg(unix)]
#[test]
fn ctrl_c_ends_a_long_answer_with_what_there_is() {
    let dir = temp();
    let mut command = lapidary("run");
    command.arg(endless(dir.path()));
    command.args(["--raw", "the", "-n", "60000", "--ctx", "65536", "--backend", "reference"]);
    let mut child = command.spawn().expect("it starts");
    let mut stdout = child.stdout.take().expect("piped");
    let mut text = vec![0; 1];
    stdout.read_exact(&mut text).expect("a first byte");
    let asked = Instant::now();
    let pid = child.id().to_string();
    assert!(Command::new("kill").args(["-INT", &pid]).status().expect("kill runs").success());
    stdout.read_to_end(&mut text).expect("the rest");
    let ran = Ran::of(child.wait_with_output().expect("it ends"));
    assert!(asked.elapsed() < SOON, "{:?}", asked.elapsed());
    assert_eq!(ran.code, Some(130), "{}", ran.stderr);
    assert!(std::str::from_utf8(&text).expect("whole characters").ends_with('\n'));
    assert!(ran.stderr.contains("cancelled"), "{}", ran.stderr);
}

#[test]
fn a_reader_that_goes_away_ends_the_answer_without_a_word() {
    let dir = temp();
    let mut command = lapidary("run");
    command.arg(endless(dir.path()));
    command.args(["--raw", "the", "-n", "60000", "--ctx", "65536", "--backend", "reference", "-q"]);
    let mut child = command.spawn().expect("it starts");
    let mut stdout = child.stdout.take().expect("piped");
    stdout.read_exact(&mut [0]).expect("a first byte");
    drop(stdout);
    let asked = Instant::now();
    let ran = Ran::of(child.wait_with_output().expect("it ends")).done();
    assert!(asked.elapsed() < SOON, "{:?}", asked.elapsed());
    assert_eq!(ran.stderr, "");
}

#[test]
fn no_subcommand_minds_a_reader_that_goes_away() {
    let dir = temp();
    let lap = crate::support::export(&tiny("gemma3_text"), &dir.path().join("model.lap"));
    let calls: [&[&str]; 6] = [
        &["inspect"],
        &["inspect", "--json"],
        &["verify"],
        &["doctor"],
        &["doctor", "--json"],
        &["--help"],
    ];
    for call in calls {
        let mut command = lapidary(call[0]);
        command.args(&call[1..]);
        if matches!(call[0], "inspect" | "verify") {
            command.arg(&lap);
        }
        let mut child = command.spawn().expect("it starts");
        drop(child.stdout.take());
        let ran = Ran::of(child.wait_with_output().expect("it ends"));
        assert_eq!(ran.code, Some(0), "{call:?}: {}", ran.stderr);
        assert!(!ran.stderr.contains("error"), "{call:?}: {}", ran.stderr);
    }
}

#[test]
fn a_stderr_that_nobody_reads_changes_nothing() {
    let want = run(&mut raw(&["-n", "12", "--seed", "1"])).done();
    let mut child = raw(&["-n", "12", "--seed", "1"]).spawn().expect("it starts");
    drop(child.stderr.take());
    let ran = child.wait_with_output().expect("it ends");
    assert_eq!(ran.status.code(), Some(0));
    assert_eq!(ran.stdout, want.stdout);
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_an_error() {
    let full = || fs::OpenOptions::new().write(true).open("/dev/full").expect("linux has it");
    run(raw(&["-n", "3"]).stdout(full())).refused(1, &["standard output"]);
    run(lapidary("inspect").arg(gguf()).stdout(full())).refused(1, &["No space"]);
    run(lapidary("inspect").arg(gguf()).arg("--json").stdout(full())).refused(1, &["No space"]);
}

/// A chat ends where the model's turn begins: the template refuses anything else.
#[test]
fn a_chat_turn_is_rendered_up_to_the_answer() {
    let folder = temp();
    let model = with_tokenizer(folder.path());
    let template = "{% if not add_generation_prompt %}{{ raise_exception('no prompt') }}{% endif %}\
                    {{ messages[0]['content'] }}:";
    fs::write(model.join("chat_template.jinja"), template).expect("written");
    let chat =
        run(lapidary("run").arg(&model).args(["hello", "-q", "-n", "4", "--seed", "1"])).done();
    assert!(!chat.text().trim().is_empty());
}
