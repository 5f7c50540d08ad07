//! `lapidary serve`: how it starts and ends.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::support::{heldout, lapidary, piped, temp};

/// A server that is killed with its handle.
pub struct Serving {
    child: Child,
    pub at: String,
    said: BufReader<std::process::ChildStderr>,
}

impl Serving {
    pub fn start(command: &mut Command) -> Self {
        let mut child = command.stderr(Stdio::piped()).spawn().expect("it starts");
        let mut said = BufReader::new(child.stderr.take().expect("it is piped"));
        let at = loop {
            let mut line = String::new();
            assert_ne!(said.read_line(&mut line).expect("it speaks"), 0, "it ended");
            if let Some((_, rest)) = line.split_once("serving at http://") {
                break rest.split(' ').next().expect("an address").to_string();
            }
        };
        Serving { child, at, said }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.at).expect("it listens");
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a limit");
        stream
    }

    fn get(&self, path: &str) -> String {
        let mut stream = self.connect();
        write!(stream, "GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
            .expect("sent");
        let mut reply = String::new();
        stream.read_to_string(&mut reply).expect("answered");
        reply
    }

    /// A stream of an answer that takes a while.
    fn ask(&self) -> BufReader<TcpStream> {
        let body = "{\"messages\":[{\"role\":\"user\",\"content\":\"Tell me a story.\"}],\
                    \"stream\":true,\"ignore_eos\":true,\"max_tokens\":1500}";
        let mut stream = self.connect();
        write!(
            stream,
            "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
             content-length: {}\r\n\r\n{body}",
            body.len()
        )
        .expect("sent");
        BufReader::new(stream)
    }

    fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        let sent = Command::new("kill").args(["-s", name, &id]).status().expect("kill runs");
        assert!(sent.success());
    }

    fn ended(mut self) -> ExitStatus {
        self.child.wait().expect("it ends")
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn serve() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lapidary"));
    command.args(["serve", "pebble", "--port", "0", "--backend", "cpu"]);
    command.env("LAPIDARY_CACHE", "off");
    command
}

fn read_line(stream: &mut BufReader<TcpStream>, prefix: &str) -> String {
    loop {
        let mut line = String::new();
        assert_ne!(stream.read_line(&mut line).expect("it goes on"), 0, "no {prefix}");
        if line.starts_with(prefix) {
            return line;
        }
    }
}

#[cfg(unix)]
#[test]
fn c7_a_signal_lets_answers_end_and_a_second_one_does_not() {
    for name in ["TERM", "INT"] {
        let server = Serving::start(&mut serve());
        let mut stream = server.ask();
        read_line(&mut stream, "data: ");
        server.signal(name);
        read_line(&mut stream, "data: [DONE]");
        assert_eq!(server.ended().code(), Some(0), "{name}");
    }
    let mut server = Serving::start(&mut serve());
    // Nobody reads it, so it does not end.
    let mut stream = server.ask();
    read_line(&mut stream, "data: ");
    let half = server.connect();
    (&half).write_all(b"GET /he").expect("sent");
    server.signal("TERM");
    let mut said = String::new();
    while !said.contains("again ends at once") {
        said.clear();
        assert_ne!(server.said.read_line(&mut said).expect("it speaks"), 0);
    }
    server.signal("TERM");
    assert_eq!(server.ended().code(), Some(130));
}

#[cfg(unix)]
#[test]
fn c8_too_few_files_stop_nobody_for_good() {
    let program = env!("CARGO_BIN_EXE_lapidary");
    let mut command = Command::new("sh");
    let script = "ulimit -n 64; exec \"$0\" serve pebble --port 0 --backend cpu";
    command.args(["-c", script, program]).env("LAPIDARY_CACHE", "off");
    let server = Serving::start(&mut command);
    let many: Vec<TcpStream> = (0..100).map(|_| server.connect()).collect();
    drop(many);
    assert!(server.get("/health").starts_with("HTTP/1.1 200"));
}

#[test]
fn x3_and_wrong_settings_are_refused_at_start() {
    let refused = |args: &[&str], words: &[&str]| {
        let output = serve().args(args).output().expect("it runs");
        let said = String::from_utf8_lossy(&output.stderr).to_string();
        assert_eq!(output.status.code(), Some(2), "{args:?}: {said}");
        for word in words {
            assert!(said.contains(word), "{args:?}: {said}");
        }
    };
    refused(&["--host", "0.0.0.0"], &["--api-key", "--insecure"]);
    refused(&["--limit", "queues=1"], &["queue", "body-bytes"]);
    refused(&["--keep-alive", "soon"], &["soon"]);
    refused(&["--config", "/nothing.toml"], &["/nothing.toml"]);
    refused(&["--parallel", "0"], &["--parallel"]);
    let output = Command::new(env!("CARGO_BIN_EXE_lapidary"))
        .args(["serve", "nothing.gguf", "--port", "0"])
        .output()
        .expect("it runs");
    assert_eq!(output.status.code(), Some(5));
}

