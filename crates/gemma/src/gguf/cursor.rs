use std::ops::Range;

use super::value::{ARRAY, Array, Scalar, TEXT};
use crate::error::{Error, Result};

/// Arrays of arrays of arrays: no writer makes even two levels.
const MAX_DEPTH: u32 = 4;

/// A place in the file, from which values are taken one after another.
pub(super) struct Cursor<'a> {
    pub bytes: &'a [u8],
    pub at: usize,
}

impl<'a> Cursor<'a> {
    /// Bytes that are left.
    pub fn left(&self) -> u64 {
        u64::try_from(self.bytes.len().saturating_sub(self.at)).unwrap_or(u64::MAX)
    }

    /// The next `n` bytes; `what` they are, for the message.
    pub fn take(&mut self, n: usize, what: &str) -> Result<&'a [u8]> {
        let range = self.range(n, what)?;
        Ok(self.bytes.get(range).unwrap_or_default())
    }

    fn range(&mut self, n: usize, what: &str) -> Result<Range<usize>> {
        match self.at.checked_add(n) {
            Some(end) if end <= self.bytes.len() => {
                let range = self.at..end;
                self.at = end;
                Ok(range)
            }
            _ => Err(damaged(self.at, format!("the file ends inside {what}"))),
        }
    }

    pub fn u32(&mut self, what: &str) -> Result<u32> {
        Ok(self.take(4, what)?.first_chunk().map_or(0, |b| u32::from_le_bytes(*b)))
    }

    pub fn u64(&mut self, what: &str) -> Result<u64> {
        Ok(self.take(8, what)?.first_chunk().map_or(0, |b| u64::from_le_bytes(*b)))
    }

    /// A length, then as many bytes.
    pub fn text(&mut self, what: &str) -> Result<Range<usize>> {
        let at = self.at;
        let len = self.u64(what)?;
        let left = self.left();
        match usize::try_from(len) {
            Ok(n) if len <= left => self.range(n, what),
            _ => Err(damaged(at, format!("{what} has {len} bytes, {left} are left in the file"))),
        }
    }

    /// A key or a tensor's name.
    pub fn name(&mut self, what: &str) -> Result<String> {
        let at = self.at;
        let range = self.text(what)?;
        match std::str::from_utf8(self.bytes.get(range).unwrap_or_default()) {
            Ok("") => Err(damaged(at, format!("{what} is empty"))),
            Ok(name) => Ok(name.to_string()),
            Err(_) => Err(damaged(at, format!("{what} is not UTF-8"))),
        }
    }

    /// The fixed-size type with a number that was just read.
    pub fn scalar_kind(&self, key: &str, id: u32) -> Result<Scalar> {
        Scalar::from_id(id).ok_or_else(|| {
            damaged(self.at.saturating_sub(4), format!("`{key}` has the unknown type {id}"))
        })
    }

    /// The type, the number and the values of an array's elements.
    pub fn array(&mut self, key: &str, depth: u32) -> Result<Array> {
        let kind = self.u32("the type of an array")?;
        let len_at = self.at;
        let len = self.u64("the length of an array")?;
        let element_bytes = match kind {
            TEXT => 8,
            ARRAY => 12,
            other => u64::try_from(self.scalar_kind(key, other)?.size_bytes()).unwrap_or(8),
        };
        let left = self.left();
        let n = match (len.checked_mul(element_bytes), usize::try_from(len)) {
            (Some(need), Ok(n)) if need <= left => n,
            _ => {
                let what = format!("`{key}` has {len} elements, {left} bytes are left in the file");
                return Err(damaged(len_at, what));
            }
        };
        match kind {
            TEXT => {
                let mut texts = Vec::with_capacity(n);
                for _ in 0..n {
                    texts.push(self.text("an array of text")?);
                }
                Ok(Array::Texts(texts))
            }
            ARRAY if depth >= MAX_DEPTH => {
                Err(damaged(len_at, format!("`{key}` nests arrays deeper than {MAX_DEPTH}")))
            }
            ARRAY => {
                let mut arrays = Vec::with_capacity(n);
                for _ in 0..n {
                    arrays.push(self.array(key, depth.saturating_add(1))?);
                }
                Ok(Array::Nested(arrays))
            }
            other => {
                let kind = self.scalar_kind(key, other)?;
                let size = n.saturating_mul(kind.size_bytes());
                Ok(Array::Scalars { kind, bytes: self.range(size, "an array")? })
            }
        }
    }
}

/// An error with its place.
pub(super) fn damaged(offset: usize, what: impl Into<String>) -> Error {
    Error::Gguf { offset: u64::try_from(offset).unwrap_or(u64::MAX), what: what.into() }
}
