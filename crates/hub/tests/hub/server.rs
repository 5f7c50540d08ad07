//! A hub on this machine: its API, a second server that large files are redirected to, and faults.

use std::collections::{BTreeMap, VecDeque};
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ring::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY, SHA256};
use serde_json::{Value, json};

/// The only commit of every repository.
pub const COMMIT: &str = "c0ffee00c0ffee00c0ffee00c0ffee00c0ffee00";

/// A server, which ends with this.
pub struct Server {
    pub hub: SocketAddr,
    cdn: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    cdn: Mutex<String>,
    ends: AtomicBool,
}

#[derive(Default)]
struct State {
    repos: BTreeMap<String, BTreeMap<String, File>>,
    faults: Faults,
    /// By their numbers. What is sent for one after the log was taken is nobody's.
    log: BTreeMap<u64, Request>,
    came: u64,
}

#[derive(Clone)]
pub struct File {
    pub bytes: Arc<Vec<u8>>,
    /// Whether it is kept beside git, as large files are.
    pub is_lfs: bool,
}

/// What goes wrong.
#[derive(Clone, Default)]
pub struct Faults {
    /// Bytes of bodies until every connection breaks.
    pub budget: Option<u64>,
    /// Each body breaks after so many bytes.
    pub cut_each: Option<u64>,
    /// Bodies have a bit wrong.
    pub is_damaged: bool,
    /// The next answers of the hub itself: status and headers.
    pub answers: VecDeque<(u16, Vec<(&'static str, String)>)>,
    /// A token without which files are not given.
    pub token: Option<String>,
    /// Whether files are only given to those who accepted the terms, which nobody did.
    pub is_gated: bool,
    /// Ranges are not known.
    pub no_ranges: bool,
    /// The list of files has neither lengths nor checksums.
    pub is_terse: bool,
    /// What the list says instead of every length.
    pub lie: Option<u64>,
    /// What is said as every checksum.
    pub etag: Option<String>,
    /// For every 4 KiB.
    pub delay: Option<Duration>,
}

/// A request that came.
#[derive(Clone, Debug)]
pub struct Request {
    pub is_cdn: bool,
    pub method: String,
    pub path: String,
    pub range: Option<(u64, u64)>,
    pub authorization: Option<String>,
    /// Bytes of the body that were sent.
    pub sent: u64,
}

impl File {
    pub fn etag(&self) -> String {
        let mut context = if self.is_lfs {
            Context::new(&SHA256)
        } else {
            let mut context = Context::new(&SHA1_FOR_LEGACY_USE_ONLY);
            context.update(format!("blob {}\0", self.bytes.len()).as_bytes());
            context
        };
        context.update(&self.bytes);
        context.finish().as_ref().iter().map(|b| format!("{b:02x}")).collect()
    }
}

impl Server {
    pub fn start() -> Self {
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            cdn: Mutex::default(),
            ends: AtomicBool::new(false),
        });
        let listen = |is_cdn: bool| {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = listener.local_addr().unwrap();
            let shared = Arc::clone(&shared);
            std::thread::spawn(move || {
                for stream in listener.incoming().flatten() {
                    if shared.ends.load(Ordering::SeqCst) {
                        return;
                    }
                    let shared = Arc::clone(&shared);
                    // A broken connection is what the tests are about.
                    std::thread::spawn(move || _ = serve(stream, is_cdn, &shared));
                }
            });
            address
        };
        let (hub, cdn) = (listen(false), listen(true));
        *shared.cdn.lock().unwrap() = format!("http://{cdn}");
        Server { hub, cdn, shared }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.hub)
    }

    pub fn add(&self, repo: &str, name: &str, bytes: Vec<u8>, is_lfs: bool) -> File {
        let file = File { bytes: Arc::new(bytes), is_lfs };
        let mut state = self.shared.state.lock().unwrap();
        state.repos.entry(repo.into()).or_default().insert(name.into(), file.clone());
        file
    }

    pub fn faults(&self, change: impl FnOnce(&mut Faults)) {
        change(&mut self.shared.state.lock().unwrap().faults);
    }

    pub fn heal(&self) {
        self.faults(|faults| *faults = Faults::default());
    }

    /// What came since the last time.
    pub fn requests(&self) -> Vec<Request> {
        std::mem::take(&mut self.shared.state.lock().unwrap().log).into_values().collect()
    }

    /// Requests for the bytes of files since the last time.
    pub fn bodies(&self) -> Vec<Request> {
        let is_body = |r: &Request| r.method == "GET" && !r.path.starts_with("/api/");
        self.requests().into_iter().filter(is_body).collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.ends.store(true, Ordering::SeqCst);
        // They wait for a connection.
        _ = TcpStream::connect(self.hub);
        _ = TcpStream::connect(self.cdn);
    }
}

