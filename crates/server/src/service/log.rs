//! The log: a line for each request, and whatever else happens. Never what was said.

use std::io::Write;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime};

use serde_json::{Map, Value, json};

use super::config::LogFormat;
use super::failure::Failure;
use super::time::rfc3339;

/// Lines that wait to be written. More are dropped: a full disk stops no request.
const WAITING: usize = 4096;

/// Where lines go.
#[derive(Clone)]
pub struct Log {
    lines: SyncSender<String>,
    format: LogFormat,
    has_access: bool,
}

impl Log {
    /// Writes to standard error, from a thread of its own.
    pub fn to_stderr(format: LogFormat, has_access: bool) -> Self {
        Self::to(format, has_access, Box::new(std::io::stderr()))
    }

    /// Writes anywhere, from a thread of its own. What can't be written is lost, and nobody waits.
    pub fn to(format: LogFormat, has_access: bool, out: Box<dyn Write + Send>) -> Self {
        let (lines, waiting) = sync_channel(WAITING);
        let thread = std::thread::Builder::new().name("log".to_string());
        // Without a thread there is no log; the sender then finds nobody.
        let _ = thread.spawn(move || write(&waiting, out));
        Log { lines, format, has_access }
    }

    /// Something happened.
    pub fn note(&self, level: &str, what: &str, more: &[(&str, Value)]) {
        let mut line = Map::new();
        line.insert("time".to_string(), rfc3339(SystemTime::now()).into());
        line.insert("level".to_string(), level.into());
        line.insert("message".to_string(), what.into());
        line.extend(more.iter().map(|(k, v)| ((*k).to_string(), v.clone())));
        self.send(line);
    }

    fn send(&self, line: Map<String, Value>) {
        let line = match self.format {
            LogFormat::Json => Value::Object(line).to_string(),
            LogFormat::Text => in_words(&line),
        };
        match self.lines.try_send(line) {
            Ok(()) | Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {}
        }
    }
}

fn in_words(line: &Map<String, Value>) -> String {
    let one = |(key, value): (&String, &Value)| match (key.as_str(), value) {
        ("time" | "level" | "message", Value::String(s)) => s.clone(),
        (_, Value::String(s)) => format!("{key}={s}"),
        (_, value) => format!("{key}={value}"),
    };
    line.iter().map(one).collect::<Vec<_>>().join(" ")
}

fn write(lines: &Receiver<String>, mut out: Box<dyn Write + Send>) {
    while let Ok(mut line) = lines.recv() {
        line.push('\n');
        // Whoever reads the log may be gone, and the disk may be full.
        let _ = out.write_all(line.as_bytes());
        let _ = out.flush();
    }
}

/// What the log will say of one request.
#[derive(Clone)]
pub struct Trace(Arc<Mutex<Traced>>);

struct Traced {
    log: Log,
    begun: Instant,
    line: Map<String, Value>,
}

impl Trace {
    /// A request came.
    pub fn new(log: Log, id: &str, method: &str) -> Self {
        let line = [("id", json!(id)), ("method", json!(method))];
        let line = line.into_iter().map(|(k, v)| (k.to_string(), v)).collect();
        let traced = Traced { log, begun: Instant::now(), line };
        Trace(Arc::new(Mutex::new(traced)))
    }

    fn lock(&self) -> MutexGuard<'_, Traced> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds something about it: numbers and names, never text of the request.
    pub fn set(&self, key: &str, value: impl Into<Value>) {
        self.lock().line.insert(key.to_string(), value.into());
    }

    /// Adds to a number.
    pub fn add(&self, key: &str, n: usize) {
        let mut traced = self.lock();
        let sum = traced.line.get(key).and_then(Value::as_u64).unwrap_or(0) + n as u64;
        traced.line.insert(key.to_string(), sum.into());
    }

    /// When it came.
    pub fn begun(&self) -> Instant {
        self.lock().begun
    }

    /// It failed; the log is told what its sender is not.
    pub fn failed(&self, failure: &Failure) {
        let mut traced = self.lock();
        traced.line.insert("error".to_string(), failure.code.into());
        if let Some(detail) = &failure.detail {
            traced.line.insert("detail".to_string(), (**detail).into());
        }
    }
}

/// It is over when nobody holds it any more: neither its response nor its answers.
impl Drop for Traced {
    fn drop(&mut self) {
        let is_error = self.line.contains_key("detail");
        if !self.log.has_access && !is_error {
            return;
        }
        let mut line = Map::new();
        line.insert("time".to_string(), rfc3339(SystemTime::now()).into());
        line.insert("level".to_string(), if is_error { "error" } else { "info" }.into());
        line.insert("message".to_string(), "request".into());
        line.extend(std::mem::take(&mut self.line));
        let ms = self.begun.elapsed().as_secs_f64() * 1e3;
        line.insert("ms".to_string(), round(ms).into());
        self.log.send(line);
    }
}

/// Three digits after the point.
pub fn round(x: f64) -> f64 {
    (x * 1e3).round() / 1e3
}
