//! KV caches in the layout that attention reads, in pages.
//!
//! A cache is a pool of pages; a page holds the keys and values of [`BLOCK`] positions, head after
//! head. Both halves are panels, so that scores and weighted sums are the same kernel as a linear:
//! keys `[position / 16][channel][position % 16]`, then
//! values `[channel / 16][position][channel % 16]`.
//! So a block of positions, which attention reads at once, is one stretch of memory, wherever the
//! other pages of its sequence are.
//!
//! Numbers are `f32`, `bf16` or bytes; attention widens them in registers. Bytes have a scale per
//! head and position, one for the key and one for the value.

mod cached;

use std::ops::Range;

use half::bf16;
use lapidary_backend::{KvType, LoadOptions, PAGE, PageId, Result};
use lapidary_program::StateDecl;

use crate::aligned::{Aligned, bytes_of, bytes_of_mut};
use crate::simd::LANES;
use cached::Cached;

/// Positions that attention reads at once: those of a page.
pub(crate) const BLOCK: usize = PAGE;

/// The lengths of a cache, and how its numbers are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CacheShape {
    pub kv: KvType,
    /// The group that its pages belong to.
    pub group: usize,
    pub n_pages: usize,
    pub n_heads: usize,
    pub head_dim: usize,
}

/// The pages of one state.
pub(crate) struct Cache {
    shape: CacheShape,
    numbers: Numbers,
}

enum Numbers {
    F32(Pages<f32>),
    Bf16(Pages<bf16>),
    Int8(Pages<i8>),
}

struct Pages<T: Cached> {
    /// `[page][head][keys, values]`.
    numbers: Aligned<T>,
    /// `[page][head][keys, values][position]`; nothing where numbers need no scales.
    scales: Aligned<f32>,
}

