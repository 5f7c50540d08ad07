//! Frames of an animated WebP file, painted over each other.
//!
//! The decoder of single images is a library's. Its own painting rounds opaque pixels down, so ours
//! follows libwebp: an opaque pixel is kept as it is, and the share of what is below is rounded down.

use std::io::Cursor;

use image::codecs::webp::WebPDecoder;
use image::{ColorType, ImageDecoder, ImageError};

use crate::container::webp_frames::Coded;
use crate::decode::{check_size, failed};
use crate::error::{Error, Result};
use crate::guard::zeros;
use crate::limits::Limits;
use crate::sniff::ImageFormat;

const FORMAT: ImageFormat = ImageFormat::WebP;

/// What is painted on: red, green, blue and alpha, at first transparent.
pub(super) struct Canvas {
    width: usize,
    height: usize,
    pixels: Vec<[u8; 4]>,
    /// What is cleared before the next frame.
    to_clear: Option<[usize; 4]>,
}

impl Canvas {
    pub(super) fn new((width, height): (u32, u32), limits: &Limits) -> Result<Self> {
        check_size(width.into(), height.into(), limits)?;
        let too_much = || Error::ImageMemory { max_bytes: limits.max_decode_bytes };
        let width = usize::try_from(width).map_err(|_| too_much())?;
        let height = usize::try_from(height).map_err(|_| too_much())?;
        let n = width.checked_mul(height).ok_or_else(too_much)?;
        let pixels = zeros("video", n)?;
        Ok(Canvas { width, height, pixels, to_clear: None })
    }

    /// Paints the next frame.
    pub(super) fn paint(&mut self, frame: &Coded<'_>, limits: &Limits) -> Result<()> {
        let cut_short = || Error::CutShort { format: FORMAT.name() };
        let place = [frame.x, frame.y, frame.width, frame.height];
        let mut numbers = [0; 4];
        for (number, n) in numbers.iter_mut().zip(place) {
            *number = usize::try_from(n).map_err(|_| cut_short())?;
        }
        let [x, y, width, height] = numbers;
        let fits =
            |at: usize, n: usize, all: usize| at.checked_add(n).is_some_and(|end| end <= all);
        if !fits(x, width, self.width) || !fits(y, height, self.height) {
            return Err(cut_short());
        }
        let file = frame.file().ok_or_else(cut_short)?;
        let pixels = decoded(&file, (frame.width, frame.height), limits)?;
        if let Some([x, y, width, height]) = self.to_clear.take() {
            self.rows(x, y, width, height).for_each(|row| row.fill([0; 4]));
        }
        for (row, new) in self.rows(x, y, width, height).zip(pixels.chunks_exact(width.max(1))) {
            match frame.blends {
                true => row.iter_mut().zip(new).for_each(|(old, new)| *old = over(*new, *old)),
                false => row.copy_from_slice(new),
            }
        }
        self.to_clear = frame.is_cleared.then_some(numbers);
        Ok(())
    }

    fn rows(
        &mut self,
        x: usize,
        y: usize,
        width: usize,
        height: usize,
    ) -> impl Iterator<Item = &mut [[u8; 4]]> {
        let rows = self.pixels.chunks_exact_mut(self.width.max(1)).skip(y).take(height);
        rows.filter_map(move |row| row.get_mut(x..)?.get_mut(..width))
    }

    /// What is there now.
    pub(super) fn pixels(&self) -> &[u8] {
        self.pixels.as_flattened()
    }
}

/// The pixels of a file with one image.
fn decoded(file: &[u8], size: (u32, u32), limits: &Limits) -> Result<Vec<[u8; 4]>> {
    let wrong = |source: ImageError| failed(FORMAT, source, limits);
    let decoder = WebPDecoder::new(Cursor::new(file)).map_err(wrong)?;
    let cut_short = Error::CutShort { format: FORMAT.name() };
    if decoder.dimensions() != size {
        return Err(cut_short);
    }
    let too_much = || Error::ImageMemory { max_bytes: limits.max_decode_bytes };
    let len = decoder.total_bytes();
    if len > limits.max_decode_bytes {
        return Err(too_much());
    }
    let len = usize::try_from(len).map_err(|_| too_much())?;
    let mut raw: Vec<u8> = zeros("video", len)?;
    let colours = decoder.color_type();
    decoder.read_image(&mut raw).map_err(wrong)?;
    match colours {
        ColorType::Rgba8 => Ok(raw.as_chunks::<4>().0.to_vec()),
        ColorType::Rgb8 => {
            Ok(raw.as_chunks::<3>().0.iter().map(|[r, g, b]| [*r, *g, *b, 255]).collect())
        }
        _ => Err(cut_short),
    }
}

/// A pixel laid over another, neither of them multiplied by its alpha.
fn over(new: [u8; 4], old: [u8; 4]) -> [u8; 4] {
    let ([r, g, b, alpha], [below_r, below_g, below_b, below]) = (new, old);
    match alpha {
        0 => return old,
        255 => return new,
        _ => {}
    }
    let alpha = u32::from(alpha);
    // What of the one below is still seen: its alpha times what the one above lets through.
    let seen = u32::from(below).saturating_mul(256_u32.saturating_sub(alpha)) >> 8;
    let both = alpha.saturating_add(seen).max(1);
    let scale = (1_u32 << 24).checked_div(both).unwrap_or(0);
    let level = |new: u8, old: u8| {
        let sum = u64::from(u32::from(new).saturating_mul(alpha))
            .saturating_add(u64::from(u32::from(old).saturating_mul(seen)));
        u8::try_from(sum.saturating_mul(scale.into()) >> 24).unwrap_or(u8::MAX)
    };
    let alpha = u8::try_from(both).unwrap_or(u8::MAX);
    [level(r, below_r), level(g, below_g), level(b, below_b), alpha]
}

#[cfg(test)]
mod tests {
    use super::over;

    #[test]
    fn opaque_pixels_are_kept_and_transparent_ones_change_nothing() {
        for level in [0, 1, 7, 128, 254, 255] {
            let (new, old) = ([level, 3, 200, 255], [9, level, 77, 255]);
            assert_eq!(over(new, old), new);
            assert_eq!(over([1, 2, 3, 0], old), old);
            // Over nothing it is itself, but for rounding.
            let [r, _, _, alpha] = over([level, 0, 0, 100], [0; 4]);
            assert!(r.abs_diff(level) <= 1 && alpha == 100);
        }
        // libwebp: 127 of 255 over 255 leaves 255·(256 − 127)/256 = 128.
        assert_eq!(over([255, 0, 10, 127], [0, 255, 10, 255]), [126, 127, 9, 255]);
    }
}
