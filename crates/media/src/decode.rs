//! Files of images to RGB.

use std::io::Cursor;

use image::codecs::{bmp, gif, jpeg, png, webp};
use image::error::{
    ImageFormatHint, LimitError, LimitErrorKind, UnsupportedError, UnsupportedErrorKind,
};
use image::metadata::Orientation;
use image::{ColorType, DynamicImage, ImageDecoder, ImageError, RgbImage};

use crate::container;
use crate::error::{Error, Result};
use crate::guard::{room, zeros};
use crate::limits::Limits;
use crate::image::Image;
use crate::sniff::{self, ImageFormat};

/// Bytes of what a PNG file holds beside its pixels, unpacked: colour profiles and texts.
const MAX_PNG_ASIDE: u64 = 8 << 20;

/// Progressive JPEG files have ten passes, or some more.
const MAX_PASSES: u64 = 64;
/// An image of the largest size may have these.
const MAX_PASSES_OF_LARGEST: u64 = 16;

pub(crate) fn image(bytes: &[u8], limits: &Limits) -> Result<Image> {
    let format = sniff::image(bytes)?;
    check_header(bytes, format, limits)?;
    let file = Cursor::new(bytes);
    let wrong = |source| failed(format, source, limits);
    match format {
        ImageFormat::Png => {
            let mut bounds = bounded(limits);
            bounds.max_alloc = Some(limits.max_decode_bytes.min(MAX_PNG_ASIDE));
            let decoder = png::PngDecoder::with_limits(file, bounds).map_err(wrong)?;
            read(decoder, format, limits)
        }
        ImageFormat::Jpeg => {
            let decoder = jpeg::JpegDecoder::new(file).map_err(wrong)?;
            let (width, height) = decoder.dimensions();
            check_size(width.into(), height.into(), limits)?;
            check_passes(bytes, u64::from(width).saturating_mul(height.into()), limits)?;
            read(decoder, format, limits)
        }
        ImageFormat::WebP => {
            read(webp::WebPDecoder::new(file).map_err(wrong)?, format, limits)
        }
        ImageFormat::Gif => read(gif::GifDecoder::new(file).map_err(wrong)?, format, limits),
        ImageFormat::Bmp => read(bmp::BmpDecoder::new(file).map_err(wrong)?, format, limits),
    }
}

/// Fails if a header says that there are too many pixels, or none.
pub(crate) fn check_size(width: u64, height: u64, limits: &Limits) -> Result<()> {
    let side = u64::from(limits.max_side);
    let pixels = width.saturating_mul(height);
    if pixels == 0 || width > side || height > side || pixels > limits.max_pixels {
        let Limits { max_pixels, max_side, .. } = *limits;
        return Err(Error::ImageSize { width, height, max_pixels, max_side });
    }
    Ok(())
}

/// Looks where decoders look too late: they read more than the header before they tell a size.
fn check_header(bytes: &[u8], format: ImageFormat, limits: &Limits) -> Result<()> {
    let cut_short = || Error::CutShort { format: format.name() };
    match format {
        ImageFormat::Png => {
            let sides = bytes.get(16..24).and_then(<[u8]>::as_array::<8>).ok_or_else(cut_short)?;
            let both = u64::from_be_bytes(*sides);
            check_size(both >> 32, both & u64::from(u32::MAX), limits)
        }
        ImageFormat::Gif => {
            let sides = bytes.get(6..10).and_then(<[u8]>::as_array::<4>).ok_or_else(cut_short)?;
            let both = u32::from_le_bytes(*sides);
            check_size((both & 0xffff).into(), (both >> 16).into(), limits)
        }
        ImageFormat::WebP => {
            let coded = container::webp::walk(bytes).coded;
            coded.iter().try_for_each(|p| check_size(p.width.into(), p.height.into(), limits))
        }
        ImageFormat::Jpeg | ImageFormat::Bmp => Ok(()),
    }
}

/// A JPEG file of a few kilobytes can have the largest image gone through a hundred times.
fn check_passes(bytes: &[u8], pixels: u64, limits: &Limits) -> Result<()> {
    let passes = container::jpeg::passes(bytes);
    let work = passes.n.saturating_mul(pixels);
    if passes.n > MAX_PASSES || work > limits.max_pixels.saturating_mul(MAX_PASSES_OF_LARGEST) {
        return Err(Error::ImagePasses { passes: passes.n });
    }
    if !passes.is_whole {
        return Err(Error::CutShort { format: ImageFormat::Jpeg.name() });
    }
    Ok(())
}

pub(crate) fn bounded(limits: &Limits) -> image::Limits {
    let mut bounds = image::Limits::default();
    bounds.max_image_width = Some(limits.max_side);
    bounds.max_image_height = Some(limits.max_side);
    bounds.max_alloc = Some(limits.max_decode_bytes);
    bounds
}

/// Our error for what a decoder said.
pub(crate) fn failed(format: ImageFormat, source: ImageError, limits: &Limits) -> Error {
    let memory = |e: &LimitError| e.kind() == LimitErrorKind::InsufficientMemory;
    match source {
        ImageError::Limits(e) if memory(&e) => {
            Error::ImageMemory { max_bytes: limits.max_decode_bytes }
        }
        source => Error::Image { format: format.name(), source },
    }
}

