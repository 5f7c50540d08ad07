//! Plain HTTP/1.1 to one server: a request on a connection of its own, and its answer as it comes.

#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream, ToSocketAddrs};
use std::time::Duration;

/// Why a server could not be asked.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The address is none.
    #[error("{url}: {why}; give an address like http://127.0.0.1:8080")]
    Url {
        /// What was given.
        url: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// Nobody answers there.
    #[error("can't reach {address}: {source}; is the server running?")]
    Connect {
        /// Where.
        address: String,
        /// Why not.
        source: std::io::Error,
    },
    /// The server refuses.
    #[error("the server answered {status}: {message}")]
    Status {
        /// Its number.
        status: u16,
        /// What it says.
        message: String,
    },
    /// The server began an answer, then gave up.
    #[error("the server gave up in the middle of an answer: {0}")]
    Failed(String),
    /// The connection ended or failed before the answer was whole.
    #[error("the answer broke off: {0}")]
    BrokeOff(std::io::Error),
    /// What came is not what such a server sends.
    #[error("the server does not speak OpenAI's API: {0}")]
    Garbage(String),
}

/// How long a server may say nothing.
const SILENCE: Duration = Duration::from_secs(600);
/// Bytes of one line, and of a whole answer that is not a stream.
const MAX_LINE: u64 = 1 << 22;
const MAX_BODY: u64 = 1 << 26;
const MAX_HEADERS: usize = 200;

/// Where a server is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerUrl {
    /// Host and port, as the `host` header has them.
    address: String,
    /// What stands before every path.
    base: String,
    key: Option<String>,
}

impl ServerUrl {
    /// Reads `http://HOST[:PORT][/PATH]`; a `/v1` at its end may be left out.
    pub fn new(url: &str, key: Option<String>) -> Result<Self, ServerError> {
        let bad = |why| ServerError::Url { url: url.to_string(), why };
        if url.starts_with("https://") {
            return Err(bad("https is not spoken here"));
        }
        let rest = url.strip_prefix("http://").ok_or_else(|| bad("this is no http address"))?;
        let (address, base) = match rest.split_once('/') {
            Some((address, path)) => (address, format!("/{path}")),
            None => (rest, String::new()),
        };
        let odd = |c: char| c.is_whitespace() || c.is_control();
        if address.is_empty() || address.contains('@') || rest.contains(odd) {
            return Err(bad("this is no http address"));
        }
        if key.as_ref().is_some_and(|key| key.contains(odd)) {
            return Err(bad("the key has spaces or line ends in it"));
        }
        // The colons of an IPv6 address stand in brackets.
        let has_port = address.rsplit(']').next().is_some_and(|end| end.contains(':'));
        let address = if has_port { address.to_string() } else { format!("{address}:80") };
        let base = base.trim_end_matches('/');
        let base = base.strip_suffix("/v1").unwrap_or(base).to_string();
        Ok(ServerUrl { address, base, key })
    }

    /// Asks for a whole answer.
    fn get(&self, path: &str) -> Result<String, ServerError> {
        self.request("GET", path, "")?.text()
    }

    /// Sends JSON; the answer comes in events.
    pub fn events(&self, path: &str, json: &str) -> Result<Events, ServerError> {
        let body = self.request("POST", path, json)?;
        let socket = body.stream.get_ref().try_clone().map_err(ServerError::BrokeOff)?;
        Ok(Events { events: EventReader::new(body), socket })
    }

    /// The name of the server's first model.
    pub fn first_model(&self) -> Result<String, ServerError> {
        let text = self.get("/v1/models")?;
        let list: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
        let name = list.pointer("/data/0/id").and_then(serde_json::Value::as_str);
        name.map(String::from)
            .ok_or_else(|| ServerError::Garbage("/v1/models lists no model".into()))
    }

    fn request(&self, method: &str, path: &str, body: &str) -> Result<Body, ServerError> {
        let ServerUrl { address, base, key } = self;
        let unreached = |source| ServerError::Connect { address: address.clone(), source };
        let mut stream = connect(address).map_err(unreached)?;
        let key = key.as_ref().map(|k| format!("authorization: Bearer {k}\r\n"));
        let head = format!(
            "{method} {base}{path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\
             content-type: application/json\r\naccept: */*\r\n{}content-length: {}\r\n\r\n",
            key.unwrap_or_default(),
            body.len()
        );
        let sent = stream.write_all(format!("{head}{body}").as_bytes());
        sent.map_err(ServerError::BrokeOff)?;
        let mut body = Body::read_head(BufReader::new(stream))?;
        match body.status {
            200..=299 => Ok(body),
            status => {
                let text = body.text().unwrap_or_default();
                Err(ServerError::Status { status, message: message(&text) })
            }
        }
    }
}

