//! How the command behaves in a terminal, and what it says of itself.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::unix::ffi::OsStrExt;
use std::process::Command;

use serde_json::{Value, json};

use crate::support::{
    endless, gguf, lapidary, names, piped, run, temp, testdata, tiny, undisturbed, with_tokenizer,
};
use crate::terminal::Terminal;

/// A server that says one thing to whoever asks, so many times.
fn says(text: &'static str, ends: &'static str, times: usize) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let at = format!("http://{}", listener.local_addr().expect("an address"));
    std::thread::spawn(move || {
        for stream in listener.incoming().take(times) {
            let mut stream = stream.expect("a connection");
            let mut reader = BufReader::new(stream.try_clone().expect("a copy"));
            let mut length = 0;
            loop {
                let mut line = String::new();
                reader.read_line(&mut line).expect("a line");
                if let Some(n) = line.to_lowercase().strip_prefix("content-length:") {
                    length = n.trim().parse().expect("a number");
                }
                if line.trim().is_empty() {
                    break;
                }
            }
            reader.read_exact(&mut vec![0; length]).expect("a body");
            let event = |delta: Value, end: Value| {
                let choice = json!({"index": 0, "delta": delta, "finish_reason": end});
                format!("data: {}\n\n", json!({"choices": [choice]}))
            };
            let letters: Vec<char> = text.chars().collect();
            let pieces = letters.chunks(3).map(|piece| piece.iter().collect::<String>());
            let mut body: String =
                pieces.map(|piece| event(json!({"content": piece}), Value::Null)).collect();
            body += &event(json!({}), json!(ends));
            body += "data: [DONE]\n\n";
            let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close";
            let answer = format!("{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len());
            stream.write_all(answer.as_bytes()).expect("it is read");
        }
    });
    at
}

fn chat_with(url: &str) -> Command {
    let mut command = lapidary("chat");
    command.args(["--url", url, "some-model"]);
    command
}

/// Asks once in a terminal and leaves; what was shown after the question.
fn answer_in_terminal(command: &mut Command) -> String {
    let mut terminal = Terminal::start(command);
    terminal.waits_for("/help", 0);
    terminal.types("hi\n");
    terminal.waits_for("the end", 0);
    terminal.types("/bye\n");
    let (code, shown) = terminal.ends();
    assert_eq!(code, Some(0), "{shown}");
    shown
}

const MARKED: &str = "# A title\nwith **bold** words\n- and `code`\nthe end";

#[test]
fn markdown_is_rendered_in_a_terminal_and_nowhere_else() {
    let url = says(MARKED, "stop", 5);
    let shown = answer_in_terminal(&mut chat_with(&url));
    for want in ["\x1b[1mA title", "\x1b[1mbold\x1b[0m words", "• and ", "\x1b[36mcode\x1b[0m"] {
        assert!(shown.contains(want), "{want:?} is not in {shown:?}");
    }
    assert!(!shown.contains("**") && !shown.contains("# A"), "{shown:?}");
    for plain in [
        chat_with(&url).arg("--plain"),
        chat_with(&url).env("NO_COLOR", "1"),
        chat_with(&url).env("TERM", "dumb"),
    ] {
        let shown = answer_in_terminal(plain);
        assert!(shown.contains("# A title") && shown.contains("**bold** words"), "{shown:?}");
        assert!(!shown.contains("\x1b[1m"), "{shown:?}");
    }
    let ran = piped(&mut chat_with(&url), "hi\n").done();
    assert_eq!(ran.text(), format!("{MARKED}\n"));
}

#[test]
fn an_answer_that_is_cut_is_marked() {
    let ran = piped(&mut chat_with(&says("half of", "length", 1)), "hi\n").done();
    assert!(ran.stderr.contains("the answer is cut"), "{}", ran.stderr);
    let mut command = lapidary("chat");
    let ran = piped(command.args(["-n", "3"]), "Tell me a story.\n").done();
    assert!(ran.stderr.contains("the answer is cut"), "{}", ran.stderr);
    assert!(ran.stderr.contains("max_tokens"), "{}", ran.stderr);
    let mut command = lapidary("chat");
    let ran = piped(&mut command, "Hi.\n").done();
    assert!(!ran.stderr.contains("the answer is cut"), "{}", ran.stderr);
}

