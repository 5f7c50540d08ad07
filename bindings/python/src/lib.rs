//! The engine for Python: what the package `lapidary` stands on.
//!
//! - What is said between the two is JSON, but for bytes, samples and the events of an answer.
//! - Whatever takes long is done on a thread of this crate ([`wait`]), while Python's lock is given
//!   up; who waits wakes to look for signals, so Ctrl-C ends it.
//! - No thread of this crate enters Python. Progress is told by the thread that waits.
//! - There is one error with the codes of [`lapidary::ErrorCode`]. A panic is one of them.

// What pyo3 writes for each class is unsafe, and there is nothing else of that kind here.
#![allow(unsafe_code)]

mod answer;
mod conversation;
mod engine;
mod error;
mod hub;
mod media;
mod options;
mod wait;

use pyo3::prelude::*;

/// What the package `lapidary` stands on.
#[pymodule]
mod _native {
    #[pymodule_export]
    use super::answer::Answer;
    #[pymodule_export]
    use super::conversation::Conversation;
    #[pymodule_export]
    use super::engine::{Engine, Model};
    #[pymodule_export]
    use super::error::error_table;
    #[pymodule_export]
    use super::hub::{backends, is_downloaded, ls, models, pull, rm};
    #[pymodule_export]
    use super::media::Media;
    #[pymodule_export]
    use super::version;
}

/// The version of the library.
#[pyfunction]
fn version() -> &'static str {
    env!("CARGO_PKG_VERSION")
}
