//! Attention over a panelled KV cache, by blocks of positions, each of which is a page.
//!
//! For each block of [`BLOCK`] positions, counted from position 0 whatever the query sees of it:
//! scores, their largest, the exponentials and the weighted sum of the values; then the blocks are
//! merged from low to high positions. Blocks that a query does not see, and keys outside its range
//! inside a block, change nothing, not even a rounding. So a query's result depends on its
//! position and its sequence's keys alone: not on the queries beside it, nor on the pages that hold
//! the keys, nor on who computed which block.
#![allow(unsafe_code)]

mod softmax;

use std::ops::Range;

use lapidary_backend::{Span, pages_for};
use lapidary_program::AttentionSpec;

use crate::cache::{BLOCK, Block, Cache, CachedBlock};
use crate::matrix::{Cpu, Element, Product, ProductKernel, Strided};
use crate::shared::Shared;
use crate::simd::LANES;
use softmax::{Exponentials, Sums};

/// Queries (token and head) that go through the cache together: so many that widening its numbers
/// once for all of them costs little.
const TILE: usize = 48;
/// From this many blocks on, a single token's blocks are shared among threads.
const SPLIT_FROM: usize = 4;

/// The queries of one call.
#[derive(Clone, Copy)]
pub(crate) struct Queries<'a> {
    /// `[T, heads·head_dim]`.
    pub q: &'a [f32],
    /// Runs of tokens, each of one sequence.
    pub spans: &'a [Span<'a>],
    /// `[T]`.
    pub positions: &'a [i32],
    /// `[T]`, at least the positions; counted if the attention is bidirectional.
    pub horizons: &'a [i32],
}

/// Room that attention works in, kept from call to call.
pub(crate) struct Room<'a> {
    /// [`tile_scratch`] numbers for each thread.
    pub scratch: &'a mut [f32],
    /// [`split_scratch`] numbers.
    pub split: &'a mut [f32],
    /// How the call is cut.
    pub tiles: &'a mut Vec<QueryTile>,
}

/// Numbers that one thread needs: queries, scores, a block's sums and the running sums of a tile,
/// and two numbers per query for each of the latter.
pub(crate) fn tile_scratch(head_dim: usize) -> usize {
    TILE * (head_dim + BLOCK + 2 * (head_dim + 2))
}

/// Numbers that the blocks of a single token need.
pub(crate) fn split_scratch(spec: &AttentionSpec, max_context: u32) -> usize {
    let all = pages_for(max_context as usize);
    // A window may begin in the middle of a block.
    let seen = spec.window.map_or(all, |window| all.min(pages_for(window as usize) + 1));
    spec.n_heads as usize * (spec.head_dim as usize + 2) * seen
}

/// `q [T, heads·D] → out [T, heads·D]`: for each head,
/// `softmax over visible k of (q · key[k] · scale)`, times the values; 0 if it sees no key.
pub(crate) fn attention(
    cpu: Cpu<'_>,
    spec: &AttentionSpec,
    cache: &Cache,
    queries: Queries<'_>,
    room: Room<'_>,
    out: &mut [f32],
) {
    let all = Attention::new(cpu, spec, cache, queries);
    all.cut(room.tiles);
    let tiles = &room.tiles[..];
    let scratch_len = tile_scratch(all.head_dim);
    let scratch = Shared::new(room.scratch);
    let out = Shared::new(out);
    let tile_room = |thread: usize| {
        // SAFETY: each thread has a scratch of its own.
        let part = unsafe { scratch.slice(thread * scratch_len..(thread + 1) * scratch_len) };
        Tile::new(all.head_dim, part)
    };
    let finish = |tile: &QueryTile, sums: &Sums<'_>| {
        for i in 0..tile.len {
            let query = all.query(tile, i);
            // SAFETY: each query belongs to one tile, and a tile is finished once.
            let out = unsafe { out.slice(all.channels(&query)) };
            sums.finish(i, query.keys.is_empty(), out);
        }
    };
    let longest = tiles.iter().map(|tile| tile.blocks().len()).max().unwrap_or(0);
    if queries.positions.len() == 1
        && tiles.len() < cpu.workers.n_threads()
        && longest >= SPLIT_FROM
    {
        return all.run_split(tiles, room.split, tile_room, finish);
    }
    cpu.run(tiles.len(), &|thread, item| {
        let tile = &tiles[item];
        let mut room = tile_room(thread);
        all.gather(tile, room.q);
        for block in tile.blocks() {
            if cpu.is_stopped() {
                return;
            }
            all.block(tile, block, (room.q, room.scores), &mut room.block);
            room.sums.merge(cpu, &room.block, tile.len, block == tile.blocks().start);
        }
        finish(tile, &room.sums);
    });
}

