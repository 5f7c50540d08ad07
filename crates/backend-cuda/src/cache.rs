//! KV caches: pools of pages, keys and values apart, `[page][head][position][channel]`.

use std::sync::Arc;

use lapidary_backend::{Error, KvType, LoadOptions, PAGE, PageId, Result};
use lapidary_program::StateDecl;

use crate::driver::{Arg, Context, Memory, Pinned, Stream};

/// Lengths of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CacheShape {
    /// The group whose pages it shares.
    pub group: usize,
    /// Pages of its pool; none if no method that is loaded reads or writes it.
    pub n_pages: usize,
    pub n_heads: usize,
    pub head_dim: usize,
    pub kind: KvType,
}

/// `Cache` of `cache.cuh`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CacheArg {
    keys: u64,
    values: u64,
    key_scales: u64,
    value_scales: u64,
    kind: u32,
    n_heads: u32,
    head_dim: u32,
    unused: u32,
}

// SAFETY: as `cache.cuh` declares it; four words after four addresses leave no padding.
#[allow(unsafe_code)]
unsafe impl Arg for CacheArg {}

/// A cache on the device: keys, values, and for bytes the scales of each.
pub(crate) struct Cache {
    parts: Vec<(Memory, usize)>,
    pub shape: CacheShape,
}

impl CacheShape {
    pub(crate) fn of(state: &StateDecl, group: usize, options: &LoadOptions) -> Self {
        CacheShape {
            group,
            n_pages: options.pages_of(group).max(1),
            n_heads: state.n_kv_heads as usize,
            head_dim: state.head_dim as usize,
            kind: options.kv_type(),
        }
    }

    /// Bytes of a page of each part.
    fn page_parts(&self) -> Vec<usize> {
        let rows = self.n_heads * PAGE;
        let numbers = rows * self.head_dim;
        match self.kind {
            KvType::F32 => vec![4 * numbers; 2],
            KvType::Bf16 => vec![2 * numbers; 2],
            KvType::Int8 => vec![numbers, numbers, 4 * rows, 4 * rows],
        }
    }

    /// Bytes of one page.
    pub(crate) fn page_bytes(&self) -> usize {
        self.page_parts().iter().sum()
    }

    /// Bytes of all of it.
    pub(crate) fn size_bytes(&self) -> u64 {
        (self.page_bytes() * self.n_pages) as u64
    }

    pub(crate) fn open(&self, context: &Arc<Context>, stream: &Stream) -> Result<Cache> {
        let mut parts = Vec::new();
        for bytes in self.page_parts() {
            let memory = Memory::new(context, bytes * self.n_pages)?;
            stream.clear(memory.at(), memory.bytes)?;
            parts.push((memory, bytes));
        }
        Ok(Cache { parts, shape: *self })
    }
}

impl Cache {
    /// As kernels take it.
    pub(crate) fn arg(&self) -> CacheArg {
        let at = |i: usize| self.parts.get(i).map_or(0, |(memory, _)| memory.at());
        CacheArg {
            keys: at(0),
            values: at(1),
            key_scales: at(2),
            value_scales: at(3),
            kind: match self.shape.kind {
                KvType::F32 => 0,
                KvType::Bf16 => 1,
                KvType::Int8 => 2,
            },
            n_heads: self.shape.n_heads as u32,
            head_dim: self.shape.head_dim as u32,
            unused: 0,
        }
    }
}

/// The caches that share the pages of a group, in the order of the program.
fn caches_of(caches: &[Cache], group: usize) -> impl Iterator<Item = &Cache> {
    caches.iter().filter(move |cache| cache.shape.group == group && cache.shape.n_pages > 0)
}

/// Bytes of one page of a group.
pub(crate) fn page_bytes(caches: &[Cache], group: usize) -> usize {
    caches_of(caches, group).map(|cache| cache.shape.page_bytes()).sum()
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

/// Copies pages of a group after all that was started.
pub(crate) fn copy_pages(
    stream: &Stream,
    caches: &[Cache],
    group: usize,
    pairs: &[(PageId, PageId)],
) -> Result<()> {
    for (from, to) in pairs {
        check(caches, group, *from)?;
        check(caches, group, *to)?;
    }
    for (from, to) in pairs.iter().filter(|(from, to)| from != to) {
        for (memory, bytes) in caches_of(caches, group).flat_map(|cache| &cache.parts) {
            let at = |page: &PageId| memory.at() + (page.index() * bytes) as u64;
            stream.copy(at(from), at(to), *bytes)?;
        }
    }
    Ok(())
}

/// Replaces `bytes` with those of a page.
pub(crate) fn read_page(
    stream: &Stream,
    caches: &[Cache],
    group: usize,
    page: PageId,
    bytes: &mut Vec<u8>,
) -> Result<()> {
    check(caches, group, page)?;
    bytes.clear();
    let all = page_bytes(caches, group);
    let mut pinned = Pinned::new(&stream.context, all)?;
    let mut at = 0;
    for (memory, size) in caches_of(caches, group).flat_map(|cache| &cache.parts) {
        stream.download(memory.at() + (page.index() * size) as u64, &mut pinned, at, *size)?;
        at += size;
    }
    stream.wait()?;
    bytes.extend_from_slice(&pinned.bytes()[..all]);
    Ok(())
}

/// Restores a page from what [`read_page`] gave.
pub(crate) fn write_page(
    stream: &Stream,
    caches: &[Cache],
    group: usize,
    page: PageId,
    bytes: &[u8],
) -> Result<()> {
    check(caches, group, page)?;
    let (have, need) = (bytes.len(), page_bytes(caches, group));
    if have != need {
        return Err(Error::Device(format!("a page of {have} bytes, not {need}")));
    }
    let mut pinned = Pinned::new(&stream.context, need)?;
    pinned.bytes_mut()[..need].copy_from_slice(bytes);
    let mut at = 0;
    for (memory, size) in caches_of(caches, group).flat_map(|cache| &cache.parts) {
        stream.upload(&pinned, at, memory.at() + (page.index() * size) as u64, *size)?;
        at += size;
    }
    stream.wait()
}
