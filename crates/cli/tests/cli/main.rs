//! The real command, run as a user runs it: what it prints, what it leaves behind, how it exits.
//!
//! Tests named `f…`, `m…` and `r…` are rows of the fault checklist: model files, memory and
//! devices, requests.

mod bench;
mod cache;
mod export;
mod faults;
mod gpu;
mod help;
mod hub;
#[allow(dead_code)]
#[path = "../../../hub/tests/hub/server.rs"]
mod hub_server;
mod kl;
mod logits;
#[cfg(target_os = "linux")]
mod manners;
mod media;
mod memory;
mod pebble;
mod run;
mod serve;
mod sessions;
mod support;
#[cfg(target_os = "linux")]
mod terminal;
mod text;
