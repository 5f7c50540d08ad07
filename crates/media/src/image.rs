//! An image of 8-bit RGB.

use crate::crops::Crop;
use crate::error::Result;
use crate::guard::guarded;
use crate::limits::Limits;

/// An image: rows of pixels, each red, green, blue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    width: u32,
    height: u32,
    data: Vec<u8>,
}

impl Image {
    /// Decodes a PNG, JPEG, WebP, GIF or BMP file; of an animation, the first frame.
    ///
    /// The format is found by content. The image is turned upright as its EXIF data says.
    /// What is transparent is laid on white. Of 16-bit levels the high byte is taken.
    pub fn decode(bytes: &[u8], limits: &Limits) -> Result<Image> {
        guarded("image", || crate::decode::image(bytes, limits))
    }

    /// An image from its levels; `None` if there are not `width · height · 3` of them, or none.
    pub fn from_rgb(width: u32, height: u32, data: Vec<u8>) -> Option<Image> {
        let want = u64::from(width).checked_mul(u64::from(height))?.checked_mul(3)?;
        let fits = want > 0 && u64::try_from(data.len()) == Ok(want);
        fits.then_some(Image { width, height, data })
    }

    /// Pixels.
    pub fn width(&self) -> u32 {
        self.width
    }

    /// Pixels.
    pub fn height(&self) -> u32 {
        self.height
    }

    /// Levels: red, green, blue, pixel after pixel, row after row.
    pub fn data(&self) -> &[u8] {
        &self.data
    }

    /// A part of it, as far as it lies inside; at least one pixel.
    pub fn crop(&self, crop: &Crop) -> Image {
        let (x, y) = (crop.x.min(self.width - 1), crop.y.min(self.height - 1));
        let width = crop.width.clamp(1, self.width - x);
        let height = crop.height.clamp(1, self.height - y);
        let rows = self.data.chunks_exact(self.width as usize * 3).skip(y as usize);
        let range = x as usize * 3..(x + width) as usize * 3;
        let data =
            rows.take(height as usize).flat_map(|row| &row[range.clone()]).copied().collect();
        Image { width, height, data }
    }

    /// The caller knows that there is at least one pixel, and a level for each.
    pub(crate) fn from_parts(width: u32, height: u32, data: Vec<u8>) -> Image {
        debug_assert_eq!(data.len(), width as usize * height as usize * 3);
        Image { width, height, data }
    }
}
