//! What every backend needs, once: tickets of engines without a queue, the largest numbers of rows,
//! the draw, which values are alive when and in which buffers, rows of tables, small weights as
//! ops read them, angles of ropes, tables of pages.
//!
//! This room knows programs and the contract. It knows no backend and no model family.

mod buffers;
mod derived;
pub mod draw;
mod liveness;
mod pages;
mod rope;
mod rows;
mod tickets;
mod top_k;

pub use buffers::Buffers;
pub use derived::{Derived, Form, token_ids};
pub use liveness::{Liveness, Purposes, activation_bytes, last_uses};
pub use pages::GroupTables;
pub use rope::{angles, axial_frequencies, rope_frequencies};
pub use rows::{RowSource, Table, TableRows};
pub use tickets::{TicketData, Tickets};
pub use top_k::{answer, top_k};
