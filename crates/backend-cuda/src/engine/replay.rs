//! Kernels of short calls are collected once and then started together.
//!
//! What is collected depends on the lengths of a call and on what becomes of its outputs, not on its
//! numbers: feeds are copied to the same place each time, and the number of keys counts only by which
//! power of two holds it.

use lapidary_backend::{Result, Sizes};

use super::outputs::OutputUse;
use crate::driver::{Graph, Stream};

/// Tokens up to which a call is short.
pub(crate) const SHORT: usize = 16;
/// Calls of different shapes that are remembered.
const MOST: usize = 64;
/// Keys are counted in powers of two from here on.
const LEAST_KEYS: usize = 256;

/// What kernels depend on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub method: String,
    pub sizes: Sizes,
    pub n_spans: usize,
    pub uses: Vec<OutputUse>,
    pub is_of: Vec<bool>,
    pub most_keys: usize,
}

/// The shapes that were seen, with kernels that were collected.
#[derive(Default)]
pub(crate) struct Replays {
    seen: Vec<(Shape, Option<Graph>)>,
}

/// A number of keys that serves all calls with no more of them.
pub(crate) fn round_keys(n: usize) -> usize {
    n.next_power_of_two().max(LEAST_KEYS)
}

impl Replays {
    /// Forgets everything: memory has moved.
    pub(crate) fn clear(&mut self) {
        self.seen.clear();
    }

    /// Starts the kernels that `body` starts, together if such a call has come before.
    pub(crate) fn run(
        &mut self,
        stream: &Stream,
        shape: Shape,
        body: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let Some(at) = self.seen.iter().position(|(seen, _)| *seen == shape) else {
            if self.seen.len() >= MOST {
                self.seen.remove(0);
            }
            self.seen.push((shape, None));
            return body();
        };
        let (_, graph) = &mut self.seen[at];
        if graph.is_none() {
            *graph = Some(stream.capture(body)?);
        }
        match graph {
            Some(graph) => stream.start(graph),
            None => Ok(()),
        }
    }
}
