//! Videos from animated GIF and WebP files.

use std::io::Cursor;

use image::AnimationDecoder;
use image::codecs::{gif, webp};
use image::{ImageDecoder, ImageError};

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
    let wrong = |source| failed(format, source, limits);
    let file = Cursor::new(bytes);
    let (size, frames) = match format {
        ImageFormat::WebP => {
            let decoder = webp::WebPDecoder::new(file).map_err(wrong)?;
            (decoder.dimensions(), decoder.into_frames())
        }
        _ => {
            let mut decoder = gif::GifDecoder::new(file).map_err(wrong)?;
            decoder.set_limits(bounded(limits)).map_err(wrong)?;
            (decoder.dimensions(), decoder.into_frames())
        }
    };
    let (width, height) = (u64::from(size.0), u64::from(size.1));
    check_size(width, height, limits)?;
    check_work(inside.len() as u64, width * height, limits)?;
    let wanted = sampled(inside.len() as u64, max_frames);
    let limits = limits.clone();
    Ok(Video::new(wanted_only(frames, starts(&inside), wanted, move |e| {
        failed(format, e, &limits)
    })))
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

fn wanted_only<'a>(
    frames: image::Frames<'a>,
    starts: Vec<f64>,
    wanted: Vec<u64>,
    wrong: impl Fn(ImageError) -> Error + 'a,
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
                let frame = frame.map_err(&wrong)?;
                if i == want {
                    return Ok(as_frame(frame, seconds));
                }
            }
            Ok(None)
        });
        failed = found.is_err();
        found.transpose()
    })
}

fn as_frame(frame: image::Frame, seconds: f64) -> Option<Frame> {
    let pixels = frame.into_buffer();
    let (width, height) = pixels.dimensions();
    let image = Image::from_rgb(width, height, on_white::<4>(pixels.as_raw()))?;
    Some(Frame { seconds, image })
}
