//! Quantisation: a recipe says how each weight is written, a method finds its codes.
//!
//! The result is a program like any other whose store makes codes when a weight is asked for, one
//! weight at a time: writing it, or packing it, never holds more than the largest weight.
//! This room knows weights and encodings. It knows no backend, and no names of any model's weights:
//! the recipes of a family are made where the family is known.

mod error;
mod hqq;
mod min_max;
mod recipe;
mod row;
mod store;
mod synthetic;

pub use error::{Error, Result};
pub use recipe::{Action, Group, Method, Quantise, Recipe};
pub use store::{dequantise, quantise};
pub use synthetic::synthetic;
