//! What a user sees who does not know the command yet.

use std::process::Stdio;

use serde_json::Value;

use crate::support::{lapidary, run};

const SUBCOMMANDS: &[&str] = &[
    "run",
    "chat",
    "demo",
    "export",
    "inspect",
    "verify",
    "logits",
    "tokens",
    "eval",
    "bench",
    "cache",
    "doctor",
    "pull",
    "ls",
    "show",
    "rm",
    "serve",
    "completions",
    "man",
];

#[test]
fn help_lists_every_subcommand_and_the_exit_codes() {
    let help = run(&mut lapidary("--help")).done();
    for word in SUBCOMMANDS {
        assert!(help.text().contains(&format!("\n  {word} ")), "{word}");
    }
    for code in ["0 ", "1 ", "2 ", "3 ", "4 ", "5 ", "130 "] {
        let codes = help.text().split_once("Exit codes:").expect("they are documented").1;
        assert!(codes.contains(code), "{code}: {codes}");
    }
    assert!(help.stderr.is_empty());
}

#[test]
fn every_subcommand_explains_itself() {
    for word in SUBCOMMANDS {
        let help = run(lapidary(word).arg("--help")).done();
        assert!(help.text().contains(&format!("Usage: lapidary {word}")), "{}", help.text());
    }
    for what in ["ppl", "kl", "heldout", "agree"] {
        let help = run(lapidary("eval").args([what, "--help"])).done();
        assert!(help.text().contains(&format!("Usage: lapidary eval {what}")));
    }
}

#[test]
fn version_is_that_of_the_package() {
    let version = run(&mut lapidary("--version")).done();
    assert_eq!(version.text(), concat!("lapidary ", env!("CARGO_PKG_VERSION"), "\n"));
}

#[test]
fn wrong_words_are_wrong_usage() {
    run(&mut lapidary("juggle")).refused(2, &["juggle"]);
    run(lapidary("run").arg("--juggle")).refused(2, &["--juggle"]);
    run(lapidary("doctor").arg("more")).refused(2, &["more"]);
    run(&mut lapidary("run")).refused(2, &[]);
    run(lapidary("run").args(["x", "y", "--threads", "0"])).refused(2, &["threads"]);
    run(lapidary("run").args(["x", "y"]).env("LAPIDARY_THREADS", "many")).refused(2, &["many"]);
    // The prompt of a model that is not there is not asked for on a terminal, nor waited for.
    run(lapidary("run").arg("./x").stdin(Stdio::null())).refused(5, &["./x"]);
}

#[test]
fn m7_doctor_says_what_is_here_and_why_the_rest_is_not() {
    let text = run(&mut lapidary("doctor")).done();
    let line = |name: &str| {
        let found = text.text().lines().find(|l| l.trim_start().starts_with(name));
        found.unwrap_or_else(|| panic!("{name}: {}", text.text())).to_string()
    };
    let other = if cfg!(windows) { "metal" } else { "dx12" };
    assert!(line(other).contains("not part of this build"));
    assert!(line("cpu").contains("threads"));

    let json = run(lapidary("doctor").arg("--json")).done().json();
    let backends = json["backends"].as_array().expect("a list");
    let find = |name: &str| backends.iter().find(|b| b["name"] == name).expect("listed");
    assert_eq!(find(other)["usable"], false);
    assert_eq!(find(other)["reason"], "not part of this build");
    if cfg!(target_os = "linux") && find("mlx")["usable"] == false {
        let reason = find("mlx")["reason"].as_str().expect("a reason");
        assert!(reason.contains("libmlxc") && line("mlx").contains(reason), "{reason}");
    }
    if cfg!(target_os = "linux") && find("cuda")["usable"] == false {
        let reason = find("cuda")["reason"].as_str().expect("a reason");
        assert!(reason.contains("driver") && line("cuda").contains(reason), "{reason}");
    }
    for name in ["cpu", "reference"] {
        assert_eq!(find(name)["usable"], true);
        assert!(find(name)["devices"][0]["name"].is_string());
    }
    let usable = |b: &&Value| b["usable"] == true && b["devices"][0]["passed_over"].is_null();
    assert_eq!(json["auto"], backends.iter().find(usable).expect("at least the CPU")["name"]);
    let auto = json["auto"].as_str().expect("a name");
    assert!(text.text().contains(&format!("auto picks {auto}")), "{}", text.text());
    assert_eq!(json["version"], env!("CARGO_PKG_VERSION"));
}
