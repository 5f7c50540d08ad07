//! The server over a real socket: with the built-in model, and with an engine that fails on demand.
//!
//! Tests that are called after a row of `docs/faults.md` (`r01_…`, `c3_…`, `x2_…`) hold the server to it.

mod alike;
mod anthropic;
mod api;
mod client;
mod edges;
mod exposure;
mod formats;
mod lifecycle;
mod media;
mod models;
mod ollama;
mod overhead;
mod requests;
mod responses;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, OnceLock, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use lapidary::{Engine, Load, LoadedRunner, Model, Runner};
use lapidary_mock_engine::Mock;
use lapidary_server::{App, Config, Log, LogFormat, Outcome, Server, Source};
use serde_json::{Value, json};
use tokio::sync::oneshot;

/// A server that runs, and ends with its handle.
pub struct Running {
    /// Where it listens.
    pub at: SocketAddr,
    /// What its handlers share.
    pub app: App,
    log: Arc<Mutex<Vec<u8>>>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<Outcome>>,
}

impl Running {
    /// Asks it to end, without waiting.
    pub fn stop(&mut self) {
        self.stop.take();
    }

    /// Waits until it has ended.
    pub fn ended(mut self) -> Outcome {
        self.stop();
        self.thread.take().unwrap().join().unwrap()
    }

    /// The engine of a model that is loaded.
    pub fn engine(&self, name: &str) -> Engine {
        let entry = self.app.find(Some(name)).unwrap().clone();
        until("the model is loaded", || entry.engine().is_some());
        entry.engine().unwrap()
    }

    /// All that was logged.
    pub fn log(&self) -> String {
        String::from_utf8(self.log.lock().unwrap().clone()).unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Shared(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Starts a server, with its first model loaded unless it is lazy.
pub fn start(config: &Config, sources: Vec<Source>) -> Running {
    let log: Arc<Mutex<Vec<u8>>> = Arc::default();
    start_logging(config, sources, log.clone(), Box::new(Shared(log)))
}

/// The same, with a log of the test's own.
pub fn start_logging(
    config: &Config,
    sources: Vec<Source>,
    log: Arc<Mutex<Vec<u8>>>,
    out: Box<dyn std::io::Write + Send>,
) -> Running {
    let (stop, stopped) = oneshot::channel();
    let (ready, is_ready) = mpsc::channel();
    let config = config.clone();
    let thread = std::thread::spawn(move || {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(async {
            let log = Log::to(LogFormat::Json, true, out);
            let server = Server::bind(&config, sources, log).await.unwrap();
            if !config.lazy {
                server.preload();
            }
            ready.send((server.address(), server.app().clone())).unwrap();
            server.run(async { _ = stopped.await }).await
        })
    });
    let (at, app) = is_ready.recv().unwrap();
    Running { at, app, log, stop: Some(stop), thread: Some(thread) }
}

/// Any port, no keys.
pub fn config() -> Config {
    Config { port: 0, parallel: 8, ..Config::default() }
}

/// The built-in model.
pub fn pebble() -> Model {
    static PEBBLE: OnceLock<Model> = OnceLock::new();
    PEBBLE.get_or_init(|| Model::pebble().unwrap()).clone()
}

/// Small, and nothing kept.
pub fn load() -> Load {
    Load::default().backend("cpu").context(1024).threads(2).sequences(8).pack_cache(None)
}

/// The built-in model under a name.
pub fn source(name: &str) -> Source {
    Source::new(name, pebble(), load())
}

/// The server that most tests share.
pub fn shared() -> SocketAddr {
    static SHARED: OnceLock<Running> = OnceLock::new();
    SHARED.get_or_init(|| start(&config(), vec![source("pebble")])).at
}

/// A model that fails on demand. Its logits are hashes, so it is asked by token ids.
pub fn mock_source(name: &str, mock: &Mock) -> Source {
    let model = Model::of_program(mock.program());
    let context = mock.options.max_context;
    let load = Load::default().backend("cpu").context(context).pack_cache(None);
    let (mock, made) = (mock.clone(), model.clone());
    let make = move || {
        let plan = load.plan(&made)?;
        let runner = Runner::with_prompts(mock.engine(), made.prompts().clone())?;
        made.start(LoadedRunner { runner, plan, took: Duration::ZERO }, &load)
    };
    Source { name: name.to_string(), model, load: None, make: Box::new(make) }
}

/// Waits until something is so; the clock only says when to give up.
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < Duration::from_secs(60), "not so after a minute: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Holds an engine until the sender is dropped.
pub fn hold(engine: &Engine) -> mpsc::Sender<()> {
    let (release, held) = mpsc::channel::<()>();
    let (begun, begins) = mpsc::channel();
    let engine = engine.clone();
    std::thread::spawn(move || {
        let _ = engine.with_runner(move |_| {
            begun.send(()).unwrap();
            let _ = held.recv();
        });
    });
    begins.recv().unwrap();
    release
}

/// A question that is answered at some length, always alike.
pub fn story(max_tokens: usize) -> Value {
    json!({
        "messages": [{"role": "user", "content": "Tell me a story about a brave fox."}],
        "temperature": 0,
        "max_tokens": max_tokens,
    })
}

/// The same with more fields.
pub fn with(mut body: Value, more: Value) -> Value {
    let Value::Object(more) = more else { panic!("an object") };
    body.as_object_mut().unwrap().extend(more);
    body
}

/// The route that most tests ask.
pub const CHAT: &str = "/v1/chat/completions";

/// What a whole answer says.
pub fn said(reply: &client::Reply) -> String {
    assert_eq!(reply.status, 200, "{}", reply.text());
    reply.json()["choices"][0]["message"]["content"].as_str().unwrap_or_default().to_string()
}

/// What a streamed answer says.
pub fn streamed(reply: &client::Reply) -> String {
    assert_eq!(reply.status, 200, "{}", reply.text());
    assert!(reply.text().ends_with("data: [DONE]\n\n"), "{}", reply.text());
    let delta = |e: Value| e["choices"][0]["delta"]["content"].as_str().unwrap_or("").to_string();
    reply.events().into_iter().map(delta).collect()
}

/// A tool that the built-in model knows how to call.
pub fn weather() -> Value {
    json!({"type": "function", "function": {
        "name": "get_weather",
        "description": "Get the current weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "description": "The name of the city."}},
            "required": ["city"],
        },
    }})
}