/// Answers until the other side ends, or a fault breaks the connection.
fn serve(stream: TcpStream, is_cdn: bool, shared: &Shared) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut stream = stream;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            return Ok(());
        }
        let mut words = line.split_whitespace();
        let method = words.next().unwrap_or_default().to_string();
        let path = words.next().unwrap_or_default().to_string();
        let (mut range, mut authorization) = (None, None);
        loop {
            let mut header = String::new();
            reader.read_line(&mut header)?;
            let Some((name, value)) = header.trim().split_once(':') else { break };
            let value = value.trim();
            match name.to_ascii_lowercase().as_str() {
                "range" => {
                    let ends = value.strip_prefix("bytes=").and_then(|r| r.split_once('-'));
                    range = ends.map(|(a, b)| (a.parse().unwrap(), b.parse().unwrap_or(u64::MAX)));
                }
                "authorization" => authorization = Some(value.to_string()),
                _ => {}
            }
        }
        let request = Request { is_cdn, method, path, range, authorization, sent: 0 };
        let answer = shared.answer(&request);
        let number = shared.write_down(&request);
        let mut head = format!("HTTP/1.1 {} X\r\n", answer.status);
        for (name, value) in &answer.headers {
            head += &format!("{name}: {value}\r\n");
        }
        let length = answer.length.unwrap_or(answer.body.len());
        head += &format!("Content-Length: {length}\r\n\r\n");
        let is_head = request.method == "HEAD";
        let mut broken = stream.write_all(head.as_bytes());
        let mut sent = 0;
        for piece in answer.body.chunks(4096).take_while(|_| !is_head) {
            // Written down first: whoever has received it finds it in the log.
            let (allowed, delay) = shared.allow(number, piece.len(), sent, answer.is_file);
            sent += allowed;
            broken = broken.and_then(|()| stream.write_all(&piece[..allowed]));
            if allowed < piece.len() {
                broken = Err(std::io::ErrorKind::ConnectionReset.into());
            }
            if broken.is_err() {
                break;
            }
            if let Some(delay) = delay {
                std::thread::sleep(delay);
            }
        }
        broken?;
    }
}

struct Answer {
    status: u16,
    headers: Vec<(&'static str, String)>,
    body: Vec<u8>,
    /// For the answer to HEAD.
    length: Option<usize>,
    /// Whether faults of bodies are for it.
    is_file: bool,
}

impl Answer {
    fn of(status: u16, headers: Vec<(&'static str, String)>) -> Self {
        Answer { status, headers, body: vec![], length: None, is_file: false }
    }

    fn json(value: &Value) -> Self {
        Answer { body: value.to_string().into_bytes(), ..Answer::of(200, vec![]) }
    }

    fn refusal(status: u16, code: &str) -> Self {
        let headers = vec![("X-Error-Code", code.to_string()), ("X-Error-Message", code.into())];
        Answer::of(status, headers)
    }
}

impl Shared {
    /// Writes a request down.
    fn write_down(&self, request: &Request) -> u64 {
        let state = &mut *self.state.lock().unwrap();
        state.came += 1;
        state.log.insert(state.came, request.clone());
        state.came
    }

    /// How much of a piece may be sent.
    fn allow(
        &self,
        number: u64,
        wanted: usize,
        sent: usize,
        is_file: bool,
    ) -> (usize, Option<Duration>) {
        let state = &mut *self.state.lock().unwrap();
        let mut allowed = wanted as u64;
        if is_file {
            if let Some(budget) = &mut state.faults.budget {
                allowed = allowed.min(*budget);
                *budget -= allowed;
            }
            if let Some(each) = state.faults.cut_each {
                allowed = allowed.min(each.saturating_sub(sent as u64));
            }
        }
        if let Some(request) = state.log.get_mut(&number) {
            request.sent += allowed;
        }
        (usize::try_from(allowed).unwrap(), state.faults.delay)
    }