#[test]
fn every_command_of_a_chat_answers_with_a_word() {
    let mut command = lapidary("chat");
    let lines = "/clear\n/system Be brief.\n/system\n/set temperature 0.5\n/set\n/drop\n/compact\n\
                 /stats\n/set top_k x\n/set max_tokens 0\n/nonsense\n";
    let ran = piped(&mut command, lines).done();
    let said: Vec<&str> = ran.stderr.lines().filter(|line| !line.starts_with("note: ")).collect();
    let words = [
        "new conversation",
        "instructions hold",
        "no instructions",
        "temperature is 0.5",
        "temperature 0.5 · ",
        "nothing was said",
        "nothing was said",
        "nothing was answered",
        "not a value",
        "1 or more",
        "/nonsense",
    ];
    assert_eq!(said.len(), words.len(), "{said:?}");
    for (said, word) in said.iter().zip(words) {
        assert!(said.contains(word), "`{word}` is not in: {said}");
    }
}

#[test]
fn a_full_context_says_what_can_be_done_and_does_it() {
    let dir = temp();
    let model = endless(dir.path());
    fs::write(
        model.join("chat_template.jinja"),
        "{% for m in messages %}{{ m.content }} {% endfor %}",
    )
    .expect("written");
    let mut command = lapidary("chat");
    command.arg(&model).args(["--ctx", "512", "-n", "4", "-t", "0"]);
    let mut terminal = Terminal::start(&mut command);
    terminal.waits_for("/help", 0);
    let mut at = 0;
    // What is typed is shown, too.
    let mut asks = |line: &str, answer: &str| {
        terminal.types(&format!("{line}\n"));
        let shown = terminal.waits_for(answer, at);
        at = shown.len();
        shown
    };
    let words = "the world and ".repeat(2);
    for _ in 0..2 {
        asks(&words, "the answer is cut");
    }
    let long = "the hand of the other ".repeat(200);
    let shown = asks(&long, "the context is full");
    assert!(shown.contains("/compact") && shown.contains("/drop") && shown.contains("/clear"));
    asks("/drop", "forgot the oldest turn; 1 left");
    asks("and", "the answer is cut");
    asks("/drop 9", "forgot all 2 turns");
    asks(&words, "the answer is cut");
    asks("/compact", "this summary stands in place of 2 messages");
    asks("and", "the answer is cut");
    terminal.types("/bye\n");
    let (code, shown) = terminal.ends();
    assert_eq!(code, Some(0), "{shown}");
}

#[test]
fn f22_a_chat_asks_before_it_overwrites() {
    let dir = temp();
    let file = dir.path().join("it's mine.json");
    fs::write(&file, "kept").expect("written");
    let url = says("the end", "stop", 3);
    let line = format!("/save '{}'\n", file.display().to_string().replace('\'', r"'\''"));
    let chats: [&dyn Fn() -> Command; 2] = [&|| lapidary("chat"), &|| chat_with(&url)];
    for chat in chats {
        let mut terminal = Terminal::start(&mut chat());
        terminal.waits_for("/help", 0);
        terminal.types(&line);
        let at = terminal.waits_for("overwrite it? [y/N]", 0).len();
        terminal.types("n\n");
        let at = terminal.waits_for("not saved", at).len();
        assert_eq!(fs::read(&file).expect("there"), b"kept");
        terminal.types(&line);
        let at = terminal.waits_for("overwrite it? [y/N]", at).len();
        terminal.types("y\n");
        terminal.waits_for("saved 0 messages", at);
        assert_ne!(fs::read(&file).expect("there"), b"kept");
        terminal.types("/bye\n");
        assert_eq!(terminal.ends().0, Some(0));
        fs::write(&file, "kept").expect("written");
        // Nobody can answer where there is no terminal.
        let ran = piped(&mut chat(), &line);
        assert!(ran.stderr.contains("not saved"), "{}", ran.stderr);
        assert_eq!(fs::read(&file).expect("there"), b"kept");
    }
    let mut command = chat_with(&url);
    run(command.arg("--save").arg(&file)).refused(2, &["--force"]);
}

