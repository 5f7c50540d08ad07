//! Pages of keys and values: for each cache arrays `[heads, positions, channels]` of a few pages each.
//!
//! An array never changes. To write is to make one that differs in a slice; MLX does that in the same
//! memory if nobody uses the array before. But while a call is computed that reads it, somebody does, and
//! then a call that is queued behind it copies the array. So no array holds more than a block of pages.
//! What is read is a slice of a block, or slices of several, joined.

use std::collections::BTreeSet;
use std::ops::Range;

use lapidary_backend::{Error, KvType, LoadOptions, PAGE, PageId, PageTable, Result};
use lapidary_program::Program;

use crate::ffi::{Array, Dtype, Mlx};

/// Pages of a block: enough that most conversations are read without being copied.
const BLOCK: usize = 16;

/// Keys and values of one state.
pub(crate) struct Cache {
    pub shape: CacheShape,
    blocks: Vec<[Array; 2]>,
    /// Blocks that were written and not begun to be computed.
    written: BTreeSet<usize>,
}

/// The same before memory is taken.
#[derive(Clone, Debug)]
pub(crate) struct CacheShape {
    pub name: String,
    /// The group that its pages belong to.
    pub group: usize,
    heads: usize,
    channels: usize,
    n_pages: usize,
    dtype: Dtype,
}

impl CacheShape {
    /// Those of all states, in the order of groups.
    pub(crate) fn of(program: &Program, options: &LoadOptions) -> Vec<Self> {
        let dtype = match options.kv_type() {
            KvType::F32 => Dtype::F32,
            // More exact than bytes, which MLX's attention does not read.
            KvType::Bf16 | KvType::Int8 => Dtype::Bf16,
        };
        let groups = program.kv_groups().iter().enumerate();
        let shapes = groups.flat_map(|(group, of)| {
            of.states.iter().map(move |state| {
                let state = &program.states()[*state];
                CacheShape {
                    name: state.name.clone(),
                    group,
                    heads: state.n_kv_heads as usize,
                    channels: state.head_dim as usize,
                    n_pages: options.pages_of(group),
                    dtype,
                }
            })
        });
        shapes.collect()
    }

    /// Bytes of keys and values.
    pub(crate) fn size_bytes(&self) -> u64 {
        (self.page_bytes() as u64).saturating_mul(self.n_pages as u64)
    }

    fn page_bytes(&self) -> usize {
        2 * self.heads * PAGE * self.channels * self.dtype.size()
    }

    pub(crate) fn open(self, mlx: &Mlx) -> Result<Cache> {
        let mut blocks = Vec::new();
        for first in (0..self.n_pages).step_by(BLOCK) {
            let n = BLOCK.min(self.n_pages - first);
            let zeros = || mlx.zeros(&[self.heads, n * PAGE, self.channels], self.dtype);
            let block = [zeros()?, zeros()?];
            mlx.eval(&[&block[0], &block[1]])?;
            blocks.push(block);
        }
        Ok(Cache { shape: self, blocks, written: BTreeSet::new() })
    }
}

/// Positions that lie together.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Piece {
    block: usize,
    /// Where in the block.
    places: Range<usize>,
}

/// Where a range of positions lies.
fn pieces(table: &PageTable<'_>, positions: Range<usize>) -> Vec<Piece> {
    let mut pieces: Vec<Piece> = Vec::new();
    let mut at = positions.start;
    while at < positions.end {
        let (page, place) = table.find(at).expect("a call was checked to hold what it touches");
        let n = (PAGE - place).min(positions.end - at);
        let (block, page) = (page.index() / BLOCK, page.index() % BLOCK);
        let start = page * PAGE + place;
        match pieces.last_mut() {
            Some(last) if last.block == block && last.places.end == start => last.places.end += n,
            _ => pieces.push(Piece { block, places: start..start + n }),
        }
        at += n;
    }
    pieces
}

impl Cache {
    /// What was written and is to be computed now.
    pub(crate) fn unbegun(&mut self) -> impl Iterator<Item = &Array> {
        let written = std::mem::take(&mut self.written);
        let blocks = self.blocks.iter().enumerate();
        blocks.filter(move |(block, _)| written.contains(block)).flat_map(|(_, arrays)| arrays)
    }

    /// Waits until all that was begun is there.
    pub(crate) fn wait(&self) -> Result<()> {
        self.blocks.iter().flatten().try_for_each(Array::wait)
    }

    fn set(&mut self, mlx: &Mlx, piece: &Piece, [keys, values]: [&Array; 2]) -> Result<()> {
        let block = &mut self.blocks[piece.block];
        for (array, update) in block.iter_mut().zip([keys, values]) {
            *array = mlx.with_slice(array, 1, piece.places.start, update)?;
        }
        self.written.insert(piece.block);
        Ok(())
    }

    /// Writes the keys and values `[n, heads · channels]` of consecutive positions.
    pub(crate) fn write(
        &mut self,
        mlx: &Mlx,
        table: &PageTable<'_>,
        start: usize,
        [keys, values]: [&Array; 2],
    ) -> Result<()> {
        let CacheShape { heads, channels, dtype, .. } = self.shape;
        let n = keys.shape()[0];
        let by_head = |x: &Array| -> Result<Array> {
            let x = mlx.reshape(&mlx.cast(x, dtype)?, &[n, heads, channels])?;
            mlx.transpose(&x, &[1, 0, 2])
        };
        let (keys, values) = (by_head(keys)?, by_head(values)?);
        let mut done = 0;
        for piece in pieces(table, start..start + n) {
            let part = done..done + piece.places.len();
            let k = mlx.slice(&keys, 1, part.clone())?;
            let v = mlx.slice(&values, 1, part.clone())?;
            self.set(mlx, &piece, [&k, &v])?;
            done = part.end;
        }
        Ok(())
    }