    fn answer(&self, request: &Request) -> Answer {
        let state = &mut *self.state.lock().unwrap();
        if !request.is_cdn
            && let Some((status, headers)) = state.faults.answers.pop_front()
        {
            return Answer::of(status, headers);
        }
        let faults = state.faults.clone();
        let path = request.path.split('?').next().unwrap_or_default();
        let bad_token = |token: &String| request.authorization != Some(format!("Bearer {token}"));
        if request.is_cdn {
            let (repo, name) = path[1..].rsplit_once('/').unwrap();
            return match state.repos.get(repo).and_then(|files| files.get(name)) {
                Some(file) => body(file, request, &faults),
                None => Answer::of(404, vec![]),
            };
        }
        if let Some(rest) = path.strip_prefix("/api/models/") {
            let words: Vec<&str> = rest.split('/').collect();
            let [org, name, what, revision] = words[..] else {
                return Answer::refusal(404, "RepoNotFound");
            };
            let Some(files) = state.repos.get(&format!("{org}/{name}")) else {
                return Answer::refusal(401, "RepoNotFound");
            };
            if !["main", "refs%2Fpr%2F1", COMMIT].contains(&revision) {
                return Answer::refusal(404, "RevisionNotFound");
            }
            return Answer::json(&listing(files, what == "tree", &faults));
        }
        let Some((repo, rest)) = path[1..].split_once("/resolve/") else {
            return Answer::of(404, vec![]);
        };
        let (_, name) = rest.split_once('/').unwrap_or((rest, ""));
        let Some(file) = state.repos.get(repo).and_then(|files| files.get(name)) else {
            return Answer::refusal(404, "EntryNotFound");
        };
        if faults.token.as_ref().is_some_and(bad_token) {
            return match request.authorization {
                None => Answer::refusal(401, "GatedRepo"),
                Some(_) => Answer::of(
                    401,
                    vec![("X-Error-Message", "Invalid credentials in Authorization header".into())],
                ),
            };
        }
        if faults.is_gated {
            return Answer::refusal(
                if request.authorization.is_some() { 403 } else { 401 },
                "GatedRepo",
            );
        }
        let etag = faults.etag.clone().unwrap_or_else(|| file.etag());
        let mut headers = vec![("X-Repo-Commit", COMMIT.to_string())];
        if file.is_lfs {
            headers.push(("X-Linked-Etag", format!("\"{etag}\"")));
            headers.push(("X-Linked-Size", file.bytes.len().to_string()));
            headers.push(("ETag", "\"of-the-redirect\"".into()));
            headers.push(("Location", format!("{}/{repo}/{name}?sig=s", self.cdn.lock().unwrap())));
            return Answer::of(302, headers);
        }
        headers.push(("ETag", format!("\"{etag}\"")));
        let mut answer = body(file, request, &faults);
        answer.headers.extend(headers);
        answer
    }
}

fn listing(files: &BTreeMap<String, File>, is_tree: bool, faults: &Faults) -> Value {
    let each = files.iter().map(|(name, file)| {
        let size = faults.lie.unwrap_or(file.bytes.len() as u64);
        let etag = faults.etag.clone().unwrap_or_else(|| file.etag());
        let pointer = "a".repeat(40);
        let git = if file.is_lfs { &pointer } else { &etag };
        match (is_tree, faults.is_terse) {
            (true, _) if file.is_lfs => json!({
                "type": "file", "path": name, "size": size, "oid": git,
                "lfs": {"oid": etag, "size": size, "pointerSize": 134},
            }),
            (true, _) => json!({"type": "file", "path": name, "size": size, "oid": git}),
            (false, true) => json!({"rfilename": name}),
            (false, false) if file.is_lfs => json!({
                "rfilename": name, "size": size, "blobId": git,
                "lfs": {"sha256": etag, "size": size, "pointerSize": 134},
            }),
            (false, false) => json!({"rfilename": name, "size": size, "blobId": git}),
        }
    });
    let each: Vec<Value> = each.collect();
    if is_tree { json!(each) } else { json!({"id": "x", "sha": COMMIT, "siblings": each}) }
}

fn body(file: &File, request: &Request, faults: &Faults) -> Answer {
    let mut bytes = file.bytes.to_vec();
    if faults.is_damaged {
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
    }
    let mut answer = Answer { is_file: true, ..Answer::of(200, vec![]) };
    if request.method == "HEAD" {
        answer.length = Some(bytes.len());
    } else if let Some((start, last)) = request.range.filter(|_| !faults.no_ranges) {
        let last = last.min(bytes.len() as u64 - 1);
        answer.status = 206;
        answer.headers.push(("Content-Range", format!("bytes {start}-{last}/{}", bytes.len())));
        let at = |n: u64| usize::try_from(n).unwrap();
        answer.body = bytes[at(start)..=at(last)].to_vec();
    } else {
        answer.body = bytes;
    }
    answer
}