#[test]
fn notes_are_dim_in_a_terminal_and_gone_when_quiet() {
    let ask = |more: &[&str], name: &str, value: &str| {
        let mut command = lapidary("run");
        command.args(["Hi.", "-n", "2"]).args(more).env(name, value);
        let (code, shown) = Terminal::start(&mut command).ends();
        assert_eq!(code, Some(0), "{shown}");
        shown
    };
    assert!(ask(&[], "X", "").contains("\x1b[2mnote: "));
    for (name, value) in [("NO_COLOR", "1"), ("TERM", "dumb")] {
        let shown = ask(&[], name, value);
        assert!(shown.contains("note: ") && !shown.contains("\x1b[2m"), "{shown:?}");
    }
    assert!(!ask(&["-q"], "X", "").contains("note"));
}

/// The first Ctrl-C ends an answer, at whatever it is; the chat goes on.
#[test]
fn ctrl_c_ends_the_reading_of_a_long_prompt() {
    let dir = temp();
    let model = endless(dir.path());
    fs::write(model.join("chat_template.jinja"), "{{ messages[0].content }}").expect("written");
    let text = dir.path().join("long");
    fs::write(&text, "the world is the hand of the other ".repeat(400)).expect("written");
    let mut command = lapidary("run");
    command.arg(&model).args(["--ctx", "65536", "--backend", "reference"]);
    command.stdin(fs::File::open(&text).expect("there"));
    let mut child = command.spawn().expect("it starts");
    let mut stderr = BufReader::new(child.stderr.take().expect("a pipe"));
    let mut said = String::new();
    while !said.contains("running on") {
        assert!(stderr.read_line(&mut said).expect("it speaks") > 0, "{said}");
    }
    std::thread::sleep(std::time::Duration::from_millis(300));
    let id = child.id().to_string();
    assert!(Command::new("kill").args(["-INT", &id]).status().expect("it runs").success());
    stderr.read_to_string(&mut said).expect("it speaks");
    assert_eq!(child.wait().expect("it ends").code(), Some(130), "{said}");
    assert!(said.contains("answer 0 "), "{said}");
}

#[test]
fn the_version_says_how_it_was_built() {
    let ran = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lapidary"));
        command.args(args);
        run(&mut undisturbed(command))
    };
    let short = ran(&["--version"]).done();
    assert_eq!(short.text(), format!("lapidary {}\n", env!("CARGO_PKG_VERSION")));
    assert_eq!(ran(&["-V"]).done().stdout, short.stdout);
    let long = ran(&["--version", "--verbose"]).done();
    assert!(long.text().starts_with(short.text()));
    for word in ["commit ", "rustc ", "backends ", "reference", ".lap "] {
        assert!(long.text().contains(word), "{word}: {}", long.text());
    }
    ran(&["--verbose"]).refused(2, &["required"]);
    let none = ran(&[]);
    assert_eq!(none.code, Some(2));
    assert!(none.stderr.contains("Usage:"), "{}", none.stderr);
}

#[test]
fn completions_and_man_pages_know_every_flag() {
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let ran = run(lapidary("completions").arg(shell)).done();
        for word in ["lapidary", "heldout", "prefix-cache", "completions"] {
            assert!(ran.text().contains(word), "{shell}: {word}");
        }
    }
    run(lapidary("completions").arg("tcsh")).refused(2, &["tcsh"]);
    let page = run(lapidary("man").args(["eval", "ppl"])).done();
    assert!(page.text().contains(".TH lapidary-eval-ppl 1") && page.text().contains("window"));
    assert!(run(&mut lapidary("man")).done().text().contains("Exit codes"));
    run(lapidary("man").arg("nonsense")).refused(2, &["nonsense"]);
    let dir = temp();
    let folder = dir.path().join("man1");
    let write = |more: &[&str]| run(lapidary("man").arg("-o").arg(&folder).args(more));
    write(&[]).done();
    let pages = names(&folder);
    for page in ["lapidary.1", "lapidary-run.1", "lapidary-cache-prune.1", "lapidary-man.1"] {
        assert!(pages.iter().any(|name| name == page), "{page}: {pages:?}");
    }
    // Every command that `--help` lists has a page.
    let help = run(&mut lapidary("--help")).done();
    let commands = help.text().lines().filter_map(|line| line.strip_prefix("  "));
    let commands = commands.filter(|line| line.starts_with(|c: char| c.is_ascii_lowercase()));
    for command in commands.filter_map(|line| line.split_whitespace().next()) {
        let page = format!("lapidary-{command}.1");
        assert!(command == "help" || pages.contains(&page), "{page}: {pages:?}");
    }
    write(&[]).refused(2, &["--force"]);
    write(&["--force"]).done();
}