fn connect(address: &str) -> std::io::Result<TcpStream> {
    let mut failed = std::io::Error::new(ErrorKind::NotFound, "the name has no address");
    for at in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&at, Duration::from_secs(10)) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(SILENCE))?;
                stream.set_write_timeout(Some(SILENCE))?;
                return Ok(stream);
            }
            Err(e) => failed = e,
        }
    }
    Err(failed)
}

/// An answer that comes in events, as `data:` of each.
pub struct Events {
    events: EventReader<Body>,
    socket: TcpStream,
}

/// Ends an answer that is under way, from wherever.
pub struct Stopper(TcpStream);

impl Stopper {
    /// Closes the connection: the server stops working for it.
    pub fn stop(&self) {
        // One that is closed already is what was wanted.
        let _ = self.0.shutdown(Shutdown::Both);
    }
}

impl Events {
    /// What ends it.
    pub fn stopper(&self) -> Result<Stopper, ServerError> {
        self.socket.try_clone().map(Stopper).map_err(ServerError::BrokeOff)
    }
}

impl Iterator for Events {
    type Item = Result<String, ServerError>;

    fn next(&mut self) -> Option<Self::Item> {
        Some(self.events.next()?.map_err(ServerError::BrokeOff))
    }
}

/// The words of a refusal, in one line.
fn message(text: &str) -> String {
    let json: serde_json::Value = serde_json::from_str(text).unwrap_or_default();
    let found = json.pointer("/error/message").or(json.get("message")).or(json.get("error"));
    let said = found.and_then(|said| said.as_str()).unwrap_or(text);
    // OpenAI's errors have the field that is wrong beside their words.
    let param = json.pointer("/error/param").and_then(|param| param.as_str());
    let at = param.filter(|param| !said.contains(param)).map(|param| format!("{param}: "));
    format!("{}{said}", at.unwrap_or_default())
        .chars()
        .take(300)
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect()
}

/// The rest of an answer.
struct Body {
    status: u16,
    stream: BufReader<TcpStream>,
    left: Left,
}

/// How the end of a body is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Left {
    /// So many bytes are left.
    Bytes(u64),
    /// So many bytes of a chunk are left; `None` before the first.
    Chunk(Option<u64>),
    /// The server closes the connection.
    ToClose,
}

impl Body {
    fn read_head(mut stream: BufReader<TcpStream>) -> Result<Self, ServerError> {
        let first = line(&mut stream).map_err(ServerError::BrokeOff)?;
        let mut words = first.split(' ');
        let http = words.next().is_some_and(|word| word.starts_with("HTTP/1."));
        let status = words.next().and_then(|word| word.parse().ok());
        let Some(status) = status.filter(|_| http) else {
            return Err(ServerError::Garbage("its answer is not HTTP".into()));
        };
        let mut left = Left::ToClose;
        for _ in 0..MAX_HEADERS {
            let header = line(&mut stream).map_err(ServerError::BrokeOff)?;
            let Some((name, value)) = header.split_once(':') else {
                return Ok(Body { status, stream, left });
            };
            let (name, value) = (name.to_ascii_lowercase(), value.trim());
            if name == "transfer-encoding" && value.eq_ignore_ascii_case("chunked") {
                left = Left::Chunk(None);
            } else if name == "content-length" && left == Left::ToClose {
                let n = value.parse().map_err(|_| garbage("a length that is not a number"));
                left = Left::Bytes(n.map_err(ServerError::BrokeOff)?);
            }
        }
        Err(ServerError::Garbage("its answer has too many headers".into()))
    }

    fn text(&mut self) -> Result<String, ServerError> {
        let mut text = Vec::new();
        self.take(MAX_BODY).read_to_end(&mut text).map_err(ServerError::BrokeOff)?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    /// Begins the next chunk; its length.
    fn next_chunk(&mut self, is_first: bool) -> std::io::Result<u64> {
        if !is_first && !line(&mut self.stream)?.is_empty() {
            return Err(garbage("a chunk that is longer than it says"));
        }
        let size = line(&mut self.stream)?;
        let digits = size.split(';').next().unwrap_or_default().trim();
        u64::from_str_radix(digits, 16).map_err(|_| garbage("a chunk without a length"))
    }
}

impl Read for Body {
    fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        if let Left::Chunk(left @ (None | Some(0))) = self.left {
            let n = self.next_chunk(left.is_none())?;
            self.left = if n == 0 { Left::Bytes(0) } else { Left::Chunk(Some(n)) };
        }
        let most = match self.left {
            Left::Bytes(0) => return Ok(0),
            Left::Bytes(n) | Left::Chunk(Some(n)) => n,
            Left::Chunk(None) | Left::ToClose => u64::MAX,
        };
        let most = usize::try_from(most).unwrap_or(usize::MAX).min(bytes.len());
        let n = self.stream.read(bytes.get_mut(..most).unwrap_or_default())?;
        match &mut self.left {
            Left::Bytes(left) | Left::Chunk(Some(left)) => {
                if n == 0 && most > 0 {
                    return Err(closed());
                }
                *left = left.saturating_sub(n as u64);
            }
            Left::Chunk(None) | Left::ToClose => {}
        }
        Ok(n)
    }
}