/// One head of one token.
struct Query {
    token: usize,
    head: usize,
    keys: Range<usize>,
}

/// Queries of one span that share a KV head: `len` of them, counted token after token and head
/// after head.
pub(crate) struct QueryTile {
    span: usize,
    kv_head: usize,
    first_token: usize,
    start: usize,
    len: usize,
    /// All positions that any of the queries sees, and perhaps some between.
    keys: Range<usize>,
}

/// What does not change during one call.
struct Attention<'a> {
    cpu: Cpu<'a>,
    spec: &'a AttentionSpec,
    cache: &'a Cache,
    queries: Queries<'a>,
    head_dim: usize,
    heads_per_kv: usize,
}

/// A thread's scratch, divided.
struct Tile<'a> {
    /// `[TILE, head_dim]`.
    q: &'a mut [f32],
    /// `[TILE, BLOCK]`.
    scores: &'a mut [f32],
    block: Sums<'a>,
    sums: Sums<'a>,
}

impl QueryTile {
    /// The blocks that hold the tile's keys.
    fn blocks(&self) -> Range<usize> {
        if self.keys.is_empty() {
            return 0..0;
        }
        self.keys.start / BLOCK..self.keys.end.div_ceil(BLOCK)
    }
}

impl<'a> Attention<'a> {
    fn new(cpu: Cpu<'a>, spec: &'a AttentionSpec, cache: &'a Cache, queries: Queries<'a>) -> Self {
        let heads_per_kv = (spec.n_heads / spec.n_kv_heads) as usize;
        Attention { cpu, spec, cache, queries, head_dim: spec.head_dim as usize, heads_per_kv }
    }

    /// The positions of the keys that a token sees.
    fn keys(&self, token: usize) -> Range<usize> {
        let position = self.queries.positions[token] as usize;
        let end = match (self.spec.own_key, self.spec.bidirectional) {
            (false, _) => position,
            (true, true) => self.queries.horizons[token] as usize + 1,
            (true, false) => position + 1,
        };
        let start = match self.spec.window {
            Some(window) => (position + 1).saturating_sub(window as usize),
            None => 0,
        };
        start.min(end)..end
    }

    /// Where a query stands in `q` and in the result.
    fn channels(&self, query: &Query) -> Range<usize> {
        let row = query.token * self.spec.n_heads as usize + query.head;
        row * self.head_dim..(row + 1) * self.head_dim
    }

    /// The `i`-th query of a tile.
    fn query(&self, tile: &QueryTile, i: usize) -> Query {
        let token = tile.first_token + (tile.start + i) / self.heads_per_kv;
        let head = tile.kv_head * self.heads_per_kv + (tile.start + i) % self.heads_per_kv;
        Query { token, head, keys: self.keys(token) }
    }

    /// Cuts the queries into tiles: neighbouring tokens of one span, and of each the heads that
    /// read the same KV head.
    fn cut(&self, tiles: &mut Vec<QueryTile>) {
        tiles.clear();
        let mut first_token = 0;
        for (span, run) in self.queries.spans.iter().enumerate() {
            let n = run.len as usize * self.heads_per_kv;
            for kv_head in 0..self.spec.n_kv_heads as usize {
                for start in (0..n).step_by(TILE) {
                    let len = TILE.min(n - start);
                    let mut tile = QueryTile { span, kv_head, first_token, start, len, keys: 0..0 };
                    for i in 0..len {
                        let (all, seen) = (tile.keys.clone(), self.query(&tile, i).keys);
                        if all.is_empty() {
                            tile.keys = seen;
                        } else if !seen.is_empty() {
                            tile.keys = all.start.min(seen.start)..all.end.max(seen.end);
                        }
                    }
                    tiles.push(tile);
                }
            }
            first_token += run.len as usize;
        }
    }

    /// Copies a tile's queries side by side.
    fn gather(&self, tile: &QueryTile, q: &mut [f32]) {
        for (i, row) in q.chunks_exact_mut(self.head_dim).take(tile.len).enumerate() {
            row.copy_from_slice(&self.queries.q[self.channels(&self.query(tile, i))]);
        }
    }