    /// Keys and values of a range of positions, `[1, heads, n, channels]` in `f32`.
    pub(crate) fn read(
        &self,
        mlx: &Mlx,
        table: &PageTable<'_>,
        positions: Range<usize>,
    ) -> Result<[Array; 2]> {
        let CacheShape { heads, channels, .. } = self.shape;
        let n = positions.len();
        let pieces = pieces(table, positions);
        let taken = |which: usize| -> Result<Array> {
            let slice = |p: &Piece| mlx.slice(&self.blocks[p.block][which], 1, p.places.clone());
            let slices = pieces.iter().map(slice).collect::<Result<Vec<_>>>()?;
            let joined = match slices.as_slice() {
                [one] => one.share()?,
                _ => mlx.concat(&slices.iter().collect::<Vec<_>>(), 1)?,
            };
            mlx.cast(&mlx.reshape(&joined, &[1, heads, n, channels])?, Dtype::F32)
        };
        Ok([taken(0)?, taken(1)?])
    }

    /// Where a page of the pool lies.
    fn page(&self, page: PageId) -> Result<Piece> {
        let pool = self.shape.n_pages;
        if page.index() >= pool {
            return Err(Error::Device(format!("page {} of a pool of {pool}", page.0)));
        }
        let start = page.index() % BLOCK * PAGE;
        Ok(Piece { block: page.index() / BLOCK, places: start..start + PAGE })
    }

    fn copy(&mut self, mlx: &Mlx, from: PageId, to: PageId) -> Result<()> {
        let (from, to) = (self.page(from)?, self.page(to)?);
        let [keys, values] = &self.blocks[from.block];
        let keys = mlx.slice(keys, 1, from.places.clone())?;
        let values = mlx.slice(values, 1, from.places)?;
        self.set(mlx, &to, [&keys, &values])
    }
}

/// The caches of a group, in order.
fn of_group(caches: &[Cache], group: usize) -> impl Iterator<Item = &Cache> {
    caches.iter().filter(move |cache| cache.shape.group == group)
}

/// Copies pages of a group.
pub(crate) fn copy_pages(
    mlx: &Mlx,
    caches: &mut [Cache],
    group: usize,
    pairs: &[(PageId, PageId)],
) -> Result<()> {
    for cache in caches.iter_mut().filter(|cache| cache.shape.group == group) {
        for (from, to) in pairs {
            cache.copy(mlx, *from, *to)?;
        }
        mlx.start(&cache.unbegun().collect::<Vec<_>>())?;
    }
    Ok(())
}

/// Bytes of one page of a group.
pub(crate) fn page_bytes(caches: &[Cache], group: usize) -> usize {
    of_group(caches, group).map(|cache| cache.shape.page_bytes()).sum()
}

/// The bytes of a page: cache by cache, keys and then values.
pub(crate) fn read_page(
    mlx: &Mlx,
    caches: &[Cache],
    group: usize,
    page: PageId,
    bytes: &mut Vec<u8>,
) -> Result<()> {
    bytes.clear();
    for cache in of_group(caches, group) {
        let place = cache.page(page)?;
        for array in &cache.blocks[place.block] {
            let page = mlx.slice(array, 1, place.places.clone())?;
            mlx.read(&page, |read| bytes.extend_from_slice(read))?;
        }
    }
    Ok(())
}

/// Restores a page.
pub(crate) fn write_page(
    mlx: &Mlx,
    caches: &mut [Cache],
    group: usize,
    page: PageId,
    bytes: &[u8],
) -> Result<()> {
    let (have, need) = (bytes.len(), page_bytes(caches, group));
    if have != need {
        return Err(Error::Device(format!("a page of {have} bytes, not {need}")));
    }
    let mut rest = bytes;
    for cache in caches.iter_mut().filter(|cache| cache.shape.group == group) {
        let CacheShape { heads, channels, dtype, .. } = cache.shape;
        let place = cache.page(page)?;
        let half = heads * PAGE * channels * dtype.size();
        let mut next = || {
            let (part, after) = rest.split_at(half);
            rest = after;
            mlx.bytes(part, &[heads, PAGE, channels], dtype)
        };
        let (keys, values) = (next()?, next()?);
        cache.set(mlx, &place, [&keys, &values])?;
        mlx.start(&cache.unbegun().collect::<Vec<_>>())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(block: usize, places: Range<usize>) -> Piece {
        Piece { block, places }
    }

    #[test]
    fn neighbouring_pages_are_one_piece() {
        let pages = [PageId(4), PageId(5), PageId(2)];
        let table = PageTable { first: 1, pages: &pages };
        let (four, two) = (4 * PAGE, 2 * PAGE);
        assert_eq!(pieces(&table, PAGE + 3..PAGE + 5), [piece(0, four + 3..four + 5)]);
        assert_eq!(pieces(&table, PAGE + 3..3 * PAGE), [piece(0, four + 3..four + 2 * PAGE)]);
        assert_eq!(
            pieces(&table, 2 * PAGE..3 * PAGE + 1),
            [piece(0, four + PAGE..four + 2 * PAGE), piece(0, two..two + 1)]
        );
        assert_eq!(pieces(&table, PAGE..PAGE), []);
    }

    #[test]
    fn a_piece_ends_with_its_block() {
        let last = BLOCK as u32 - 1;
        let pages = [PageId(last), PageId(last + 1)];
        let table = PageTable { first: 0, pages: &pages };
        let end = BLOCK * PAGE;
        assert_eq!(pieces(&table, 0..PAGE + 1), [piece(0, end - PAGE..end), piece(1, 0..1)]);
    }
}
