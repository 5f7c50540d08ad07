//! Names of models, downloaded from a hub on this machine.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::hub_server::Server;
use crate::support::{gguf, lapidary, names, run, temp, tiny};

/// A command that may connect to a hub and keeps what it downloads in a folder.
fn with_hub(subcommand: &str, server: &Server, cache: &Path) -> Command {
    let mut command = lapidary(subcommand);
    command.env("HF_ENDPOINT", server.url()).env("HF_HUB_CACHE", cache);
    command.env_remove("HF_HUB_OFFLINE");
    command
}

const REPO: &str = "tiny/gemma";

fn publish(server: &Server) {
    server.add(REPO, "gemma-Q8_0.gguf", fs::read(gguf()).unwrap(), true);
}

#[test]
fn a_name_is_pulled_and_then_stands_where_a_path_stands() {
    let (server, cache) = (Server::start(), temp());
    publish(&server);
    let with = |subcommand: &str| with_hub(subcommand, &server, cache.path());

    let absent = run(with("run").args([REPO, "-p", "hi"]));
    absent.refused(5, &["is not on this machine", "lapidary pull tiny/gemma"]);
    let pulled = run(with("pull").arg(REPO)).done();
    assert!(pulled.text().trim().ends_with("gemma-Q8_0.gguf"), "{}", pulled.text());
    assert!(pulled.stderr.contains("downloading tiny/gemma: "), "{}", pulled.stderr);
    let again = run(with("pull").arg(REPO)).done();
    assert!(again.stderr.contains("up to date"), "{}", again.stderr);
    assert_eq!(again.text(), pulled.text());

    // From here on nothing is asked of anybody.
    server.requests();
    let by_path = run(with("tokens").args([pulled.text().trim(), "hello"])).done();
    let by_name = run(with("tokens").args([REPO, "hello"])).done();
    assert_eq!(by_path.text(), by_name.text());
    let quant = run(with("tokens").args(["tiny/gemma:Q8_0", "hello"])).done();
    assert_eq!(quant.text(), by_name.text());
    run(with("run").args([REPO, "-n", "2", "--backend", "cpu", "-p", "hi"])).done();
    let out = cache.path().join("x.lap");
    run(with("export").args([REPO, "--no-golden", "-o"]).arg(&out)).done();
    let listed = run(with("ls").arg("--json")).done().json();
    assert_eq!(listed["models"][0]["names"][0], REPO);
    assert_eq!(listed["models"][0]["file"], "gemma-Q8_0.gguf");
    let shown = run(with("show").args([REPO, "--json"])).done().json();
    assert_eq!(shown["path"].as_str(), Some(pulled.text().trim()));
    assert!(server.requests().is_empty());

    let removed = run(with("rm").arg(REPO)).done();
    assert!(removed.text().contains("removed tiny/gemma"), "{}", removed.text());
    run(with("rm").arg(REPO)).refused(5, &["not on this machine"]);
}

#[test]
fn a_folder_of_the_cache_is_called_as_its_repository() {
    let (server, cache) = (Server::start(), temp());
    let files = ["config.json", "generation_config.json", "model.safetensors"];
    for name in files {
        let bytes = fs::read(tiny("gemma3_text").join(name)).unwrap();
        server.add("tiny/gemma-3-mini", name, bytes, name.ends_with("safetensors"));
    }
    run(with_hub("pull", &server, cache.path()).arg("tiny/gemma-3-mini")).done();
    let inspect =
        run(with_hub("inspect", &server, cache.path()).args(["tiny/gemma-3-mini", "--json"]));
    let text = inspect.done();
    assert!(text.text().contains("\"gemma-3-mini\""), "{}", text.text());
}

#[test]
fn what_exists_as_a_path_is_no_name() {
    let (server, folder) = (Server::start(), temp());
    fs::create_dir(folder.path().join("tiny")).unwrap();
    fs::copy(gguf(), folder.path().join("tiny/gemma")).unwrap();
    let mut tokens = with_hub("tokens", &server, &folder.path().join("cache"));
    run(tokens.current_dir(folder.path()).args([REPO, "hello"])).done();
    assert!(server.requests().is_empty());
}

