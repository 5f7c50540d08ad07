//! Tables of numbers, and text, that are owned or stand in a file that is kept open.
//!
//! What stands in a mapped file is read where it is: a start copies nothing, and of large tables only
//! the pages that are looked at take memory.

use std::ops::Range;
use std::sync::Arc;

use lapidary_program::FileBytes;

/// Some bytes of a file.
#[derive(Clone)]
pub(super) struct Piece {
    file: Arc<FileBytes>,
    range: Range<usize>,
}

impl Piece {
    /// All bytes of a file from `start` on; `None` if it ends before.
    pub(super) fn from(file: Arc<FileBytes>, start: usize) -> Option<Self> {
        let range = start..file.len();
        (start <= range.end).then_some(Piece { file, range })
    }

    /// Takes the first `n` bytes off.
    pub(super) fn take(&mut self, n: usize) -> Option<Piece> {
        let end = self.range.start.checked_add(n).filter(|end| *end <= self.range.end)?;
        let taken = Piece { file: self.file.clone(), range: self.range.start..end };
        self.range.start = end;
        Some(taken)
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.file[self.range.clone()]
    }
}

/// Entries of `N` numbers.
pub(super) enum Table<const N: usize> {
    Own(Vec<[u32; N]>),
    /// Least byte first.
    Kept(Piece),
}

impl<const N: usize> Table<N> {
    pub(super) fn len(&self) -> usize {
        match self {
            Table::Own(entries) => entries.len(),
            Table::Kept(piece) => piece.range.len() / (4 * N),
        }
    }

    /// An entry that is there.
    pub(super) fn get(&self, i: usize) -> [u32; N] {
        match self {
            Table::Own(entries) => entries[i],
            Table::Kept(piece) => entry(entries_of(piece.bytes())[i]),
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = [u32; N]> {
        (0..self.len()).map(|i| self.get(i))
    }

    /// The first entry of a range that `is_before` does not hold for, if it holds for none after.
    pub(super) fn partition_point(
        &self,
        range: Range<usize>,
        is_before: impl Fn([u32; N]) -> bool,
    ) -> usize {
        let start = range.start;
        start
            + match self {
                Table::Own(entries) => entries[range].partition_point(|e| is_before(*e)),
                Table::Kept(piece) => {
                    entries_of(piece.bytes())[range].partition_point(|e| is_before(entry(*e)))
                }
            }
    }
}

fn entries_of<const N: usize>(bytes: &[u8]) -> &[[[u8; 4]; N]] {
    bytes.as_chunks::<4>().0.as_chunks::<N>().0
}

fn entry<const N: usize>(bytes: [[u8; 4]; N]) -> [u32; N] {
    bytes.map(u32::from_le_bytes)
}

/// Text in one piece.
pub(super) enum Text {
    Own(String),
    /// It was found to be UTF-8.
    Kept(Piece),
}

impl Text {
    /// Text of a file; `None` if it is not UTF-8.
    pub(super) fn kept(piece: Piece) -> Option<Self> {
        std::str::from_utf8(piece.bytes()).is_ok().then_some(Text::Kept(piece))
    }

    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Text::Own(text) => text.as_bytes(),
            Text::Kept(piece) => piece.bytes(),
        }
    }

    /// Some of it; nothing if it is cut inside of a character.
    pub(super) fn get(&self, range: Range<usize>) -> &str {
        match self {
            Text::Own(text) => text.get(range).unwrap_or_default(),
            Text::Kept(piece) => {
                let bytes = piece.bytes().get(range).unwrap_or_default();
                std::str::from_utf8(bytes).unwrap_or_default()
            }
        }
    }

    pub(super) fn is_char_boundary(&self, at: usize) -> bool {
        // A byte that continues a character is 0b10xx_xxxx.
        at == self.bytes().len() || self.bytes().get(at).is_some_and(|b| b & 0xc0 != 0x80)
    }
}