/// One head of one page, as it is stored.
pub(crate) enum CachedBlock<'a> {
    F32(Block<'a, f32>),
    Bf16(Block<'a, bf16>),
    Int8(Block<'a, i8>),
}

/// One head of one page.
pub(crate) struct Block<'a, T> {
    /// `[position / 16][channel][16]`.
    pub keys: &'a [T],
    /// `[channel / 16][position][16]`.
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

/// Where a key and its value go: a page, and the place in it.
pub(crate) type Held = (PageId, usize);

impl<'a> Scales<'a> {
    /// Those of some positions.
    pub(crate) fn part(self, positions: Range<usize>) -> Self {
        Scales { keys: &self.keys[positions.clone()], values: &self.values[positions] }
    }
}

impl CacheShape {
    pub(crate) fn of(state: &StateDecl, group: usize, options: &LoadOptions) -> Self {
        CacheShape {
            kv: options.kv_type(),
            group,
            n_pages: options.pages_of(group),
            n_heads: state.n_kv_heads as usize,
            head_dim: state.head_dim as usize,
        }
    }

    /// Numbers of the keys of one head of a page.
    fn keys_len(&self) -> usize {
        BLOCK * self.head_dim
    }

    /// Numbers of one head of a page. Values have whole panels of channels.
    fn head_len(&self) -> usize {
        self.keys_len() + BLOCK * self.head_dim.next_multiple_of(LANES)
    }

    /// Bytes of one page, scales included.
    pub(crate) fn page_bytes(&self) -> usize {
        let (element, scales) = match self.kv {
            KvType::F32 => (4, 0),
            KvType::Bf16 => (2, 0),
            KvType::Int8 => (1, 2 * size_of::<f32>() * BLOCK),
        };
        self.n_heads * (self.head_len() * element + scales)
    }

    /// Bytes of all pages.
    pub(crate) fn size_bytes(&self) -> u64 {
        self.n_pages as u64 * self.page_bytes() as u64
    }
}

impl Cache {
    pub(crate) fn new(shape: CacheShape) -> Result<Self> {
        let numbers = match shape.kv {
            KvType::F32 => Numbers::F32(Pages::new(shape)?),
            KvType::Bf16 => Numbers::Bf16(Pages::new(shape)?),
            KvType::Int8 => Numbers::Int8(Pages::new(shape)?),
        };
        Ok(Cache { shape, numbers })
    }

    pub(crate) fn shape(&self) -> CacheShape {
        self.shape
    }

    /// What attention reads of one head of a page.
    #[inline]
    pub(crate) fn block(&self, page: PageId, head: usize) -> CachedBlock<'_> {
        let at = page.index() * self.shape.n_heads + head;
        match &self.numbers {
            Numbers::F32(pages) => CachedBlock::F32(pages.block(self.shape, at)),
            Numbers::Bf16(pages) => CachedBlock::Bf16(pages.block(self.shape, at)),
            Numbers::Int8(pages) => CachedBlock::Int8(pages.block(self.shape, at)),
        }
    }

    /// Writes one head's key and value.
    pub(crate) fn write(&mut self, (page, place): Held, head: usize, k: &[f32], v: &[f32]) {
        let at = page.index() * self.shape.n_heads + head;
        match &mut self.numbers {
            Numbers::F32(pages) => pages.write(self.shape, (at, place), k, v),
            Numbers::Bf16(pages) => pages.write(self.shape, (at, place), k, v),
            Numbers::Int8(pages) => pages.write(self.shape, (at, place), k, v),
        }
    }

    /// Copies a page over another.
    pub(crate) fn copy(&mut self, from: PageId, to: PageId) {
        match &mut self.numbers {
            Numbers::F32(pages) => pages.copy(self.shape, from, to),
            Numbers::Bf16(pages) => pages.copy(self.shape, from, to),
            Numbers::Int8(pages) => pages.copy(self.shape, from, to),
        }
    }

    /// Adds the bytes of a page.
    pub(crate) fn read(&self, page: PageId, bytes: &mut Vec<u8>) {
        match &self.numbers {
            Numbers::F32(pages) => pages.read(self.shape, page, bytes),
            Numbers::Bf16(pages) => pages.read(self.shape, page, bytes),
            Numbers::Int8(pages) => pages.read(self.shape, page, bytes),
        }
    }

    /// Restores a page from [`CacheShape::page_bytes`] bytes.
    pub(crate) fn restore(&mut self, page: PageId, bytes: &[u8]) {
        match &mut self.numbers {
            Numbers::F32(pages) => pages.restore(self.shape, page, bytes),
            Numbers::Bf16(pages) => pages.restore(self.shape, page, bytes),
            Numbers::Int8(pages) => pages.restore(self.shape, page, bytes),
        }
    }
}

impl<T: Cached> Pages<T> {
    fn new(shape: CacheShape) -> Result<Self> {
        let n = shape.n_pages * shape.n_heads;
        let n_scales = if T::SCALED { n * 2 * BLOCK } else { 0 };
        Ok(Pages {
            numbers: Aligned::zeroed(n * shape.head_len())?,
            scales: Aligned::zeroed(n_scales)?,
        })
    }

    /// One head of one page; `at` counts heads of all pages.
    #[inline]
    fn block(&self, shape: CacheShape, at: usize) -> Block<'_, T> {
        let head_len = shape.head_len();
        let head = &self.numbers[at * head_len..(at + 1) * head_len];
        let (keys, values) = head.split_at(shape.keys_len());
        let scales = T::SCALED.then(|| {
            let scales = &self.scales[at * 2 * BLOCK..(at + 1) * 2 * BLOCK];
            let (keys, values) = scales.split_at(BLOCK);
            Scales { keys, values }
        });
        Block { keys, values, scales }
    }

    fn write(&mut self, shape: CacheShape, (at, place): (usize, usize), k: &[f32], v: &[f32]) {
        let [(k_factor, k_scale), (v_factor, v_scale)] = [T::factors(k), T::factors(v)];
        let head_len = shape.head_len();
        let head = &mut self.numbers[at * head_len..(at + 1) * head_len];
        let (keys, values) = head.split_at_mut(shape.keys_len());
        let panel = &mut keys[place / LANES * LANES * shape.head_dim..];
        for (x, k) in panel[place % LANES..].iter_mut().step_by(LANES).zip(k) {
            *x = T::encode(*k, k_factor);
        }
        for (panel, v) in values.chunks_exact_mut(BLOCK * LANES).zip(v.chunks(LANES)) {
            for (x, v) in panel[place * LANES..].iter_mut().zip(v) {
                *x = T::encode(*v, v_factor);
            }
        }
        if T::SCALED {
            let scales = &mut self.scales[at * 2 * BLOCK..(at + 1) * 2 * BLOCK];
            (scales[place], scales[BLOCK + place]) = (k_scale, v_scale);
        }
    }

    /// Where a page's numbers and scales stand.
    fn page(shape: CacheShape, page: PageId) -> [Range<usize>; 2] {
        let n_scales = if T::SCALED { 2 * BLOCK } else { 0 };
        [shape.head_len(), n_scales].map(|head| {
            let len = shape.n_heads * head;
            page.index() * len..(page.index() + 1) * len
        })
    }

    fn copy(&mut self, shape: CacheShape, from: PageId, to: PageId) {
        let [[numbers, scales], [to_numbers, to_scales]] =
            [from, to].map(|page| Self::page(shape, page));
        self.numbers.copy_within(numbers, to_numbers.start);
        self.scales.copy_within(scales, to_scales.start);
    }

    fn read(&self, shape: CacheShape, page: PageId, bytes: &mut Vec<u8>) {
        let [numbers, scales] = Self::page(shape, page);
        bytes.extend_from_slice(bytes_of(&self.numbers[numbers]));
        bytes.extend_from_slice(bytes_of(&self.scales[scales]));
    }

    fn restore(&mut self, shape: CacheShape, page: PageId, bytes: &[u8]) {
        let [numbers, scales] = Self::page(shape, page);
        let numbers = bytes_of_mut(&mut self.numbers[numbers]);
        let (bytes, rest) = bytes.split_at(numbers.len());
        numbers.copy_from_slice(bytes);
        bytes_of_mut(&mut self.scales[scales]).copy_from_slice(rest);
    }
}