#[test]
fn a_name_that_is_not_there_says_what_to_do() {
    let cache = temp();
    let offline = |subcommand: &str, args: &[&str]| {
        run(lapidary(subcommand).env("HF_HUB_CACHE", cache.path()).args(args))
    };
    offline("run", &["gemma3:1b", "hi"]).refused(5, &["lapidary pull gemma3:1b"]);
    offline("serve", &["gemma4:e2b"]).refused(5, &["lapidary pull gemma4:e2b"]);
    offline("run", &["gemma3:1", "hi"]).refused(5, &["did you mean gemma3:1b"]);
    offline("run", &["gemma3", "hi"]).refused(5, &["gemma3:270m, gemma3:1b"]);
    offline("inspect", &["a/../b"]).refused(5, &["a/../b"]);
    offline("inspect", &["a/b@../c"]).refused(2, &["branch"]);
    offline("pull", &["gemma3:1b"]).refused(5, &["HF_HUB_OFFLINE"]);
    offline("pull", &["gemma3:1b", "gemma9:1b"]).refused(5, &["gemma9:1b"]);
    assert!(names(cache.path()).is_empty());
    let none = offline("ls", &["--all"]).done();
    assert!(none.text().contains("no models in") && none.text().contains("gemma4:31b-it-int4"));
}

#[test]
fn show_says_which_backend_and_why() {
    let cache = temp();
    let show = |args: &[&str]| run(lapidary("show").env("HF_HUB_CACHE", cache.path()).args(args));
    let text = show(&["gemma4:e2b"]).done();
    for part in [
        "Gemma 4 E2B",
        "Apache-2.0",
        "audio",
        "gemma4:e2b-it-int4",
        "no backend was asked for",
        "memory",
    ] {
        assert!(text.text().contains(part), "{part}: {}", text.text());
    }
    let json = show(&["gemma3:270m-it-int8", "--backend", "cpu", "--json"]).done().json();
    assert_eq!(json["backend"], "cpu");
    assert_eq!(json["reasons"][0], "cpu was asked for");
    assert_eq!(json["model"]["variant"], "it-int8");
    assert!(json["plan"]["weights_bytes"].as_u64().unwrap() > 200_000_000, "{json}");
    show(&["gemma3:1b", "--backend", "abacus"]).refused(2, &["no backend `abacus`"]);
    show(&["/"]).refused(2, &["lapidary inspect"]);
}

#[test]
fn a_gated_model_says_where_to_accept_its_terms() {
    let (server, cache) = (Server::start(), temp());
    publish(&server);
    server.faults(|f| f.is_gated = true);
    let refused = run(with_hub("pull", &server, cache.path()).arg(REPO));
    refused.refused(5, &["gated", "/tiny/gemma", "HF_TOKEN"]);
}

/// Killed at any moment, a download leaves nothing under a final name that is not whole.
#[test]
fn a_download_that_is_killed_is_taken_up() {
    let (server, cache) = (Server::start(), temp());
    let file = server.add(REPO, "g-Q4_0.gguf", vec![7; 40 << 20], true);
    server.faults(|f| f.delay = Some(Duration::from_micros(50)));
    let blobs = cache.path().join("models--tiny--gemma/blobs");
    let partial = blobs.join(format!("{}.lapidary.incomplete", file.etag()));
    for _ in 0..5 {
        let mut pull = with_hub("pull", &server, cache.path()).arg(REPO).spawn().unwrap();
        while !partial.exists() && pull.try_wait().unwrap().is_none() {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(20));
        pull.kill().unwrap();
        pull.wait().unwrap();
        if let Ok(bytes) = fs::read(blobs.join(file.etag())) {
            assert_eq!(bytes, *file.bytes);
        }
    }
    server.heal();
    run(with_hub("pull", &server, cache.path()).arg(REPO)).done();
    assert_eq!(fs::read(blobs.join(file.etag())).unwrap(), *file.bytes);
    assert_eq!(names(&blobs), [file.etag()]);
}
