//! Images of the PPM format, one after the other.

use std::io::{BufRead, Read};

use crate::decode::check_size;
use crate::error::{Error, Result};
use crate::image::Image;
use crate::limits::Limits;

/// The next image; `None` at the end.
pub(super) fn read(from: &mut impl BufRead, limits: &Limits) -> Result<Option<Image>> {
    let cut_short = || Error::CutShort { format: "PPM" };
    let mut header = Vec::new();
    for _ in 0..4 {
        let Some(word) = word(from).map_err(Error::Io)? else { break };
        header.push(word);
    }
    let [kind, sides @ .., depth] = header.as_slice() else { return Ok(None) };
    let sides: Vec<u32> = sides.iter().filter_map(|side| side.parse().ok()).collect();
    let (&[width, height], "P6", "255") = (sides.as_slice(), kind.as_str(), depth.as_str()) else {
        return Err(cut_short());
    };
    check_size(width.into(), height.into(), limits)?;
    let len = u64::from(width) * u64::from(height) * 3;
    let mut data = Vec::new();
    from.take(len).read_to_end(&mut data).map_err(Error::Io)?;
    Image::from_rgb(width, height, data).map(Some).ok_or_else(cut_short)
}

/// A word and the one white space after it.
fn word(from: &mut impl BufRead) -> std::io::Result<Option<String>> {
    const MAX_LEN: usize = 16;
    let mut word = String::new();
    let mut byte = [0];
    while word.len() < MAX_LEN {
        if from.read(&mut byte)? == 0 || byte[0].is_ascii_whitespace() {
            break;
        }
        word.push(char::from(byte[0]));
    }
    Ok((!word.is_empty()).then_some(word))
}

#[cfg(test)]
mod tests {
    use super::read;
    use crate::{Error, Limits};

    #[test]
    fn images_come_one_after_the_other() {
        let mut bytes = b"P6\n2 1\n255\nabcdefP6\n1 1\n255\nxyz".as_slice();
        let limits = Limits::default();
        let first = read(&mut bytes, &limits).unwrap().unwrap();
        assert_eq!((first.width(), first.height(), first.data()), (2, 1, b"abcdef".as_slice()));
        let second = read(&mut bytes, &limits).unwrap().unwrap();
        assert_eq!((second.width(), second.data()), (1, b"xyz".as_slice()));
        assert!(read(&mut bytes, &limits).unwrap().is_none());
    }

    #[test]
    fn what_is_no_image_is_refused() {
        let limits = Limits::default();
        for bytes in ["P6\n2 2\n255\nabc", "P5\n1 1\n255\nabc", "P6\n1 1\n65535\nabcabc", "P6\n1"] {
            let read = read(&mut bytes.as_bytes(), &limits);
            assert!(matches!(read, Err(Error::CutShort { .. }) | Ok(None)), "{bytes} {read:?}");
        }
        let huge = read(&mut b"P6\n65535 65535\n255\n".as_slice(), &limits);
        assert!(matches!(huge, Err(Error::ImageSize { .. })));
        let overlong = read(&mut [b'7'; 100].as_slice(), &limits);
        assert!(matches!(overlong, Err(Error::CutShort { .. })));
    }
}
