//! The chunks of a WebP file.

use super::{Bytes, Inside};

/// What a WebP file holds.
#[derive(Debug, Default)]
pub(crate) struct Webp {
    /// Frames of its animation; none if it is still.
    pub(crate) frames: Vec<Inside>,
    /// Sizes of the canvas and of all coded images, which need not be what the frames claim.
    pub(crate) coded: Vec<Inside>,
}

/// Walks through the whole file.
pub(crate) fn walk(file: &[u8]) -> Webp {
    let mut webp = Webp::default();
    let mut bytes = Bytes(file);
    if bytes.take(12).is_some() {
        chunks(bytes, &mut webp, true);
    }
    webp
}

fn chunks(mut bytes: Bytes<'_>, webp: &mut Webp, outermost: bool) {
    while let Some((name, body)) = chunk(&mut bytes) {
        match name {
            b"ANMF" if outermost => {
                let mut body = Bytes(body);
                if let Some(frame) = frame(&mut body) {
                    webp.frames.push(frame);
                    chunks(body, webp, false);
                }
            }
            b"VP8X" => webp.coded.extend(canvas(body)),
            b"VP8 " => webp.coded.extend(lossy(body)),
            b"VP8L" => webp.coded.extend(lossless(body)),
            _ => {}
        }
    }
}

/// A chunk that is cut short ends where the file does.
pub(super) fn chunk<'a>(bytes: &mut Bytes<'a>) -> Option<(&'a [u8], &'a [u8])> {
    let name = bytes.take(4)?;
    let len = usize::try_from(bytes.u32()?).ok()?;
    let body = bytes.take(len.min(bytes.0.len()))?;
    if len % 2 == 1 {
        bytes.take(1);
    }
    Some((name, body))
}

fn canvas(body: &[u8]) -> Option<Inside> {
    let mut body = Bytes(body);
    body.take(4)?;
    let (width, height) = (body.u24()?.checked_add(1)?, body.u24()?.checked_add(1)?);
    Some(Inside { width, height, ms: 0 })
}

fn frame(body: &mut Bytes<'_>) -> Option<Inside> {
    body.take(6)?;
    let width = body.u24()?.checked_add(1)?;
    let height = body.u24()?.checked_add(1)?;
    let ms = body.u24()?;
    body.take(1)?;
    Some(Inside { width, height, ms })
}

fn lossy(body: &[u8]) -> Option<Inside> {
    let mut body = Bytes(body);
    body.take(6)?;
    let (width, height) = (body.u16()? & 0x3fff, body.u16()? & 0x3fff);
    Some(Inside { width, height, ms: 0 })
}

fn lossless(body: &[u8]) -> Option<Inside> {
    let mut body = Bytes(body);
    body.take(1)?;
    let bits = body.u32()?;
    let width = (bits & 0x3fff).checked_add(1)?;
    let height = (bits >> 14 & 0x3fff).checked_add(1)?;
    Some(Inside { width, height, ms: 0 })
}
