//! Serves models over HTTP: OpenAI's, Anthropic's and Ollama's APIs, and a web page, from one engine.
//!
//! - [`Config`] is what a server is told; [`Limits`] how much of everything there may be.
//! - [`Server`] listens; [`Source`] is a model that it serves.
//!
//! `service` knows models, answers, keys and failures, and no API. `http` stands between the network and
//! the APIs: every request goes through `http::enter`. Each API is a folder of its own that reads JSON
//! into a [`service::Wanted`], asks [`App::ask`], and tells the [`service::Piece`]s that come back in its own
//! words.

pub mod anthropic;
mod app;
mod check;
pub mod http;
pub mod native;
pub mod ollama;
pub mod openai;
mod routes;
pub mod service;

pub use app::App;
pub use check::CHECKS;
pub use http::{Outcome, Server};
pub use routes::documented;
pub use service::{Config, Limits, Log, LogFormat, Source};
