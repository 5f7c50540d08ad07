//! The library with the built-in model on the CPU.

mod answers;
mod chat;
mod draft;
mod load;
mod queue;
mod serving;

use std::sync::OnceLock;

use lapidary::{Engine, Load, Message, Model, Request};
use serde_json::{Value, json};

/// The engine that most tests share.
pub fn engine() -> &'static Engine {
    static ENGINE: OnceLock<Engine> = OnceLock::new();
    ENGINE.get_or_init(|| pebble().load(load().sequences(8)).unwrap())
}

pub(crate) fn pebble() -> Model {
    Model::pebble().unwrap()
}

/// Small, exact, and nothing kept.
pub fn load() -> Load {
    Load::default().backend("cpu").context(512).threads(2).pack_cache(None)
}

pub(crate) fn drawing() -> Vec<u8> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../pebble/heldout/images/drawing17.png");
    std::fs::read(path).unwrap()
}

pub(crate) fn tools() -> Vec<Value> {
    let tool = |name: &str, what: &str| {
        let city = json!({"type": "string", "description": "The name of the city."});
        let parameters =
            json!({"type": "object", "properties": {"city": city}, "required": ["city"]});
        json!({"type": "function", "function": {
            "name": name, "description": what, "parameters": parameters,
        }})
    };
    vec![
        tool("get_time", "Get the current time in a city."),
        tool("get_weather", "Get the current weather in a city."),
    ]
}

/// A question that is answered at some length, always alike.
pub fn story() -> Request {
    Request::chat(vec![Message::user("Tell me a story about a brave fox.")])
        .temperature(0.0)
        .max_tokens(48)
}
