//! The end of a JPEG file.

use super::Bytes;

/// Whether its data ends with the marker that says so.
///
/// The decoder fills what is missing with grey; a model would describe that.
pub(crate) fn is_whole(file: &[u8]) -> bool {
    let mut bytes = Bytes(file);
    let scan = to_scan(&mut bytes);
    // Inside coded data 0xff is never followed by this.
    scan.is_some() && bytes.0.windows(2).any(|pair| pair == [0xff, 0xd9])
}

/// Passes over everything before the first coded data.
fn to_scan(bytes: &mut Bytes<'_>) -> Option<()> {
    bytes.take(2)?;
    loop {
        while bytes.u8()? != 0xff {}
        let mut marker = 0xff;
        while marker == 0xff {
            marker = bytes.u8()?;
        }
        // These stand alone.
        if matches!(marker, 0x00 | 0x01 | 0xd0..=0xd9) {
            continue;
        }
        let len: [u8; 2] = bytes.take(2)?.try_into().ok()?;
        let len = usize::from(u16::from_be_bytes(len));
        if marker == 0xda {
            return Some(());
        }
        bytes.take(len.checked_sub(2)?)?;
    }
}