/// A line without its end.
fn line(stream: &mut impl BufRead) -> std::io::Result<String> {
    let mut line = Vec::new();
    stream.take(MAX_LINE).read_until(b'\n', &mut line)?;
    if line.pop() != Some(b'\n') {
        return Err(closed());
    }
    if line.last() == Some(&b'\r') {
        line.pop();
    }
    String::from_utf8(line).map_err(|_| garbage("a line that is not text"))
}

/// Reads the `data:` of each event of a stream.
pub struct EventReader<R>(BufReader<R>);

impl<R: Read> EventReader<R> {
    /// Of this stream.
    pub fn new(stream: R) -> Self {
        EventReader(BufReader::new(stream))
    }
}

impl<R: Read> Iterator for EventReader<R> {
    type Item = std::io::Result<String>;

    fn next(&mut self) -> Option<Self::Item> {
        next_event(&mut self.0).transpose()
    }
}

/// The payload of the next event of a stream; `None` at its end.
fn next_event(body: &mut impl BufRead) -> std::io::Result<Option<String>> {
    let mut data: Option<String> = None;
    loop {
        if body.fill_buf()?.is_empty() {
            return Ok(data);
        }
        let line = line(body)?;
        if line.is_empty() {
            if data.is_some() {
                return Ok(data);
            }
        } else if let Some(more) = line.strip_prefix("data:") {
            let more = more.strip_prefix(' ').unwrap_or(more);
            data = Some(match data {
                Some(before) => format!("{before}\n{more}"),
                None => more.to_string(),
            });
        }
    }
}

fn closed() -> std::io::Error {
    std::io::Error::new(ErrorKind::UnexpectedEof, "the server closed the connection")
}

fn garbage(what: &str) -> std::io::Error {
    std::io::Error::new(ErrorKind::InvalidData, format!("the server sent {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_others_refused() {
        let url = |url: &str| ServerUrl::new(url, None).map(|u| (u.address, u.base));
        let owned = |a: &str, b: &str| (a.to_string(), b.to_string());
        for (given, want) in [
            ("http://localhost", owned("localhost:80", "")),
            ("http://127.0.0.1:8080/", owned("127.0.0.1:8080", "")),
            ("http://127.0.0.1:8080/v1/", owned("127.0.0.1:8080", "")),
            ("http://[::1]:9/a/v1", owned("[::1]:9", "/a")),
            ("http://[::1]", owned("[::1]:80", "")),
        ] {
            assert_eq!(url(given).ok(), Some(want), "{given}");
        }
        for bad in
            ["https://x", "localhost:8080", "http://", "http:///v1", "http://a b", "http://u@h"]
        {
            assert!(matches!(url(bad), Err(ServerError::Url { .. })), "{bad}");
        }
        assert!(ServerUrl::new("http://x", Some("a\r\nb".into())).is_err());
    }

    #[test]
    fn a_refusal_names_the_field() {
        let said = message("{\"error\":{\"message\":\"7 is too\\nmuch\",\"param\":\"top_p\"}}");
        assert_eq!(said, "top_p: 7 is too much");
        assert_eq!(message("{\"error\":{\"message\":\"x is 1\",\"param\":\"x\"}}"), "x is 1");
        assert_eq!(message("{\"error\":\"no\"}"), "no");
        assert_eq!(message("plain"), "plain");
    }

    #[test]
    fn events_are_read_across_lines() {
        let mut stream =
            ": hi\n\ndata: {\"a\":1}\r\n\r\nevent: x\ndata:one\ndata: two\n\n".as_bytes();
        for want in [Some("{\"a\":1}"), Some("one\ntwo"), None] {
            assert_eq!(next_event(&mut stream).ok(), Some(want.map(String::from)));
        }
    }
}
