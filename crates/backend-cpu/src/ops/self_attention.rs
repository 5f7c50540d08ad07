//! Attention of every row over every row, without a table of all pairs.
//!
//! A few heads at a time, keys and values are laid out as panels; then tiles of queries go over
//! them block by block. Each query keeps the largest score so far, the sum of its weights and the
//! weighted sum of values, both relative to that largest; when it grows, they shrink. Blocks go
//! from the first row to the last for every query, so results depend neither on the tile that a
//! query is in nor on the thread that computes it.
#![allow(unsafe_code)]

mod softmax;

use std::f32::consts::LOG2_E;
use std::ops::Range;

use crate::matrix::{Cpu, Product, ProductKernel, Strided};
use crate::shared::Shared;
use crate::simd::LANES;
use softmax::{Finish, Shrink, Weigh};

/// Queries that go over the keys together.
const TILE: usize = 48;
/// Keys whose scores are held at once.
const BLOCK: usize = 256;
/// Rows that are laid out together.
const PACK_ROWS: usize = 16 * LANES;
/// Heads that are laid out at once, at least; more when there are more threads to feed.
const HEADS_AT_ONCE: usize = 4;

/// Heads and their scale.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Heads {
    pub n_heads: usize,
    pub head_dim: usize,
    pub scale: f32,
}

impl Heads {
    fn at_once(&self, n_threads: usize) -> usize {
        self.n_heads.min(n_threads.max(HEADS_AT_ONCE))
    }

    /// Channels of one head's values as panels.
    fn padded(&self) -> usize {
        self.head_dim.next_multiple_of(LANES)
    }

    /// Numbers of one head's keys and values as panels.
    fn panels_len(&self, n_rows: usize) -> usize {
        n_rows.next_multiple_of(LANES) * (self.head_dim + self.padded())
    }

    /// Numbers that a call of so many rows needs.
    pub(crate) fn call_scratch(&self, n_rows: usize, n_threads: usize) -> usize {
        self.at_once(n_threads) * self.panels_len(n_rows)
    }

    /// Numbers that one thread needs: a tile's queries, scores, sums of values, and for each query
    /// a sum of weights in each lane and the largest score.
    pub(crate) fn tile_scratch(&self, n_rows: usize) -> usize {
        if n_rows == 0 {
            return 0;
        }
        TILE * (self.head_dim + BLOCK + self.padded() + LANES + 1)
    }
}

/// `q, k, v [P, heads·head_dim] → same`: for each head `softmax over all rows of (scale · q·k)`,
/// times the values. `out` may hold `q`, which is then not given.
pub(crate) fn self_attention(
    cpu: Cpu<'_>,
    heads: Heads,
    (q, k, v): (Option<&[f32]>, &[f32], &[f32]),
    (panels, scratch): (&mut [f32], &mut [f32]),
    out: &mut [f32],
) {
    let channels = heads.n_heads * heads.head_dim;
    let call = Call { cpu, heads, channels, n_rows: k.len() / channels };
    let n_tiles = call.n_rows.div_ceil(TILE);
    let (panels_len, scratch_len) =
        (heads.panels_len(call.n_rows), heads.tile_scratch(call.n_rows));
    let (scratch, out) = (Shared::new(scratch), Shared::new(out));
    let at_once = heads.at_once(cpu.workers.n_threads());
    for first in (0..heads.n_heads).step_by(at_once) {
        let n_heads = at_once.min(heads.n_heads - first);
        for (i, panels) in panels.chunks_exact_mut(panels_len).take(n_heads).enumerate() {
            call.pack(first + i, k, v, panels);
        }
        let panels = &*panels;
        cpu.run(n_heads * n_tiles, &|thread, item| {
            let (head, tile) = (item / n_tiles, item % n_tiles);
            let rows = tile * TILE..((tile + 1) * TILE).min(call.n_rows);
            let part = thread * scratch_len..(thread + 1) * scratch_len;
            // SAFETY: each thread has a scratch of its own.
            let mut room = Tile::new(heads, unsafe { scratch.slice(part) });
            let place = |row: usize| {
                let start = row * channels + (first + head) * heads.head_dim;
                start..start + heads.head_dim
            };
            let factor = heads.scale * LOG2_E;
            for (row, query) in rows.clone().zip(room.q.chunks_exact_mut(heads.head_dim)) {
                // SAFETY: each head of each row belongs to one item, the only one that reads it.
                let held = unsafe { out.slice(place(row)) };
                let from = q.map_or(&*held, |q| &q[place(row)]);
                query.iter_mut().zip(from).for_each(|(to, q)| *to = q * factor);
            }
            let panels = &panels[head * panels_len..(head + 1) * panels_len];
            call.attend(panels, rows.len(), &mut room);
            for (i, row) in rows.enumerate() {
                // SAFETY: as above.
                room.finish(cpu, i, unsafe { out.slice(place(row)) });
            }
        });
    }
}

/// What does not change during one call.
struct Call<'a> {
    cpu: Cpu<'a>,
    heads: Heads,
    channels: usize,
    n_rows: usize,
}