fn read(
    mut decoder: impl ImageDecoder,
    format: ImageFormat,
    limits: &Limits,
) -> Result<Image> {
    let (width, height) = decoder.dimensions();
    check_size(width.into(), height.into(), limits)?;
    let wrong = |source| failed(format, source, limits);
    decoder.set_limits(bounded(limits)).map_err(wrong)?;
    let too_much = Error::ImageMemory { max_bytes: limits.max_decode_bytes };
    let len = decoder.total_bytes();
    if len > limits.max_decode_bytes {
        return Err(too_much);
    }
    let Ok(len) = usize::try_from(len) else { return Err(too_much) };
    // Orientation that can't be read is none: it is not worth a refusal.
    let orientation = decoder.orientation().unwrap_or(Orientation::NoTransforms);
    let colours = decoder.color_type();
    let pixels = u64::from(width).saturating_mul(height.into());
    let beside = beside(format, colours, orientation);
    room("image", pixels.saturating_mul(beside).saturating_add(decoder.total_bytes()))?;
    let mut raw = zeros("image", len)?;
    decoder.read_image(&mut raw).map_err(wrong)?;
    let rgb = to_rgb(raw, colours, format, limits)?;
    upright(width, height, rgb, orientation).ok_or(Error::CutShort { format: format.name() })
}

/// Bytes for each pixel that are taken beside the levels as they are decoded: by the decoder first,
/// then by what makes RGB of them and turns it.
fn beside(format: ImageFormat, colours: ColorType, orientation: Orientation) -> u64 {
    let decoder = match format {
        // Coefficients of all colours, if the file is progressive.
        ImageFormat::Jpeg => 6,
        ImageFormat::WebP => 4,
        ImageFormat::Png | ImageFormat::Gif | ImageFormat::Bmp => 0,
    };
    let rgb = match colours {
        ColorType::Rgb8 => 0,
        ColorType::La16 => 2 + 3,
        ColorType::Rgba16 => 4 + 3,
        _ => 3,
    };
    let turned = if orientation == Orientation::NoTransforms { 0 } else { 3 };
    rgb.max(turned).max(decoder)
}

fn upright(width: u32, height: u32, rgb: Vec<u8>, orientation: Orientation) -> Option<Image> {
    if orientation == Orientation::NoTransforms {
        return Image::from_rgb(width, height, rgb);
    }
    let mut turned = DynamicImage::ImageRgb8(RgbImage::from_raw(width, height, rgb)?);
    turned.apply_orientation(orientation);
    let turned = turned.into_rgb8();
    Image::from_rgb(turned.width(), turned.height(), turned.into_raw())
}

/// Levels of any kind as RGB of 8 bits.
fn to_rgb(
    raw: Vec<u8>,
    colours: ColorType,
    format: ImageFormat,
    limits: &Limits,
) -> Result<Vec<u8>> {
    Ok(match colours {
        ColorType::Rgb8 => raw,
        ColorType::L8 => from_grey(raw.iter().copied()),
        ColorType::La8 => on_white::<2>(&raw),
        ColorType::Rgba8 => on_white::<4>(&raw),
        ColorType::L16 => from_grey(high_bytes(&raw)),
        ColorType::Rgb16 => high_bytes(&raw).collect(),
        ColorType::La16 => on_white::<2>(&high_bytes(&raw).collect::<Vec<u8>>()),
        ColorType::Rgba16 => on_white::<4>(&high_bytes(&raw).collect::<Vec<u8>>()),
        other => {
            let color = UnsupportedErrorKind::Color(other.into());
            let source = UnsupportedError::from_format_and_kind(ImageFormatHint::Unknown, color);
            return Err(failed(format, ImageError::Unsupported(source), limits));
        }
    })
}

fn from_grey(levels: impl ExactSizeIterator<Item = u8>) -> Vec<u8> {
    let mut rgb = Vec::with_capacity(levels.len().saturating_mul(3));
    levels.for_each(|level| rgb.extend_from_slice(&[level; 3]));
    rgb
}

/// Of 16-bit levels in native order.
fn high_bytes(raw: &[u8]) -> impl ExactSizeIterator<Item = u8> + '_ {
    let (levels, _) = raw.as_chunks::<2>();
    levels.iter().map(|level| u16::from_ne_bytes(*level).to_be_bytes()[0])
}

/// Lays grey and alpha (`N` 2) or red, green, blue and alpha (`N` 4) on white.
pub(crate) fn on_white<const N: usize>(raw: &[u8]) -> Vec<u8> {
    let (pixels, _) = raw.as_chunks::<N>();
    let laid = |pixel: &[u8; N]| -> [u8; 3] {
        let alpha = pixel.last().copied().unwrap_or(255);
        let level = |i: usize| over_white(pixel.get(i).copied().unwrap_or(0), alpha);
        if N == 2 { [level(0); 3] } else { [level(0), level(1), level(2)] }
    };
    let mut rgb = Vec::with_capacity(pixels.len().saturating_mul(3));
    pixels.iter().for_each(|pixel| rgb.extend_from_slice(&laid(pixel)));
    rgb
}

/// `level` of opacity `alpha` before white, rounded as Pillow rounds it.
fn over_white(level: u8, alpha: u8) -> u8 {
    let (level, alpha) = (u32::from(level), u32::from(alpha));
    let clear = 255u32.saturating_sub(alpha);
    // 255 · 255 at most, so that nothing here overflows.
    let sum = level.saturating_mul(alpha).saturating_add(clear.saturating_mul(255));
    let sum = sum.saturating_add(128).saturating_mul(128);
    let mixed = (sum >> 8).saturating_add(sum) >> 15;
    u8::try_from(mixed).unwrap_or(u8::MAX)
}
