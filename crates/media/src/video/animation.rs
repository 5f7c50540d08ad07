//! Videos from animated GIF and WebP files.

use std::io::Cursor;

use image::codecs::gif;
use image::{AnimationDecoder, ImageDecoder};

use super::canvas::Canvas;
use super::{Frame, Video, sampled};
use crate::container::{self, Inside};
use crate::decode::{bounded, check_size, failed, on_white};
use crate::error::{Error, Result};
use crate::guard::guarded;
use crate::image::Image;
use crate::limits::Limits;
use crate::sniff::{self, ImageFormat};

pub(super) fn open<'a>(bytes: &'a [u8], max_frames: u32, limits: &Limits) -> Result<Video<'a>> {
    guarded("video", || opened(bytes, max_frames, limits))
}

fn opened<'a>(bytes: &'a [u8], max_frames: u32, limits: &Limits) -> Result<Video<'a>> {
    if bytes.is_empty() {
        return Err(Error::Empty { what: "video" });
    }
    let Some(format) = sniff::animation(bytes) else {
        let looks_like = sniff::looks_like(bytes);
        return Err(Error::Unread { what: "video", looks_like, takes: sniff::VIDEOS });
    };
    let inside = frames_inside(bytes, format, limits)?;
    if inside.is_empty() {
        let image = Image::decode(bytes, limits)?;
        return Ok(Video::new(std::iter::once(Ok(Frame { seconds: 0.0, image }))));
    }
    if format == ImageFormat::WebP {
        return webp_frames(bytes, &inside, max_frames, limits);
    }
    let wrong = |source| failed(format, source, limits);
    let mut decoder = gif::GifDecoder::new(Cursor::new(bytes)).map_err(wrong)?;
    decoder.set_limits(bounded(limits)).map_err(wrong)?;
    let (width, height) = decoder.dimensions();
    let wanted = wanted(&inside, (width, height), max_frames, limits)?;
    let limits = limits.clone();
    let frames = decoder.into_frames().map(move |frame| -> Painted {
        let pixels = frame.map_err(|e| failed(format, e, &limits))?.into_buffer();
        Ok((width, height, on_white::<4>(pixels.as_raw())))
    });
    Ok(Video::new(wanted_only(frames, starts(&inside), wanted)))
}

fn webp_frames<'a>(
    bytes: &'a [u8],
    inside: &[Inside],
    max_frames: u32,
    limits: &Limits,
) -> Result<Video<'a>> {
    let cut_short = || Error::CutShort { format: ImageFormat::WebP.name() };
    let (size, coded) = container::webp_frames::animation(bytes).ok_or_else(cut_short)?;
    let wanted = wanted(inside, size, max_frames, limits)?;
    let mut canvas = Canvas::new(size, limits)?;
    let limits = limits.clone();
    let frames = coded.into_iter().map(move |frame| -> Painted {
        canvas.paint(&frame, &limits)?;
        Ok((size.0, size.1, on_white::<4>(canvas.pixels())))
    });
    Ok(Video::new(wanted_only(frames, starts(inside), wanted)))
}

/// The numbers of the frames that are shown, none of which is too much work.
fn wanted(
    inside: &[Inside],
    (width, height): (u32, u32),
    max_frames: u32,
    limits: &Limits,
) -> Result<Vec<u64>> {
    let (width, height) = (u64::from(width), u64::from(height));
    check_size(width, height, limits)?;
    check_work(inside.len() as u64, width * height, limits)?;
    Ok(sampled(inside.len() as u64, max_frames))
}

/// The frames that the file's blocks announce, none of which is too large.
fn frames_inside(bytes: &[u8], format: ImageFormat, limits: &Limits) -> Result<Vec<Inside>> {
    let (frames, coded) = match format {
        ImageFormat::WebP => {
            let webp = container::webp::walk(bytes);
            (webp.frames, webp.coded)
        }
        _ => (container::gif::frames(bytes), Vec::new()),
    };
    for one in frames.iter().chain(&coded) {
        check_size(one.width.into(), one.height.into(), limits)?;
    }
    Ok(frames)
}

/// Every frame up to the last that is wanted must be decoded, onto the whole canvas.
fn check_work(frames: u64, pixels: u64, limits: &Limits) -> Result<()> {
    if frames.saturating_mul(pixels) > limits.max_video_pixels {
        return Err(Error::VideoSize { frames, pixels, max_pixels: limits.max_video_pixels });
    }
    Ok(())
}

/// When each frame begins, in seconds.
fn starts(frames: &[Inside]) -> Vec<f64> {
    let begin = |ms: &mut u64, frame: &Inside| {
        let now = *ms;
        *ms += u64::from(frame.ms);
        Some(now as f64 / 1000.0)
    };
    frames.iter().scan(0, begin).collect()
}

/// A frame on its canvas: width, height and levels.
type Painted = Result<(u32, u32, Vec<u8>)>;

fn wanted_only<'a>(
    frames: impl Iterator<Item = Painted> + 'a,
    starts: Vec<f64>,
    wanted: Vec<u64>,
) -> impl Iterator<Item = Result<Frame>> + 'a {
    let mut frames = frames.zip(starts).zip(0u64..);
    let mut failed = false;
    wanted.into_iter().map_while(move |want| {
        if failed {
            return None;
        }
        let found = guarded("video", || {
            // Frames are painted over each other: those between are decoded too.
            for ((frame, seconds), i) in frames.by_ref() {
                let (width, height, rgb) = frame?;
                if i == want {
                    let image = Image::from_rgb(width, height, rgb);
                    return Ok(image.map(|image| Frame { seconds, image }));
                }
            }
            Ok(None)
        });
        failed = found.is_err();
        found.transpose()
    })
}
