//! Matrices of `linear` as its kernels read them, and which kernel is best for which shape.

mod form;
pub(crate) mod kernels;
mod pack;
mod tuning;

#[cfg(test)]
pub(crate) use form::Codes;
pub(crate) use form::{PackedForm, Sections, TILE_ROWS, UNIT};
pub(crate) use pack::pack_rows;
pub(crate) use tuning::{CoopTile, MatvecTile, Tuning};
