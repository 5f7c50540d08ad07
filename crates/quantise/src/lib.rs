//! Quantisation: a recipe says how each weight is written, a method finds its codes.
//!
//! The result is a program like any other whose store makes codes when a weight is asked for, one
//! weight at a time: writing it, or packing it, never holds more than the largest weight.
//! This room knows weights and encodings, and for its built-in recipes the Hugging Face names of
//! embeddings, heads and projections. It knows no backend and no configuration of a model.

mod error;
mod hqq;
mod min_max;
mod recipe;
mod store;
mod synthetic;

pub use error::{Error, Result};
pub use recipe::{Action, Group, Method, Quantise, Recipe};
pub use store::quantise;
pub use synthetic::synthetic;
