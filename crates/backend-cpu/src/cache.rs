//! KV caches in the layout that attention reads.
//!
//! Both halves are panels, so that scores and weighted sums are the same kernel as a linear:
//! keys `[slot][head][position / 16][channel][position % 16]`, and
//! values `[slot][head][channel / 16][position][channel % 16]`.
//! Position `p` stands at `p % capacity`; the capacity is a multiple of the block in which
//! attention reads, so that a block never wraps.

use lapidary_backend::{LoadOptions, Result};
use lapidary_program::StateDecl;

use crate::aligned::Aligned;
use crate::simd::LANES;

/// Positions that attention reads at once.
pub(crate) const BLOCK: usize = 128;

/// The lengths of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CacheShape {
    pub n_slots: usize,
    pub n_heads: usize,
    pub head_dim: usize,
    pub capacity: usize,
}

/// Keys and values of one state for all slots.
pub(crate) struct Cache {
    shape: CacheShape,
    keys: Aligned<f32>,
    values: Aligned<f32>,
}

impl CacheShape {
    pub(crate) fn of(state: &StateDecl, options: &LoadOptions) -> Self {
        let capacity = state.capacity(options.max_context, options.max_chunk) as usize;
        CacheShape {
            n_slots: options.n_slots as usize,
            n_heads: state.n_kv_heads as usize,
            head_dim: state.head_dim as usize,
            capacity: capacity.next_multiple_of(BLOCK),
        }
    }

    fn head_keys(&self) -> usize {
        self.capacity * self.head_dim
    }

    fn head_values(&self) -> usize {
        self.capacity * self.head_dim.next_multiple_of(LANES)
    }

    /// Bytes of keys and values.
    pub(crate) fn size_bytes(&self) -> u64 {
        ((self.head_keys() + self.head_values()) * self.n_heads * self.n_slots * 4) as u64
    }
}

impl Cache {
    pub(crate) fn new(shape: CacheShape) -> Result<Self> {
        let n = shape.n_slots * shape.n_heads;
        Ok(Cache {
            shape,
            keys: Aligned::zeroed(n * shape.head_keys())?,
            values: Aligned::zeroed(n * shape.head_values())?,
        })
    }

    pub(crate) fn shape(&self) -> CacheShape {
        self.shape
    }

    /// The key panels of one head, `[position / 16][channel][16]`.
    pub(crate) fn keys(&self, slot: usize, head: usize) -> &[f32] {
        let n = self.shape.head_keys();
        let start = (slot * self.shape.n_heads + head) * n;
        &self.keys[start..start + n]
    }

    /// The value panels of one head, `[channel / 16][position][16]`.
    pub(crate) fn values(&self, slot: usize, head: usize) -> &[f32] {
        let n = self.shape.head_values();
        let start = (slot * self.shape.n_heads + head) * n;
        &self.values[start..start + n]
    }

    /// Writes one head's key and value at a position.
    pub(crate) fn write(
        &mut self,
        slot: usize,
        head: usize,
        position: usize,
        k: &[f32],
        v: &[f32],
    ) {
        let CacheShape { n_heads, head_dim, capacity, .. } = self.shape;
        let at = position % capacity;
        let head = slot * n_heads + head;
        let start = head * self.shape.head_keys() + at / LANES * LANES * head_dim + at % LANES;
        for (x, k) in self.keys[start..].iter_mut().step_by(LANES).zip(k) {
            *x = *k;
        }
        let values = &mut self.values[head * self.shape.head_values()..];
        for (panel, v) in values.chunks_mut(capacity * LANES).zip(v.chunks(LANES)) {
            panel[at * LANES..at * LANES + v.len()].copy_from_slice(v);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{BLOCK, Cache, CacheShape};

    #[test]
    fn rows_land_in_their_panels() {
        let shape = CacheShape { n_slots: 2, n_heads: 3, head_dim: 20, capacity: BLOCK };
        let mut cache = Cache::new(shape).unwrap();
        let k: Vec<f32> = (0..20).map(|i| i as f32 + 1.0).collect();
        let v: Vec<f32> = (0..20).map(|i| -(i as f32) - 1.0).collect();
        cache.write(1, 2, BLOCK + 37, &k, &v);
        for d in 0..20 {
            assert_eq!(cache.keys(1, 2)[37 / 16 * 16 * 20 + d * 16 + 37 % 16], k[d]);
            assert_eq!(cache.values(1, 2)[d / 16 * BLOCK * 16 + 37 * 16 + d % 16], v[d]);
        }
        let touched = |x: &[f32]| x.iter().filter(|x| **x != 0.0).count();
        assert_eq!(touched(&cache.keys), 20);
        assert_eq!(touched(&cache.values), 20);
    }
}