#[test]
fn answers_and_checks_are_json_where_that_is_asked_for() {
    let mut command = lapidary("run");
    command.args(["Tell me a story.", "-n", "8", "--seed", "7", "--json"]);
    let report = run(&mut command).done().json();
    let mut command = lapidary("run");
    command.args(["Tell me a story.", "-n", "8", "--seed", "7", "-q"]);
    let text = run(&mut command).done();
    assert_eq!(report["text"].as_str(), text.text().strip_suffix('\n'));
    assert_eq!(report["model"], "pebble");
    assert_eq!(report["finish_reason"], "length");
    assert_eq!(report["stats"]["new_tokens"], 8);
    assert_eq!(report["stats"]["seed"], "7");

    let report = run(lapidary("verify").args(["pebble", "--json"])).done().json();
    assert_eq!((&report["passed"], &report["bytes_checked"]), (&json!(true), &json!(true)));
    assert!(report["outputs"][0]["largest_difference"].is_number(), "{report}");
    let mut command = lapidary("verify");
    let failed = run(command.args(["pebble", "--json", "--tolerance", "0"]));
    assert_eq!(failed.code, Some(1), "{}", failed.stderr);
    assert_eq!(failed.json()["passed"], false);

    let dir = temp();
    run(lapidary("inspect").arg(gguf()).env("LAPIDARY_CACHE", dir.path())).done();
    let mut command = lapidary("run");
    command.args(["Hi.", "-n", "1"]).env("LAPIDARY_CACHE", dir.path());
    run(&mut command).done();
    let mut command = lapidary("cache");
    command.args(["prune", "--all", "--json"]).env("LAPIDARY_CACHE", dir.path());
    let report = run(&mut command).done().json();
    let removed = report["removed"].as_array().expect("a list");
    assert!(!removed.is_empty() && report["freed_bytes"].as_u64() > Some(0), "{report}");
    assert_eq!(report["files_left"], 0);
    assert!(removed.iter().all(|file| file["path"].is_string()), "{report}");
}

#[test]
fn f26_paths_that_are_not_utf8_are_shown_as_well_as_can_be() {
    let dir = temp();
    let odd = std::ffi::OsStr::from_bytes(b"od\xffd");
    let cache = dir.path().join(odd);
    let mut command = lapidary("run");
    run(command.args(["Hi.", "-n", "1"]).env("LAPIDARY_CACHE", &cache)).done();
    for words in [
        &["cache", "ls", "--json"][..],
        &["cache", "ls"],
        &["doctor", "--json"],
        &["cache", "prune", "--all", "--json"],
    ] {
        let mut command = lapidary(words[0]);
        let ran = run(command.args(&words[1..]).env("LAPIDARY_CACHE", &cache)).done();
        let shows = ran.text().contains("od\u{fffd}d");
        assert!(shows || words.contains(&"prune"), "{words:?}: {}", ran.text());
    }
    let model = dir.path().join(std::ffi::OsStr::from_bytes(b"m\xfe.lap"));
    run(lapidary("export").arg(tiny("gemma3_text")).arg("--no-golden").arg("-o").arg(&model))
        .done();
    for words in [
        &["inspect", "--json"][..],
        &["verify", "--json"],
        &["bench", "--json", "-r1", "-p2", "-n0"],
    ] {
        let mut command = lapidary(words[0]);
        run(command.arg(&model).args(&words[1..])).done().json();
    }
}

