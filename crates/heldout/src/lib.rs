//! Held-out questions: asks a model, scores what it answers, and compares what backends answer.
//!
//! A set is a file of JSON objects, one per line: a conversation up to the model's turn, perhaps
//! tools and an image, and what a right answer is. Answers are greedy, so that they are facts about
//! weights and backends and not about luck.
//! This room knows the library, and how the family writes tool calls.
//! It knows no backend: engines are made by whoever calls it.

mod agree;
mod ask;
mod check;
mod error;
mod item;
mod score;

pub use agree::{Difference, Side, compare};
pub use ask::{Answer, Images, answer, prompt};
pub use check::passes;
pub use error::{Error, Result};
pub use item::{Check, Item, parse, read};
/// The project's own sets and the images that they show, by name: questions in `NAME.jsonl`, texts in
/// `NAME.txt`.
pub const SETS: &[(&str, &[u8])] = lapidary::pebble::HELDOUT;

pub use score::{Kind, Score, Wrong};
