//! Videos: frames with time stamps, one at a time.

mod animation;
mod canvas;
mod ffmpeg;
mod folder;
mod ppm;
mod running;

use std::path::Path;

use lapidary_program::{ImageSpec, VideoSpec};

use crate::error::{Error, Result};
use crate::image::Image;
use crate::limits::Limits;
use crate::patches::{Patches, patches_within};

/// Descriptions come from files too. No model takes a tenth of this from one video.
const MAX_NUMBERS: usize = 1 << 28;

/// A frame of a video.
#[derive(Clone, Debug, PartialEq)]
pub struct Frame {
    /// When it is shown.
    pub seconds: f64,
    /// What it shows.
    pub image: Image,
}

/// A frame as it is fed.
#[derive(Clone, Debug, PartialEq)]
pub struct VideoFrame {
    /// When it is shown, as the model reads it.
    pub time: String,
    /// What it shows.
    pub patches: Patches,
}

/// Frames of a video, evenly spread, decoded as they are asked for: no more than one is held.
pub struct Video<'a> {
    frames: Box<dyn Iterator<Item = Result<Frame>> + 'a>,
}

impl<'a> Video<'a> {
    /// From an animated GIF or WebP file; a still one has one frame.
    pub fn from_animation(bytes: &'a [u8], max_frames: u32, limits: &Limits) -> Result<Video<'a>> {
        animation::open(bytes, max_frames, limits)
    }

    /// From a folder of images, in the natural order of their names.
    ///
    /// `fps` is how many make a second: 24 unless told.
    pub fn from_folder(
        folder: &Path,
        fps: Option<f64>,
        max_frames: u32,
        limits: &Limits,
    ) -> Result<Video<'static>> {
        folder::open(folder, fps, max_frames, limits)
    }

    /// From any file that the program `ffmpeg` reads.
    ///
    /// `program` says where it is; unless told, it must be on the PATH.
    pub fn from_file(
        file: &Path,
        program: Option<&Path>,
        max_frames: u32,
        limits: &Limits,
    ) -> Result<Video<'static>> {
        ffmpeg::open(file, program, max_frames, limits)
    }

    /// Its frames as they are fed.
    pub fn patches(self, spec: &ImageSpec, video: &VideoSpec) -> Result<Vec<VideoFrame>> {
        let mut frames: Vec<VideoFrame> = Vec::new();
        let mut numbers = 0;
        for frame in self {
            let Frame { seconds, image } = frame?;
            let patches = patches_within(&image, spec, video.budget)?;
            numbers += patches.data.len();
            if numbers > MAX_NUMBERS {
                let what = format!("videos of more than {} such frames", frames.len());
                return Err(Error::Spec { what });
            }
            frames.push(VideoFrame { time: time_stamp(seconds), patches });
        }
        if frames.is_empty() { Err(Error::NoFrames) } else { Ok(frames) }
    }

    fn new(frames: impl Iterator<Item = Result<Frame>> + 'a) -> Video<'a> {
        Video { frames: Box::new(frames) }
    }
}

impl Iterator for Video<'_> {
    type Item = Result<Frame>;

    fn next(&mut self) -> Option<Self::Item> {
        self.frames.next()
    }
}

/// Which of `total` frames are looked at: at most `max`, evenly spread from the first.
pub fn sampled(total: u64, max: u32) -> Vec<u64> {
    let n = u64::from(max).min(total);
    // In 128 bits, where the product fits.
    let at = |i: u64| u128::from(i) * u128::from(total) / u128::from(n.max(1));
    (0..n).map(|i| at(i) as u64).collect()
}

/// A time as `MM:SS`; minutes go on above 99.
pub fn time_stamp(seconds: f64) -> String {
    let whole = seconds.max(0.0) as u64;
    format!("{:02}:{:02}", whole / 60, whole % 60)
}
