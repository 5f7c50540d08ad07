//! KV caches in the layout that attention reads.
//!
//! Both halves are panels, so that scores and weighted sums are the same kernel as a linear:
//! keys `[slot][head][position / 16][channel][position % 16]`, and
//! values `[slot][head][position / BLOCK][channel / 16][position % BLOCK][channel % 16]`.
//! So a block of positions, which attention reads at once, is one stretch of keys and one of
//! values, however long the cache is.
//! Position `p` stands at `p % capacity`; the capacity is a multiple of the block, so that a block
//! never wraps.
//!
//! Numbers are `f32`, `bf16` or bytes; attention widens them in registers. Bytes have a scale per
//! slot, head and position, one for the key and one for the value.

mod cached;

use std::ops::Range;

use half::bf16;
use lapidary_backend::{KvType, LoadOptions, Result};
use lapidary_program::StateDecl;

use crate::aligned::Aligned;
use crate::simd::LANES;
use cached::Cached;

/// Positions that attention reads at once.
pub(crate) const BLOCK: usize = 128;

/// The lengths of a cache, and how its numbers are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CacheShape {
    pub kv: KvType,
    pub n_slots: usize,
    pub n_heads: usize,
    pub head_dim: usize,
    pub capacity: usize,
}

/// Keys and values of one state for all slots.
pub(crate) struct Cache {
    shape: CacheShape,
    numbers: Numbers,
}

enum Numbers {
    F32(Panels<f32>),
    Bf16(Panels<bf16>),
    Int8(Panels<i8>),
}

struct Panels<T: Cached> {
    keys: Aligned<T>,
    values: Aligned<T>,
    /// `[slot][head][position]`, of keys and of values; nothing where numbers need no scales.
    scales: [Aligned<f32>; 2],
}

/// One head of one slot, as it is stored.
pub(crate) enum CachedHead<'a> {
    F32(Head<'a, f32>),
    Bf16(Head<'a, bf16>),
    Int8(Head<'a, i8>),
}

/// One head of one slot.
pub(crate) struct Head<'a, T> {
    /// `[position / 16][channel][16]`.
    pub keys: &'a [T],
    /// `[position / BLOCK][channel / 16][BLOCK][16]`.
    pub values: &'a [T],
    /// What the numbers of each position are multiplied with.
    pub scales: Option<Scales<'a>>,
}

/// Scales by position.
#[derive(Clone, Copy)]
pub(crate) struct Scales<'a> {
    pub keys: &'a [f32],
    pub values: &'a [f32],
}

impl<'a> Scales<'a> {
    /// Those of some positions.
    pub(crate) fn part(self, positions: Range<usize>) -> Self {
        Scales { keys: &self.keys[positions.clone()], values: &self.values[positions] }
    }
}

impl CacheShape {
    pub(crate) fn of(state: &StateDecl, options: &LoadOptions) -> Self {
        let capacity = state.capacity(options.max_context, options.max_chunk) as usize;
        CacheShape {
            kv: options.kv_type(),
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
        self.capacity * self.padded_dim()
    }

    /// Channels of values, whole panels of them.
    fn padded_dim(&self) -> usize {
        self.head_dim.next_multiple_of(LANES)
    }

    /// Bytes of keys, values and scales.
    pub(crate) fn size_bytes(&self) -> u64 {
        let (element, scales) = match self.kv {
            KvType::F32 => (4, 0),
            KvType::Bf16 => (2, 0),
            KvType::Int8 => (1, 2 * size_of::<f32>() * self.capacity),
        };
        let head = (self.head_keys() + self.head_values()) * element + scales;
        (head * self.n_heads * self.n_slots) as u64
    }
}

impl Cache {
    pub(crate) fn new(shape: CacheShape) -> Result<Self> {
        let numbers = match shape.kv {
            KvType::F32 => Numbers::F32(Panels::new(shape)?),
            KvType::Bf16 => Numbers::Bf16(Panels::new(shape)?),
            KvType::Int8 => Numbers::Int8(Panels::new(shape)?),
        };
        Ok(Cache { shape, numbers })
    }

    pub(crate) fn shape(&self) -> CacheShape {
        self.shape
    }

    /// What attention reads of one head.
    pub(crate) fn head(&self, slot: usize, head: usize) -> CachedHead<'_> {
        let head = slot * self.shape.n_heads + head;
        match &self.numbers {
            Numbers::F32(panels) => CachedHead::F32(panels.head(self.shape, head)),
            Numbers::Bf16(panels) => CachedHead::Bf16(panels.head(self.shape, head)),
            Numbers::Int8(panels) => CachedHead::Int8(panels.head(self.shape, head)),
        }
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
        let head = slot * self.shape.n_heads + head;
        let at = position % self.shape.capacity;
        match &mut self.numbers {
            Numbers::F32(panels) => panels.write(self.shape, (head, at), k, v),
            Numbers::Bf16(panels) => panels.write(self.shape, (head, at), k, v),
            Numbers::Int8(panels) => panels.write(self.shape, (head, at), k, v),
        }
    }
}

impl<T: Cached> Panels<T> {
    fn new(shape: CacheShape) -> Result<Self> {
        let n = shape.n_slots * shape.n_heads;
        let n_scales = if T::SCALED { n * shape.capacity } else { 0 };
        Ok(Panels {
            keys: Aligned::zeroed(n * shape.head_keys())?,
            values: Aligned::zeroed(n * shape.head_values())?,
            scales: [Aligned::zeroed(n_scales)?, Aligned::zeroed(n_scales)?],
        })
    }

