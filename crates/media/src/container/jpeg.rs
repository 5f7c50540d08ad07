//! The passes of a JPEG file.

use super::Bytes;

/// What the markers of a file say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Passes {
    /// How often the image is gone through; once, or about ten times if it is progressive.
    pub(crate) n: u64,
    /// Whether the last is followed by the marker that ends a file. Without it the decoder fills
    /// what is missing with grey, and a model would describe that.
    pub(crate) is_whole: bool,
}

/// Walks through the whole file.
pub(crate) fn passes(file: &[u8]) -> Passes {
    let mut found = Passes::default();
    let mut bytes = Bytes(file);
    bytes.take(2);
    while let Some(marker) = marker(&mut bytes) {
        match marker {
            0xd9 => {
                // Thumbnails, which lie before the first pass, have their own.
                found.is_whole = found.n > 0;
                break;
            }
            // These stand alone.
            0x00 | 0x01 | 0xd0..=0xd8 => continue,
            0xda => found.n = found.n.saturating_add(1),
            _ => {}
        }
        if segment(&mut bytes).is_none() {
            break;
        }
    }
    found
}

/// The next marker, whatever lies before it. Inside coded data 0xff is followed by 0x00 or by a
/// number that stands alone.
fn marker(bytes: &mut Bytes<'_>) -> Option<u8> {
    let at = bytes.0.iter().position(|b| *b == 0xff)?;
    bytes.take(at)?;
    let mut marker = 0xff;
    while marker == 0xff {
        marker = bytes.u8()?;
    }
    Some(marker)
}

fn segment(bytes: &mut Bytes<'_>) -> Option<()> {
    let len: [u8; 2] = bytes.take(2)?.try_into().ok()?;
    bytes.take(usize::from(u16::from_be_bytes(len)).checked_sub(2)?)?;
    Some(())
}
