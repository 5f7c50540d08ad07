//! What files of images say of themselves, found without decoding anything.

pub(crate) mod gif;
pub(crate) mod jpeg;
pub(crate) mod webp;
pub(crate) mod webp_frames;

/// An image inside a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Inside {
    /// Pixels.
    pub(crate) width: u32,
    /// Pixels.
    pub(crate) height: u32,
    /// How long it is shown.
    pub(crate) ms: u32,
}

/// A reader of bytes that ends instead of failing.
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(n)?;
        self.0 = rest;
        Some(taken)
    }

    fn u8(&mut self) -> Option<u8> {
        self.take(1)?.first().copied()
    }

    fn u16(&mut self) -> Option<u32> {
        let bytes: [u8; 2] = self.take(2)?.try_into().ok()?;
        Some(u32::from(u16::from_le_bytes(bytes)))
    }

    fn u24(&mut self) -> Option<u32> {
        let low = self.u16()?;
        Some(u32::from(self.u8()?) << 16 | low)
    }

    fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.take(4)?.try_into().ok()?))
    }
}