    fn head(&self, shape: CacheShape, head: usize) -> Head<'_, T> {
        let part = |len: usize| head * len..(head + 1) * len;
        let [keys, values] = &self.scales;
        Head {
            keys: &self.keys[part(shape.head_keys())],
            values: &self.values[part(shape.head_values())],
            scales: T::SCALED.then(|| Scales {
                keys: &keys[part(shape.capacity)],
                values: &values[part(shape.capacity)],
            }),
        }
    }

    fn write(&mut self, shape: CacheShape, (head, at): (usize, usize), k: &[f32], v: &[f32]) {
        let [(k_factor, k_scale), (v_factor, v_scale)] = [T::factors(k), T::factors(v)];
        let block = shape.head_keys() * head + at / LANES * LANES * shape.head_dim;
        let keys = self.keys[block + at % LANES..].iter_mut().step_by(LANES);
        for (x, k) in keys.zip(k) {
            *x = T::encode(*k, k_factor);
        }
        let block = shape.head_values() * head + at / BLOCK * BLOCK * shape.padded_dim();
        let panels = self.values[block..].chunks_exact_mut(BLOCK * LANES);
        for (panel, v) in panels.zip(v.chunks(LANES)) {
            for (x, v) in panel[at % BLOCK * LANES..].iter_mut().zip(v) {
                *x = T::encode(*v, v_factor);
            }
        }
        if T::SCALED {
            let at = head * shape.capacity + at;
            (self.scales[0][at], self.scales[1][at]) = (k_scale, v_scale);
        }
    }
}

#[cfg(test)]
mod tests {
    use lapidary_backend::KvType;

    use super::{BLOCK, Cache, CacheShape, CachedHead, Head, Numbers};

    const DIM: usize = 20;

    fn shape(kv: KvType) -> CacheShape {
        CacheShape { kv, n_slots: 2, n_heads: 3, head_dim: DIM, capacity: 2 * BLOCK }
    }

    /// The key and the value at a position, and how many numbers of the head are not 0.
    fn read<T: Copy + Into<f32>>(head: &Head<'_, T>, at: usize) -> ([Vec<f32>; 2], usize) {
        let key = |d: usize| head.keys[at / 16 * 16 * DIM + d * 16 + at % 16];
        let value = |d: usize| {
            head.values[at / BLOCK * BLOCK * 32 + d / 16 * BLOCK * 16 + at % BLOCK * 16 + d % 16]
        };
        let all = head.keys.iter().chain(head.values);
        let touched = all.filter(|x| (**x).into() != 0.0).count();
        let (k_scale, v_scale) =
            head.scales.map_or((1.0, 1.0), |scales| (scales.keys[at], scales.values[at]));
        let k = (0..DIM).map(|d| key(d).into() * k_scale).collect();
        let v = (0..DIM).map(|d| value(d).into() * v_scale).collect();
        ([k, v], touched)
    }

    #[test]
    fn rows_land_in_their_panels() {
        let k: Vec<f32> = (0..DIM).map(|i| i as f32 + 1.03).collect();
        let v: Vec<f32> = (0..DIM).map(|i| -7.0 * i as f32 - 8.11).collect();
        // As parts of the largest number of a row.
        for (kv, error) in
            [(KvType::F32, 0.0), (KvType::Bf16, 1.0 / 512.0), (KvType::Int8, 0.5001 / 127.0)]
        {
            let mut cache = Cache::new(shape(kv)).unwrap();
            cache.write(1, 2, 3 * BLOCK + 37, &k, &v);
            for (slot, head) in [(0, 0), (0, 2), (1, 1), (1, 2)] {
                let ([got_k, got_v], touched) = match cache.head(slot, head) {
                    CachedHead::F32(head) => read(&head, BLOCK + 37),
                    CachedHead::Bf16(head) => read(&head, BLOCK + 37),
                    CachedHead::Int8(head) => read(&head, BLOCK + 37),
                };
                if (slot, head) != (1, 2) {
                    assert_eq!(touched, 0, "{kv:?}: {slot}, {head}");
                    continue;
                }
                assert_eq!(touched, 2 * DIM, "{kv:?}");
                for (got, want) in [(got_k, &k), (got_v, &v)] {
                    let most = want[DIM - 1].abs() * error;
                    for (got, want) in got.iter().zip(want) {
                        assert!((got - want).abs() <= most, "{kv:?}: {got}, not {want}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_cache_takes_the_bytes_of_its_shape() {
        fn bytes<T: super::Cached>(panels: &super::Panels<T>) -> usize {
            let scales = panels.scales.iter().map(|s| s.len() * 4).sum::<usize>();
            (panels.keys.len() + panels.values.len()) * size_of::<T>() + scales
        }
        for kv in KvType::ALL {
            let taken = match Cache::new(shape(kv)).unwrap().numbers {
                Numbers::F32(panels) => bytes(&panels),
                Numbers::Bf16(panels) => bytes(&panels),
                Numbers::Int8(panels) => bytes(&panels),
            };
            assert_eq!(shape(kv).size_bytes(), taken as u64, "{kv:?}");
        }
    }
}