#[test]
fn variables_and_a_file_say_what_flags_do() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), "api-key = [\"k\"]\nctx = 256\n[limits]\nqueue = 7\n")
        .expect("written");
    let mut command = serve();
    command.arg("--config").arg(file.path()).env("LAPIDARY_CTX", "512");
    let server = Serving::start(&mut command);
    assert!(server.get("/health").starts_with("HTTP/1.1 200"));
    assert!(server.get("/v1/models").starts_with("HTTP/1.1 401"));
    let mut stream = server.connect();
    let head =
        "GET /props HTTP/1.1\r\nhost: localhost\r\nx-api-key: k\r\nconnection: close\r\n\r\n";
    stream.write_all(head.as_bytes()).expect("sent");
    let mut reply = String::new();
    stream.read_to_string(&mut reply).expect("answered");
    assert!(reply.contains("\"n_ctx\":512") && reply.contains("\"queue\":7"), "{reply}");
}

fn chat(server: &Serving) -> Command {
    let mut command = lapidary("chat");
    command.args(["--url", &format!("http://{}", server.at)]);
    command
}

#[test]
fn a_chat_talks_to_a_server() {
    let server = Serving::start(serve().args(["--api-key", "k"]));
    let folder = temp();
    let saved = folder.path().join("chat.json");
    let picture = heldout().join("images/drawing08.png");
    let lines = format!(
        "/set temperature 0\n/set\nWhat is 12 + 30?\n/stats\n/image {}\nDescribe this image.\n\
         /save {}\n/clear\n/system Be brief.\nWhat can you do?\n/set top_p 7\nAre you there?\n",
        picture.display(),
        saved.display()
    );
    let ran = piped(chat(&server).args(["--api-key", "k,other"]), &lines);
    let said: Vec<&str> = ran.text().lines().collect();
    assert_eq!(said.len(), 3, "{said:?} {}", ran.stderr);
    assert!(said[0].ends_with("42."), "{said:?}");
    assert!(said[1].contains("green triangle") && said[2].contains("stories"), "{said:?}");
    // Lines that are not typed end with the first that fails.
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    let words = ["temperature 0", "tok/s", "goes with", "saved 4 messages", "400", "top_p"];
    for word in words {
        assert!(ran.stderr.contains(word), "{word}: {}", ran.stderr);
    }
    let saved: Value = serde_json::from_slice(&fs::read(saved).expect("saved")).expect("JSON");
    assert_eq!(saved["messages"][0]["content"], "What is 12 + 30?");
    assert_eq!(saved["messages"][3]["role"], "assistant");
    piped(&mut chat(&server), "Hi\n").refused(1, &["401", "API key"]);
    let nobody = piped(lapidary("chat").args(["--url", "http://127.0.0.1:1"]), "Hi\n");
    nobody.refused(1, &["is the server running"]);
    let wrong = piped(lapidary("chat").args(["--url", "127.0.0.1"]), "Hi\n");
    wrong.refused(2, &["http"]);
}

#[cfg(unix)]
#[test]
fn ctrl_c_stops_an_answer_of_a_server_and_then_the_chat() {
    let mut slow = Command::new(env!("CARGO_BIN_EXE_lapidary"));
    // The slowest backend, so that there is time to interrupt it.
    slow.args(["serve", "pebble", "--port", "0", "--backend", "reference"]);
    let server = Serving::start(slow.env("LAPIDARY_CACHE", "off"));
    let mut command = chat(&server);
    command.args(["-t", "0", "-n", "2000"]).stdin(Stdio::piped());
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
    // The chat goes on, and the server works for it alone.
    writeln!(stdin, "What is 47 + 38?").expect("written");
    let mut sum = String::new();
    stdout.read_line(&mut sum).expect("another line");
    assert!(sum.contains("85"), "{sum}");
    let cancelled = "finished_reason=\"cancelled\"} 1";
    assert!(server.get("/metrics").contains(cancelled), "{}", server.get("/metrics"));
    interrupt();
    assert_eq!(child.wait().expect("it ends").code(), Some(130));
    drop(stdin);
}
