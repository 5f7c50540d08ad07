//! Where numbers for the device are written.
#![allow(unsafe_code)]

use wgpu::WriteOnly;

/// Bytes of numbers that are yet to be written, in order.
pub(crate) enum Out<'a> {
    /// In memory of the process.
    Here(&'a mut [u8]),
    /// In memory that the device reads.
    Mapped(Mapped<'a>),
}

/// Bytes that may be written and not read, by any thread.
pub(crate) struct Mapped<'a>(WriteOnly<'a, [u8]>);

// SAFETY: it is the only way to these bytes while it lives, as `&mut [u8]` would be, and that may be
// sent. (`wgpu` promises as much for what has a size.)
unsafe impl Send for Mapped<'_> {}

impl<'a> Out<'a> {
    /// Bytes of a mapped buffer.
    pub(crate) fn mapped(bytes: WriteOnly<'a, [u8]>) -> Self {
        Out::Mapped(Mapped(bytes))
    }

    /// Numbers that there is room for.
    pub(crate) fn len(&self) -> usize {
        match self {
            Out::Here(bytes) => bytes.len() / 4,
            Out::Mapped(Mapped(bytes)) => bytes.len() / 4,
        }
    }

    /// Room for the first so many numbers, taken from this.
    pub(crate) fn split_off(&mut self, n: usize) -> Out<'a> {
        match self {
            Out::Here(bytes) => {
                let (first, rest) = std::mem::take(bytes).split_at_mut(4 * n);
                *bytes = rest;
                Out::Here(first)
            }
            Out::Mapped(Mapped(bytes)) => {
                let first = bytes.split_off(..4 * n).expect("the caller asks for what there is");
                Out::Mapped(Mapped(first))
            }
        }
    }

    /// Writes the next numbers.
    pub(crate) fn put(&mut self, words: impl ExactSizeIterator<Item = [u8; 4]>) {
        match self.split_off(words.len()) {
            Out::Here(bytes) => {
                let to = bytes.as_chunks_mut::<4>().0.iter_mut();
                to.zip(words).for_each(|(to, word)| *to = word);
            }
            Out::Mapped(Mapped(bytes)) => bytes.into_chunks::<4>().0.write_iter(words),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Out;

    #[test]
    fn numbers_stand_one_behind_another() {
        let mut bytes = [0; 12];
        let mut out = Out::Here(&mut bytes);
        let mut first = out.split_off(1);
        out.put([2u32, 3].iter().map(|n| n.to_le_bytes()));
        first.put([1u32].iter().map(|n| n.to_le_bytes()));
        assert_eq!(out.len() + first.len(), 0);
        assert_eq!(bytes, [1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0]);
    }
}
