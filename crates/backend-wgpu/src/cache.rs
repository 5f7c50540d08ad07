//! KV caches: pools of pages, a buffer of keys and one of values for each cache.
//!
//! A page holds [`PAGE`] positions of every head, head by head: `[page][head][position][quad]`. What
//! a kernel reads of one head and page is contiguous, so it looks a page up once for many keys.

use lapidary_backend::{Error, KvType, LoadOptions, PAGE, PageId, Result};
use lapidary_program::StateDecl;

use crate::device::Gpu;

/// Lengths of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CacheShape {
    /// The group whose pages it shares.
    pub group: usize,
    /// Pages of its pool; none if no method that was loaded reads or writes it.
    pub n_pages: usize,
    pub n_heads: usize,
    pub head_dim: usize,
    /// The most positions that one token sees.
    pub most_seen: usize,
    /// Whether numbers are stored as `bf16`.
    pub halves: bool,
}

/// A cache on the device.
pub(crate) struct Cache {
    pub keys: wgpu::Buffer,
    pub values: wgpu::Buffer,
    pub shape: CacheShape,
}

impl CacheShape {
    pub(crate) fn of(state: &StateDecl, group: usize, options: &LoadOptions) -> Self {
        let max_context = options.max_context as usize;
        let seen = |window: u32| (window + options.limits.chunk) as usize;
        CacheShape {
            group,
            n_pages: options.pages_of(group).max(1),
            n_heads: state.n_kv_heads as usize,
            head_dim: state.head_dim as usize,
            most_seen: state.window.map_or(max_context, seen).min(max_context).max(1),
            // Bytes are not stored as such: a backend may store more exactly than it is told to.
            halves: options.kv_type() != KvType::F32,
        }
    }

    /// Quads of channels of one key or value of one head; the last may be filled up with zeros.
    pub(crate) fn quads(&self) -> usize {
        self.head_dim.div_ceil(4)
    }

    /// Bytes of the keys, or of the values, of one page.
    pub(crate) fn page_bytes(&self) -> u64 {
        let quad_bytes = if self.halves { 8 } else { 16 };
        (self.n_heads * PAGE * self.quads()) as u64 * quad_bytes
    }

    fn part_bytes(&self) -> u64 {
        self.n_pages as u64 * self.page_bytes()
    }

    /// Bytes of keys and values.
    pub(crate) fn size_bytes(&self) -> u64 {
        2 * self.part_bytes()
    }

    pub(crate) fn open(&self, gpu: &Gpu) -> Result<Cache> {
        let usage = wgpu::BufferUsages::STORAGE
            | wgpu::BufferUsages::COPY_DST
            | wgpu::BufferUsages::COPY_SRC;
        let part = |what| gpu.buffer(what, self.part_bytes(), usage);
        Ok(Cache {
            keys: part("a cache of keys")?,
            values: part("a cache of values")?,
            shape: *self,
        })
    }
}

/// The most pages that the pool of each group may have: keys and values of a cache are a binding each.
pub(crate) fn max_pages(caches: &[CacheShape], n_groups: usize, max_binding: u64) -> Vec<u32> {
    let of_group = |group| {
        let caches = caches.iter().filter(|cache| cache.group == group && cache.n_pages > 0);
        let most = caches.map(|cache| max_binding / cache.page_bytes().max(1)).min();
        most.map_or(u32::MAX, |most| u32::try_from(most).unwrap_or(u32::MAX))
    };
    (0..n_groups).map(of_group).collect()
}

/// Refuses pools that are larger than a binding may be.
pub(crate) fn check_pools(options: &LoadOptions, most: &[u32], device: &str) -> Result<()> {
    let too_many = |(group, most): (usize, &u32)| {
        let pages = options.pages_of(group);
        (pages > *most as usize).then_some((pages, *most))
    };
    let Some((pages, most)) = most.iter().enumerate().find_map(too_many) else { return Ok(()) };
    Err(Error::OutOfMemory(format!(
        "a pool of {pages} KV pages, and {device} has buffers for {most}: {} tokens of all sequences \
         together; try fewer sequences at once or a shorter context",
        u64::from(most) * PAGE as u64,
    )))
}

