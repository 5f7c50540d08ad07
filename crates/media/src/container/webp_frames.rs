//! The frames of an animated WebP file, each to be decoded by itself.

use super::Bytes;
use super::webp::chunk;

/// A frame as it stands in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Coded<'a> {
    /// Pixels from the left of the canvas.
    pub(crate) x: u32,
    /// Pixels from its top.
    pub(crate) y: u32,
    pub(crate) width: u32,
    pub(crate) height: u32,
    /// Whether it is laid over what is there; else it takes its place.
    pub(crate) blends: bool,
    /// Whether its place is cleared before the next one.
    pub(crate) is_cleared: bool,
    /// Chunks of its image.
    chunks: &'a [u8],
}

/// The canvas of an animation, and its frames in order.
pub(crate) fn animation(file: &[u8]) -> Option<((u32, u32), Vec<Coded<'_>>)> {
    let mut bytes = Bytes(file);
    bytes.take(12)?;
    let mut canvas = None;
    let mut frames = Vec::new();
    while let Some((name, body)) = chunk(&mut bytes) {
        match name {
            b"VP8X" if canvas.is_none() => canvas = Some(canvas_of(body)?),
            b"ANMF" => frames.extend(frame(body)),
            _ => {}
        }
    }
    Some((canvas?, frames))
}

fn canvas_of(body: &[u8]) -> Option<(u32, u32)> {
    let mut body = Bytes(body);
    body.take(4)?;
    Some((body.u24()?.checked_add(1)?, body.u24()?.checked_add(1)?))
}

fn frame(body: &[u8]) -> Option<Coded<'_>> {
    let mut body = Bytes(body);
    let (x, y) = (body.u24()?.checked_mul(2)?, body.u24()?.checked_mul(2)?);
    let (width, height) = (body.u24()?.checked_add(1)?, body.u24()?.checked_add(1)?);
    body.u24()?;
    let flags = body.u8()?;
    let (blends, is_cleared) = (flags & 2 == 0, flags & 1 != 0);
    Some(Coded { x, y, width, height, blends, is_cleared, chunks: body.0 })
}

impl Coded<'_> {
    /// A file of its own that holds the frame's image and nothing else.
    pub(crate) fn file(&self) -> Option<Vec<u8>> {
        let mut body = b"WEBP".to_vec();
        let mut chunks = Bytes(self.chunks);
        let mut images = Vec::new();
        while let Some((name, bytes)) = chunk(&mut chunks) {
            if matches!(name, b"ALPH" | b"VP8 " | b"VP8L") {
                images.push((name, bytes));
            }
        }
        if images.iter().any(|(name, _)| *name == b"ALPH") {
            let mut extended = vec![1 << 4, 0, 0, 0];
            for side in [self.width, self.height] {
                extended.extend_from_slice(side.checked_sub(1)?.to_le_bytes().get(..3)?);
            }
            put(&mut body, b"VP8X", &extended)?;
        }
        for (name, bytes) in images {
            put(&mut body, name, bytes)?;
        }
        let mut file = Vec::new();
        put(&mut file, b"RIFF", &body)?;
        Some(file)
    }
}

fn put(out: &mut Vec<u8>, name: &[u8], body: &[u8]) -> Option<()> {
    out.extend_from_slice(name);
    out.extend_from_slice(&u32::try_from(body.len()).ok()?.to_le_bytes());
    out.extend_from_slice(body);
    if body.len() % 2 == 1 {
        out.push(0);
    }
    Some(())
}