impl Call<'_> {
    /// Lays out one head: keys as `[row / 16][channel][16]`, then values as
    /// `[channel / 16][row][16]`. What lies after the last row and channel is 0.
    fn pack(&self, head: usize, k: &[f32], v: &[f32], panels: &mut [f32]) {
        let (n_rows, head_dim) = (self.n_rows.next_multiple_of(LANES), self.heads.head_dim);
        let (keys, values) = panels.split_at_mut(n_rows * head_dim);
        let (keys, values) = (Shared::new(keys), Shared::new(values));
        let row = |x: &[f32], row: usize| -> Range<usize> {
            debug_assert!(row * self.channels < x.len());
            let start = row * self.channels + head * head_dim;
            start..start + head_dim
        };
        self.cpu.run(n_rows.div_ceil(PACK_ROWS), &|_, item| {
            for first in (item * PACK_ROWS..((item + 1) * PACK_ROWS).min(n_rows)).step_by(LANES) {
                let n = LANES.min(self.n_rows - first);
                // SAFETY: each panel of keys belongs to one item.
                let panel = unsafe { keys.slice(first * head_dim..(first + LANES) * head_dim) };
                for lane in 0..LANES {
                    let column = panel[lane..].iter_mut().step_by(LANES);
                    if lane < n {
                        column.zip(&k[row(k, first + lane)]).for_each(|(to, k)| *to = *k);
                    } else {
                        column.for_each(|to| *to = 0.0);
                    }
                }
                for c in (0..head_dim).step_by(LANES) {
                    let len = LANES.min(head_dim - c);
                    let start = c * n_rows + first * LANES;
                    // SAFETY: these rows of each panel of values belong to one item.
                    let to = unsafe { values.slice(start..start + LANES * LANES) };
                    for (lane, to) in to.chunks_exact_mut(LANES).enumerate() {
                        to.fill(0.0);
                        if lane < n {
                            to[..len].copy_from_slice(&v[row(v, first + lane)][c..c + len]);
                        }
                    }
                }
            }
        });
    }

    /// A tile of `n` queries over all keys.
    fn attend(&self, panels: &[f32], n: usize, room: &mut Tile<'_>) {
        let (head_dim, padded) = (self.heads.head_dim, self.heads.padded());
        let n_rows = self.n_rows.next_multiple_of(LANES);
        let (keys, values) = panels.split_at(n_rows * head_dim);
        for start in (0..self.n_rows).step_by(BLOCK) {
            let n_keys = BLOCK.min(self.n_rows - start);
            let n_scores = n_keys.next_multiple_of(LANES);
            self.cpu.isa.run(ProductKernel(Product::new(
                Strided { data: &*room.q, stride: head_dim },
                Strided { data: &keys[start * head_dim..], stride: LANES * head_dim },
                Strided { data: &mut *room.scores, stride: BLOCK },
                (n, n_scores, head_dim),
            )));
            for i in 0..n {
                let scores = &mut room.scores[i * BLOCK..i * BLOCK + n_scores];
                // What is after the last row can't be the largest.
                scores[n_keys..].fill(f32::NEG_INFINITY);
                let total = &mut room.totals[i * LANES..(i + 1) * LANES];
                let before = if start == 0 { f32::NEG_INFINITY } else { room.largest[i] };
                let is_first = start == 0;
                let (largest, shrink) = self.cpu.isa.run(Weigh { scores, total, before, is_first });
                room.largest[i] = largest;
                if !is_first && shrink != 1.0 {
                    let sums = &mut room.sums[i * padded..(i + 1) * padded];
                    self.cpu.isa.run(Shrink { sums, factor: shrink });
                }
            }
            let product = Product::new(
                Strided { data: &*room.scores, stride: BLOCK },
                Strided { data: &values[start * LANES..], stride: n_rows * LANES },
                Strided { data: &mut *room.sums, stride: padded },
                (n, padded, n_keys),
            );
            let product = if start == 0 { product } else { product.adding() };
            self.cpu.isa.run(ProductKernel(product));
        }
    }
}

/// A thread's scratch, divided.
struct Tile<'a> {
    /// `[TILE, head_dim]`.
    q: &'a mut [f32],
    /// `[TILE, BLOCK]`.
    scores: &'a mut [f32],
    /// `[TILE, padded]`.
    sums: &'a mut [f32],
    /// `[TILE, 16]`.
    totals: &'a mut [f32],
    /// `[TILE]`.
    largest: &'a mut [f32],
}

impl<'a> Tile<'a> {
    fn new(heads: Heads, scratch: &'a mut [f32]) -> Self {
        let (q, scratch) = scratch.split_at_mut(TILE * heads.head_dim);
        let (scores, scratch) = scratch.split_at_mut(TILE * BLOCK);
        let (sums, scratch) = scratch.split_at_mut(TILE * heads.padded());
        let (totals, largest) = scratch.split_at_mut(TILE * LANES);
        Tile { q, scores, sums, totals, largest }
    }

    /// The result of query `i`.
    fn finish(&self, cpu: Cpu<'_>, i: usize, out: &mut [f32]) {
        let padded = self.sums.len() / TILE;
        let sums = &self.sums[i * padded..i * padded + out.len()];
        cpu.isa.run(Finish { sums, total: &self.totals[i * LANES..(i + 1) * LANES], out });
    }
}
