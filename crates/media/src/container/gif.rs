//! The blocks of a GIF file.

use super::{Bytes, Inside};

/// Shorter delays are played as [`USUAL_MS`], as browsers do.
const SHORTEST_MS: u32 = 20;
const USUAL_MS: u32 = 100;

/// The complete frames, in order.
pub(crate) fn frames(file: &[u8]) -> Vec<Inside> {
    let mut frames = Vec::new();
    let mut bytes = Bytes(file);
    let mut ms = USUAL_MS;
    if header(&mut bytes).is_some() {
        while let Some(found) = block(&mut bytes, &mut ms) {
            frames.extend(found);
        }
    }
    frames
}

/// Signature, screen, global colours.
fn header(bytes: &mut Bytes<'_>) -> Option<()> {
    bytes.take(6 + 4)?;
    let flags = bytes.u8()?;
    bytes.take(2)?;
    colours(bytes, flags)
}

fn colours(bytes: &mut Bytes<'_>, flags: u8) -> Option<()> {
    if flags & 0x80 != 0 {
        bytes.take(3 << (u32::from(flags & 7).checked_add(1)?))?;
    }
    Some(())
}

/// One block, which may be a frame; `None` at the end.
fn block(bytes: &mut Bytes<'_>, ms: &mut u32) -> Option<Option<Inside>> {
    match bytes.u8()? {
        0x21 => {
            if bytes.u8()? == 0xf9 {
                let mut control = Bytes(bytes.0);
                control.take(2)?;
                let hundredths = control.u16()?;
                let said = hundredths.checked_mul(10)?;
                *ms = if said < SHORTEST_MS { USUAL_MS } else { said };
            }
            sub_blocks(bytes)?;
            Some(None)
        }
        0x2c => {
            bytes.take(4)?;
            let (width, height) = (bytes.u16()?, bytes.u16()?);
            let flags = bytes.u8()?;
            colours(bytes, flags)?;
            bytes.u8()?;
            sub_blocks(bytes)?;
            Some(Some(Inside { width, height, ms: std::mem::replace(ms, USUAL_MS) }))
        }
        _ => None,
    }
}

fn sub_blocks(bytes: &mut Bytes<'_>) -> Option<()> {
    loop {
        match bytes.u8()? {
            0 => return Some(()),
            n => bytes.take(usize::from(n))?,
        };
    }
}
