//! Attention of each row over itself and a few rows before it.
#![allow(unsafe_code)]

use lapidary_program::LocalAttentionSpec;

use crate::matrix::Cpu;
use crate::shared::Shared;
use crate::simd::{Kernel, LANES, Simd, exp, load, store, tanh};

/// Multiplications that are worth a thread of their own.
const ITEM_WORK: usize = 1 << 16;

/// The numbers of a local attention that are not activations.
#[derive(Clone, Copy)]
pub(crate) struct LocalAttention<'a> {
    pub spec: &'a LocalAttentionSpec,
    /// `[head_dim]`: what queries are multiplied with.
    pub factors: &'a [f32],
    /// `[distances, heads·head_dim]`: `R(d)`, for all distances that can be.
    pub by_distance: &'a [f32],
}

/// Numbers that one thread needs for calls of so many rows: a query and its scores.
pub(crate) fn row_scratch(spec: &LocalAttentionSpec, n_rows: usize) -> usize {
    if n_rows == 0 {
        return 0;
    }
    spec.head_dim as usize + n_rows.min(spec.window as usize)
}

/// `q, k, v [F, heads·head_dim] → same`, as [`LocalAttentionSpec`] has it. `out` may hold `q`, which
/// is then not given.
pub(crate) fn local_attention(
    cpu: Cpu<'_>,
    local: LocalAttention<'_>,
    (q, k, v): (Option<&[f32]>, &[f32], &[f32]),
    scratch: &mut [f32],
    out: &mut [f32],
) {
    let spec = local.spec;
    let head_dim = spec.head_dim as usize;
    let channels = spec.n_heads as usize * head_dim;
    let n_rows = k.len() / channels;
    let window = n_rows.min(spec.window as usize);
    let scratch_len = row_scratch(spec, n_rows);
    let rows_per_item = ITEM_WORK.div_ceil(window * channels);
    let (scratch, shared) = (Shared::new(scratch), Shared::new(out));
    cpu.run(n_rows.div_ceil(rows_per_item), &|thread, item| {
        // SAFETY: each thread has a scratch of its own.
        let scratch = unsafe { scratch.slice(thread * scratch_len..(thread + 1) * scratch_len) };
        let (query, scores) = scratch.split_at_mut(head_dim);
        for t in item * rows_per_item..((item + 1) * rows_per_item).min(n_rows) {
            let seen = (t + 1).saturating_sub(window)..t + 1;
            for start in (0..channels).step_by(head_dim) {
                let at = t * channels + start..t * channels + start + head_dim;
                // SAFETY: each row belongs to one item.
                let out = unsafe { shared.slice(at.clone()) };
                query.copy_from_slice(q.map_or(&*out, |q| &q[at]));
                cpu.isa.run(Head {
                    factors: local.factors,
                    query,
                    keys: &k[seen.start * channels + start..],
                    values: &v[seen.start * channels + start..],
                    by_distance: &local.by_distance[start..],
                    channels,
                    k_scale: spec.k_scale,
                    cap: spec.cap,
                    scores: &mut scores[..seen.len()],
                    out,
                });
            }
        }
    });
}

/// One head of one row: it sees as many rows of keys and values as it has scores, itself the last.
struct Head<'a> {
    factors: &'a [f32],
    query: &'a mut [f32],
    keys: &'a [f32],
    values: &'a [f32],
    by_distance: &'a [f32],
    channels: usize,
    k_scale: f32,
    cap: f32,
    scores: &'a mut [f32],
    out: &'a mut [f32],
}

impl Kernel for Head<'_> {
    type Output = ();

    #[inline(always)]
    fn call<S: Simd>(self, s: S) {
        let (n, channels, head_dim) = (self.scores.len(), self.channels, self.out.len());
        for (q, factor) in self.query.chunks_mut(LANES).zip(self.factors.chunks(LANES)) {
            store(s, q, s.mul(load(s, q), load(s, factor)));
        }
        let k_scale = s.splat(self.k_scale);
        for (i, score) in self.scores.iter_mut().enumerate() {
            let key = &self.keys[i * channels..][..head_dim];
            let place = &self.by_distance[(n - 1 - i) * channels..][..head_dim];
            let mut sum = s.splat(0.0);
            let parts = self.query.chunks(LANES).zip(key.chunks(LANES)).zip(place.chunks(LANES));
            for ((q, key), place) in parts {
                let both = s.mul_add(load(s, key), k_scale, load(s, place));
                sum = s.mul_add(load(s, q), both, sum);
            }
            *score = s.sum(sum);
        }
        let cap = s.splat(self.cap);
        for part in self.scores.chunks_mut(LANES) {
            store(s, part, s.mul(cap, tanh(s, s.div(load(s, part), cap))));
        }
        let max = self.scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        for part in self.scores.chunks_mut(LANES) {
            store(s, part, exp(s, s.sub(load(s, part), s.splat(max))));
        }
        let total = s.splat(self.scores.iter().sum());
        for (c, out) in self.out.chunks_mut(LANES).enumerate() {
            let part = c * LANES..c * LANES + out.len();
            let mut sum = s.splat(0.0);
            for (i, weight) in self.scores.iter().enumerate() {
                let value = load(s, &self.values[i * channels..][part.clone()]);
                sum = s.mul_add(s.splat(*weight), value, sum);
            }
            store(s, out, s.div(sum, total));
        }
    }
}