    /// The sums of a tile over one block.
    fn block(
        &self,
        tile: &QueryTile,
        block: usize,
        room: (&[f32], &mut [f32]),
        sums: &mut Sums<'_>,
    ) {
        let table = &self.queries.spans[tile.span].tables[self.cache.shape().group];
        let page = table.pages[block - table.first as usize];
        match self.cache.block(page, tile.kv_head) {
            CachedBlock::F32(held) => self.block_of(&held, tile, block, room, sums),
            CachedBlock::Bf16(held) => self.block_of(&held, tile, block, room, sums),
            CachedBlock::Int8(held) => self.block_of(&held, tile, block, room, sums),
        }
    }

    /// The same for numbers that are stored as `T`.
    fn block_of<T: Element>(
        &self,
        held: &Block<'_, T>,
        tile: &QueryTile,
        block: usize,
        (q, scores): (&[f32], &mut [f32]),
        sums: &mut Sums<'_>,
    ) {
        let (n, head_dim) = (tile.len, self.head_dim);
        let start = block * BLOCK;
        // Keys in the block, counted from its start; scores are made by whole panels.
        let low = tile.keys.start.max(start) - start;
        let high = tile.keys.end.min(start + BLOCK) - start;
        let panels = low / LANES..high.div_ceil(LANES);
        let made = panels.start * LANES..panels.end * LANES;
        self.cpu.isa.run(ProductKernel(Product::new(
            Strided { data: q, stride: head_dim },
            Strided { data: &held.keys[made.start * head_dim..], stride: LANES * head_dim },
            Strided { data: &mut scores[made.start..], stride: BLOCK },
            (n, made.len(), head_dim),
        )));
        let scales = held.scales.map(|scales| scales.part(made.clone()));
        for i in 0..n {
            let query = self.query(tile, i);
            let seen = query.keys.start.clamp(start, start + BLOCK) - start
                ..query.keys.end.clamp(start, start + BLOCK) - start;
            let row = &mut scores[i * BLOCK..(i + 1) * BLOCK];
            (sums.max[i], sums.total[i]) = self.cpu.isa.run(Exponentials {
                scores: &mut row[made.clone()],
                seen: seen.start.max(made.start) - made.start
                    ..seen.end.max(made.start) - made.start,
                scale: self.spec.scale,
                scales,
            });
        }
        self.cpu.isa.run(ProductKernel(Product::new(
            Strided { data: &scores[low..], stride: BLOCK },
            Strided { data: &held.values[low * LANES..], stride: BLOCK * LANES },
            Strided { data: &mut *sums.values, stride: head_dim },
            (n, head_dim, high - low),
        )));
    }

    /// A single token over a long cache: each block of each tile is an item, the merge comes
    /// after. All tiles have the same blocks.
    fn run_split<'t>(
        &self,
        tiles: &[QueryTile],
        split: &mut [f32],
        tile_room: impl Fn(usize) -> Tile<'t> + Sync,
        finish: impl Fn(&QueryTile, &Sums<'_>),
    ) {
        let blocks = tiles[0].blocks();
        let shared = Shared::new(split);
        let sums_of = |item: usize| {
            let tile = &tiles[item / blocks.len()];
            let per_query = self.head_dim + 2;
            let before = (tile.kv_head * self.heads_per_kv + tile.start) * blocks.len();
            let start = (before + item % blocks.len() * tile.len) * per_query;
            // SAFETY: each item has a part of its own, and is used by one thread at a time.
            let part = unsafe { shared.slice(start..start + tile.len * per_query) };
            Sums::new(self.head_dim, tile.len, part)
        };
        self.cpu.run(tiles.len() * blocks.len(), &|thread, item| {
            let tile = &tiles[item / blocks.len()];
            let room = tile_room(thread);
            self.gather(tile, room.q);
            let block = blocks.start + item % blocks.len();
            self.block(tile, block, (room.q, room.scores), &mut sums_of(item));
        });
        let mut room = tile_room(0);
        for (t, tile) in tiles.iter().enumerate() {
            for i in 0..blocks.len() {
                let sums = sums_of(t * blocks.len() + i);
                room.sums.merge(self.cpu, &sums, tile.len, i == 0);
            }
            finish(tile, &room.sums);
        }
    }
}

impl<'a> Tile<'a> {
    fn new(head_dim: usize, scratch: &'a mut [f32]) -> Self {
        let (q, scratch) = scratch.split_at_mut(TILE * head_dim);
        let (scores, scratch) = scratch.split_at_mut(TILE * BLOCK);
        let (block, sums) = scratch.split_at_mut(TILE * (head_dim + 2));
        let sums_of = |part| Sums::new(head_dim, TILE, part);
        Tile { q, scores, block: sums_of(block), sums: sums_of(sums) }
    }
}

#[cfg(test)]
mod tests;