impl Cache {
    /// Keys, then values.
    fn parts(&self) -> [&wgpu::Buffer; 2] {
        [&self.keys, &self.values]
    }
}

/// The caches that share the pages of a group, in the order of the program.
pub(crate) fn caches_of(caches: &[Cache], group: usize) -> impl Iterator<Item = &Cache> {
    caches.iter().filter(move |cache| cache.shape.group == group && cache.shape.n_pages > 0)
}

/// Bytes of one page of a group.
pub(crate) fn page_bytes(caches: &[Cache], group: usize) -> u64 {
    caches_of(caches, group).map(|cache| 2 * cache.shape.page_bytes()).sum()
}

/// Copies pages of a group after all that was submitted.
pub(crate) fn copy_pages(
    gpu: &Gpu,
    caches: &[Cache],
    group: usize,
    pairs: &[(PageId, PageId)],
) -> Result<()> {
    for (from, to) in pairs {
        check(caches, group, *from)?;
        check(caches, group, *to)?;
    }
    // No copy is allowed inside of one buffer.
    let widest = caches_of(caches, group).map(|cache| cache.shape.page_bytes()).max();
    let (Some(widest), false) = (widest, pairs.is_empty()) else { return Ok(()) };
    let usage = wgpu::BufferUsages::COPY_DST | wgpu::BufferUsages::COPY_SRC;
    let between = gpu.buffer("a page on its way", widest, usage)?;
    let mut encoder = gpu.encoder();
    for (from, to) in pairs.iter().filter(|(from, to)| from != to) {
        for cache in caches_of(caches, group) {
            let size = cache.shape.page_bytes();
            let at = |page: &PageId| page.index() as u64 * size;
            for part in cache.parts() {
                encoder.copy_buffer_to_buffer(part, at(from), &between, 0, size);
                encoder.copy_buffer_to_buffer(&between, 0, part, at(to), size);
            }
        }
    }
    gpu.queue.submit([encoder.finish()]);
    gpu.check()
}

/// Replaces `bytes` with those of a page.
pub(crate) fn read_page(
    gpu: &Gpu,
    caches: &[Cache],
    group: usize,
    page: PageId,
    bytes: &mut Vec<u8>,
) -> Result<()> {
    check(caches, group, page)?;
    bytes.clear();
    let size_bytes = page_bytes(caches, group);
    if size_bytes == 0 {
        return Ok(());
    }
    let usage = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST;
    let readback = gpu.buffer("a page", size_bytes, usage)?;
    let mut encoder = gpu.encoder();
    let mut at = 0;
    for cache in caches_of(caches, group) {
        let size = cache.shape.page_bytes();
        for part in cache.parts() {
            let from = page.index() as u64 * size;
            encoder.copy_buffer_to_buffer(part, from, &readback, at, size);
            at += size;
        }
    }
    gpu.queue.submit([encoder.finish()]);
    gpu.map(&readback, size_bytes).wait(gpu, &mut |read| bytes.extend_from_slice(read))
}

/// Restores a page from what [`read_page`] gave.
pub(crate) fn write_page(
    gpu: &Gpu,
    caches: &[Cache],
    group: usize,
    page: PageId,
    bytes: &[u8],
) -> Result<()> {
    check(caches, group, page)?;
    let (have, need) = (bytes.len() as u64, page_bytes(caches, group));
    if have != need {
        return Err(Error::Device(format!("a page of {have} bytes, not {need}")));
    }
    let mut rest = bytes;
    for cache in caches_of(caches, group) {
        let size = cache.shape.page_bytes();
        for part in cache.parts() {
            let (own, others) = rest.split_at(size as usize);
            gpu.queue.write_buffer(part, page.index() as u64 * size, own);
            rest = others;
        }
    }
    gpu.queue.submit([]);
    gpu.check()
}

/// Fails for a page that is not in its pool.
fn check(caches: &[Cache], group: usize, page: PageId) -> Result<()> {
    match caches_of(caches, group).find(|cache| page.index() >= cache.shape.n_pages) {
        Some(cache) => {
            let pool = cache.shape.n_pages;
            Err(Error::Device(format!("page {} of a pool of {pool}", page.0)))
        }
        None => Ok(()),
    }
}