/// As a user who may have so few threads; root may have any number.
#[test]
fn f26_with_few_threads_or_none_it_works_or_says_so() {
    let limited = |words: &str, n: u32| {
        let mut command = Command::new("setpriv");
        let line = format!("ulimit -u {n} 2>/dev/null; exec \"$0\" {words}");
        command.args(["--reuid=65533", "--regid=65533", "--clear-groups", "sh", "-c", &line]);
        command.arg(env!("CARGO_BIN_EXE_lapidary"));
        let mut command = undisturbed(command);
        command.env("LAPIDARY_CACHE", "off");
        command
    };
    let runs = |command: &mut Command| command.output().is_ok_and(|o| o.status.success());
    if !runs(&mut limited("--version", 1000)) {
        _ = writeln!(std::io::stderr(), "SKIPPED: this user can't run commands as another one");
        return;
    }
    let mut worked = 0;
    for n in [1, 2, 3, 4, 100] {
        for words in ["run Hi. -n 1", "tokens pebble Hi.", "chat < /dev/null", "doctor"] {
            let ran = run(&mut limited(words, n));
            match ran.code {
                Some(0) => worked += 1,
                code => {
                    assert!(matches!(code, Some(1 | 4)), "{words}, {n}: {code:?} {}", ran.stderr);
                    assert!(ran.stderr.contains("error: "), "{words}, {n}: {}", ran.stderr);
                }
            }
        }
    }
    assert!(worked >= 8, "{worked}");
}

#[test]
fn dragged_files_are_attached_and_named() {
    let dir = temp();
    let picture = dir.path().join("it's a drawing.png");
    fs::copy(testdata("../pebble/heldout/images/drawing17.png"), &picture).expect("copied");
    let path = picture.display().to_string();
    let spellings = [
        path.clone(),
        format!("'{}'", path.replace('\'', r"'\''")),
        path.replace('\'', r"\'").replace(' ', r"\ "),
        format!("\"{path}\""),
        format!("file://{}", path.replace(' ', "%20").replace('\'', "%27")),
    ];
    for spelled in spellings {
        let mut command = lapidary("chat");
        let ran = piped(command.args(["-n", "1"]), &format!("{spelled} What is it?\n")).done();
        let said = ran.stderr.lines().find(|line| line.contains("drawing.png"));
        assert!(said.is_some_and(|line| line.contains("image of ")), "{spelled}: {}", ran.stderr);
    }
}

/// Whatever it is that can't be had.
#[test]
fn m2_memory_that_is_refused_ends_with_a_sentence() {
    let dir = temp();
    let model = with_tokenizer(dir.path());
    let picture = testdata("../pebble/heldout/images/drawing17.png");
    let picture = picture.to_str().expect("UTF-8");
    let model = model.to_str().expect("UTF-8");
    let commands: [&[&str]; 3] = [
        &["run", "--image", picture, "What is it?", "-n", "2"],
        &["run", model, "--raw", "the world", "-n", "2", "--no-mmap"],
        &["tokens", "pebble", "the world"],
    ];
    for words in commands {
        let mut refused = 0;
        // Each of the first large things that are asked for, then some of the later ones.
        let mut n = 1;
        loop {
            let mut command = lapidary(words[0]);
            command.args(&words[1..]).env("LAPIDARY_FAIL_ALLOCATION", n.to_string());
            let ran = run(&mut command);
            match ran.code {
                // There were fewer, or it did without.
                Some(0) if n > 64 || refused == 0 && n > 8 => break,
                Some(0) => {}
                code => {
                    assert_eq!(code, Some(4), "{words:?} at {n}: {}", ran.stderr);
                    assert!(ran.stderr.contains("memory"), "{words:?} at {n}: {}", ran.stderr);
                    refused += 1;
                }
            }
            n = if n < 4 { n + 1 } else { n * 2 };
            assert!(n < 100_000, "{words:?} never ends");
        }
    }
}

/// The same where the system is short of it.
#[test]
fn m2_little_address_space_is_no_panic() {
    let mut worked = false;
    let mut kib = 60_000u64;
    while !worked {
        let mut shell = Command::new("sh");
        let line = format!("ulimit -v {kib}; exec \"$0\" run 'Hi.' -n 1 --threads 2");
        shell.args(["-c", &line, env!("CARGO_BIN_EXE_lapidary")]);
        let ran = run(&mut undisturbed(shell));
        match ran.code {
            Some(0) => worked = true,
            // The program itself does not fit.
            Some(127) => {}
            None if ran.stderr.is_empty() => {}
            code => {
                assert!(matches!(code, Some(1 | 4)), "{kib}: {code:?} {}", ran.stderr);
                assert!(ran.stderr.contains("error: "), "{kib}: {}", ran.stderr);
            }
        }
        kib = kib * 3 / 2;
        assert!(kib < 1 << 34, "it never works: {}", ran.stderr);
    }
}