#[cfg(test)]
mod tests {
    use lapidary_backend::{KvType, PageId};

    use super::{BLOCK, Block, Cache, CacheShape, CachedBlock};

    const DIM: usize = 20;

    fn shape(kv: KvType) -> CacheShape {
        CacheShape { kv, group: 0, n_pages: 4, n_heads: 3, head_dim: DIM }
    }

    fn keys() -> Vec<f32> {
        (0..DIM).map(|i| i as f32 + 1.03).collect()
    }

    fn values() -> Vec<f32> {
        (0..DIM).map(|i| -7.0 * i as f32 - 8.11).collect()
    }

    /// The key and the value at a place, and how many numbers of the block are not 0.
    fn read<T: Copy + Into<f32>>(block: &Block<'_, T>, at: usize) -> ([Vec<f32>; 2], usize) {
        let key = |d: usize| block.keys[at / 16 * 16 * DIM + d * 16 + at % 16];
        let value = |d: usize| block.values[d / 16 * BLOCK * 16 + at * 16 + d % 16];
        let all = block.keys.iter().chain(block.values);
        let touched = all.filter(|x| (**x).into() != 0.0).count();
        let (k_scale, v_scale) =
            block.scales.map_or((1.0, 1.0), |scales| (scales.keys[at], scales.values[at]));
        let k = (0..DIM).map(|d| key(d).into() * k_scale).collect();
        let v = (0..DIM).map(|d| value(d).into() * v_scale).collect();
        ([k, v], touched)
    }

    fn read_any(cache: &Cache, page: u32, head: usize, at: usize) -> ([Vec<f32>; 2], usize) {
        match cache.block(PageId(page), head) {
            CachedBlock::F32(block) => read(&block, at),
            CachedBlock::Bf16(block) => read(&block, at),
            CachedBlock::Int8(block) => read(&block, at),
        }
    }

    #[test]
    fn rows_land_in_their_panels() {
        let (k, v) = (keys(), values());
        // As parts of the largest number of a row.
        for (kv, error) in
            [(KvType::F32, 0.0), (KvType::Bf16, 1.0 / 512.0), (KvType::Int8, 0.5001 / 127.0)]
        {
            let mut cache = Cache::new(shape(kv)).unwrap();
            cache.write((PageId(2), 37), 1, &k, &v);
            for (page, head) in [(0, 0), (1, 1), (2, 0), (2, 1), (2, 2), (3, 1)] {
                let ([got_k, got_v], touched) = read_any(&cache, page, head, 37);
                if (page, head) != (2, 1) {
                    assert_eq!(touched, 0, "{kv:?}: {page}, {head}");
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
    fn pages_are_copied_and_kept_whole() {
        for kv in KvType::ALL {
            let mut cache = Cache::new(shape(kv)).unwrap();
            for head in 0..3 {
                cache.write((PageId(1), 90 + head), head, &keys(), &values());
            }
            let written = |cache: &Cache, page| [0, 1, 2].map(|h| read_any(cache, page, h, 90 + h));
            let truth = written(&cache, 1);
            cache.copy(PageId(1), PageId(3));
            assert_eq!(written(&cache, 3), truth, "{kv:?}");
            assert_eq!(written(&cache, 2)[0].1, 0, "{kv:?}: no other page is touched");
            let mut bytes = vec![7];
            cache.read(PageId(1), &mut bytes);
            assert_eq!(bytes.len(), 1 + shape(kv).page_bytes(), "{kv:?}");
            cache.restore(PageId(0), &bytes[1..]);
            assert_eq!(written(&cache, 0), truth, "{kv:?}");
        }
    }

    #[test]
    fn a_cache_takes_the_bytes_of_its_shape() {
        fn bytes<T: super::Cached>(pages: &super::Pages<T>) -> usize {
            pages.numbers.len() * size_of::<T>() + pages.scales.len() * 4
        }
        for kv in KvType::ALL {
            let taken = match Cache::new(shape(kv)).unwrap().numbers {
                super::Numbers::F32(pages) => bytes(&pages),
                super::Numbers::Bf16(pages) => bytes(&pages),
                super::Numbers::Int8(pages) => bytes(&pages),
            };
            assert_eq!(shape(kv).size_bytes(), taken as u64, "{kv:?}");
        }
    }
}
