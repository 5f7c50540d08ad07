//! Pages of a group: those of the same number in each of its caches.

use lapidary_backend::{Error, PageId, Result};

use crate::cache::Cache;

/// Bytes of one page.
pub(super) fn size_bytes(caches: &[Cache], group: usize) -> usize {
    of(caches, group).map(|cache| cache.shape().page_bytes()).sum()
}

/// Copies pages, one pair after another.
pub(super) fn copy(caches: &mut [Cache], group: usize, pairs: &[(PageId, PageId)]) -> Result<()> {
    for (from, to) in pairs {
        check(caches, group, *from)?;
        check(caches, group, *to)?;
    }
    for cache in of_mut(caches, group) {
        pairs.iter().for_each(|(from, to)| cache.copy(*from, *to));
    }
    Ok(())
}

/// Replaces `bytes` with those of a page.
pub(super) fn read(
    caches: &[Cache],
    group: usize,
    page: PageId,
    bytes: &mut Vec<u8>,
) -> Result<()> {
    check(caches, group, page)?;
    bytes.clear();
    bytes.reserve_exact(size_bytes(caches, group));
    of(caches, group).for_each(|cache| cache.read(page, bytes));
    Ok(())
}

/// Restores a page.
pub(super) fn write(caches: &mut [Cache], group: usize, page: PageId, bytes: &[u8]) -> Result<()> {
    check(caches, group, page)?;
    let need = size_bytes(caches, group);
    if bytes.len() != need {
        return Err(Error::Device(format!("a page of {} bytes, not {need}", bytes.len())));
    }
    let mut rest = bytes;
    for cache in of_mut(caches, group) {
        let (own, others) = rest.split_at(cache.shape().page_bytes());
        cache.restore(page, own);
        rest = others;
    }
    Ok(())
}

/// The caches of a group that have pages: those that no loaded method uses have none.
fn of(caches: &[Cache], group: usize) -> impl Iterator<Item = &Cache> {
    caches.iter().filter(move |cache| is_of(cache, group))
}

fn of_mut(caches: &mut [Cache], group: usize) -> impl Iterator<Item = &mut Cache> {
    caches.iter_mut().filter(move |cache| is_of(cache, group))
}

fn is_of(cache: &Cache, group: usize) -> bool {
    cache.shape().group == group && cache.shape().n_pages > 0
}

fn check(caches: &[Cache], group: usize, page: PageId) -> Result<()> {
    let pool = of(caches, group).map(|cache| cache.shape().n_pages).min().unwrap_or(0);
    if page.index() < pool {
        return Ok(());
    }
    Err(Error::Device(format!("page {} of KV group {group}, whose pool has {pool}", page.0)))
}
