//! A client that does what it is told, also what no good client would.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

/// What came back.
#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Reply {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.text()))
    }

    pub fn text(&self) -> String {
        String::from_utf8(self.body.clone()).expect("a body is UTF-8")
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }

    /// The data of all events, without the last word.
    pub fn events(&self) -> Vec<Value> {
        let text = self.text();
        let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
        data.filter(|d| *d != "[DONE]").map(|d| serde_json::from_str(d).unwrap()).collect()
    }

    /// The error's field.
    pub fn error(&self, field: &str) -> Value {
        self.json()["error"][field].clone()
    }
}

/// A connection that gives up rather than hang.
pub fn connect(at: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(at).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream.set_write_timeout(Some(Duration::from_secs(60))).unwrap();
    stream
}

/// The bytes of a request.
pub fn request(method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
    let mut text = format!("{method} {path} HTTP/1.1\r\nconnection: close\r\n");
    if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
        text += "host: localhost\r\n";
    }
    for (name, value) in headers {
        text += &format!("{name}: {value}\r\n");
    }
    if !headers.iter().any(|(name, _)| *name == "transfer-encoding" || *name == "content-length") {
        text += &format!("content-length: {}\r\n", body.len());
    }
    text += "\r\n";
    let mut bytes = text.into_bytes();
    bytes.extend_from_slice(body);
    bytes
}

/// Sends bytes and reads what comes back.
pub fn exchange(at: SocketAddr, bytes: &[u8]) -> Reply {
    let mut stream = connect(at);
    // A server that refuses need not read all.
    let _ = stream.write_all(bytes);
    read(stream)
}

/// Reads what comes back, to the end.
pub fn read(stream: TcpStream) -> Reply {
    let mut reader = BufReader::new(stream);
    let (status, headers) = head(&mut reader);
    let mut body = Vec::new();
    let is_chunked = headers.iter().any(|(k, v)| k == "transfer-encoding" && v == "chunked");
    match is_chunked {
        false => _ = reader.read_to_end(&mut body),
        true => while chunk(&mut reader, &mut body) {},
    }
    Reply { status, headers, body }
}

/// The status and the headers.
pub fn head(reader: &mut impl BufRead) -> (u16, Vec<(String, String)>) {
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    let status = line.split(' ').nth(1).and_then(|s| s.parse().ok());
    let status = status.unwrap_or_else(|| panic!("no status in {line:?}"));
    let mut headers = Vec::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).unwrap() == 0 || line == "\r\n" {
            return (status, headers);
        }
        let (name, value) = line.split_once(':').unwrap();
        headers.push((name.to_ascii_lowercase(), value.trim().to_string()));
    }
}

fn chunk(reader: &mut impl BufRead, body: &mut Vec<u8>) -> bool {
    let mut line = String::new();
    if reader.read_line(&mut line).unwrap_or(0) == 0 {
        return false;
    }
    let n = usize::from_str_radix(line.trim(), 16).unwrap_or(0);
    let mut bytes = vec![0; n + 2];
    if reader.read_exact(&mut bytes).is_err() {
        return false;
    }
    body.extend_from_slice(&bytes[..n]);
    n > 0
}

pub fn get(at: SocketAddr, path: &str) -> Reply {
    exchange(at, &request("GET", path, &[], b""))
}

pub fn post(at: SocketAddr, path: &str, body: &Value) -> Reply {
    let kind = [("content-type", "application/json")];
    exchange(at, &request("POST", path, &kind, body.to_string().as_bytes()))
}

pub fn post_as(at: SocketAddr, path: &str, key: &str, body: &Value) -> Reply {
    let bearer = format!("Bearer {key}");
    let bytes = body.to_string();
    exchange(at, &request("POST", path, &[("authorization", &bearer)], bytes.as_bytes()))
}

/// A stream that is read as it comes.
pub struct Open(pub BufReader<TcpStream>);

impl Open {
    pub fn post(at: SocketAddr, path: &str, body: &Value) -> Self {
        let mut stream = connect(at);
        let bytes = body.to_string();
        stream.write_all(&request("POST", path, &[], bytes.as_bytes())).unwrap();
        Open(BufReader::new(stream))
    }

    /// The next line that begins so.
    pub fn line(&mut self, prefix: &str) -> Option<String> {
        loop {
            let mut line = String::new();
            if self.0.read_line(&mut line).unwrap_or(0) == 0 {
                return None;
            }
            if line.starts_with(prefix) {
                return Some(line);
            }
        }
    }
}
