//! Half 2 of `pebble.lap`; the crate `lapidary-pebble` joins both when it is compiled.

/// The bytes.
pub const BYTES: &[u8] = include_bytes!("../pebble.lap.2");
