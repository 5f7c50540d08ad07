//! How images and audio become the rows that a method takes, and where their soft tokens stand
//! in a prompt. Numbers and strings only: whoever reads them needs to know no model family.

use serde::{Deserialize, Serialize};

use crate::metadata::Modality;

/// What a program takes besides text.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Media {
    /// Still images.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<ImageSpec>,
    /// Frames with time stamps; each is made ready as an image is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub video: Option<VideoSpec>,
    /// Audio.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub audio: Option<AudioSpec>,
}

/// Where soft tokens stand in a prompt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SoftTokens {
    /// What a chat template writes for one image or audio; everything below takes its place.
    pub placeholder: String,
    /// Text before the run of soft tokens.
    pub before: String,
    /// Text after it.
    pub after: String,
    /// The id that stands at soft positions in prompts that are given as ids. It may lie outside
    /// the vocabulary.
    pub id: u32,
    /// Whether that id, where nothing is shown or played, is read as padding. Else it is read as
    /// itself.
    #[serde(default, skip_serializing_if = "is_not")]
    pub is_padding: bool,
}

fn is_not(flag: &bool) -> bool {
    !flag
}

/// How an image becomes patches.
///
/// An image is resized, cut into square patches and normalised: a level of 0…255 becomes
/// `level/255 · scale + shift`. `pool × pool` patches make one soft token; the patches of one soft
/// token follow each other in what a method is fed, soft tokens row by row.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImageSpec {
    /// The size it is given.
    pub size: ImageSize,
    /// How it is resized; the filter widens when an image shrinks.
    pub resample: Resample,
    /// Pixels of a patch's side.
    pub patch: u32,
    /// Patches of the side of one soft token.
    pub pool: u32,
    /// The order of numbers inside a patch.
    pub layout: PatchLayout,
    /// Multiplies levels of 0…1.
    pub scale: f32,
    /// Added after that.
    pub shift: f32,
    /// Crops beside the whole image, when the user asks for them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pan_and_scan: Option<PanAndScan>,
    /// Where its soft tokens stand.
    pub tokens: SoftTokens,
}

/// The size that an image is given.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum ImageSize {
    /// Always the same, whatever its aspect.
    Fixed {
        /// Pixels.
        width: u32,
        /// Pixels.
        height: u32,
    },
    /// As large as a number of soft tokens allows, with about its own aspect.
    Budget {
        /// Numbers of soft tokens that a user may choose, ascending.
        choices: Vec<u32>,
        /// The one that is taken unless the user chooses.
        default: u32,
    },
}

/// A resampling filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Resample {
    /// Triangle.
    Bilinear,
    /// Cubic convolution with `a = −0.5`.
    Bicubic,
}

/// The order of numbers inside a patch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PatchLayout {
    /// Channel, row, column.
    Planar,
    /// Row, column, channel.
    Interleaved,
}

/// Crops of long images.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PanAndScan {
    /// No crop has a shorter side, in pixels.
    pub min_crop: u32,
    /// The most crops.
    pub max_crops: u32,
    /// Images that are less long have none.
    pub min_ratio: f32,
    /// Text before the whole image.
    pub before: String,
    /// Text between it and its crops.
    pub between: String,
    /// Text between crops.
    pub separator: String,
}

/// How a video becomes images.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VideoSpec {
    /// The most frames, evenly spread.
    pub max_frames: u32,
    /// Soft tokens of one frame, at most.
    pub budget: u32,
    /// Text between frames; before each stands its time as `MM:SS` and a space.
    pub separator: String,
    /// Where a frame's soft tokens stand.
    pub tokens: SoftTokens,
}

/// How audio becomes frames.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AudioSpec {
    /// Samples in a second, one channel.
    pub sample_rate: u32,
    /// Samples that are looked at; what comes later is cut off.
    pub max_samples: u32,
    /// What a frame is.
    pub frames: AudioFrames,
    /// Frames of one soft token; the last may have fewer.
    pub stride: u32,
    /// Where its soft tokens stand.
    pub tokens: SoftTokens,
}

/// What a frame of audio is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum AudioFrames {
    /// Samples as they are, the last frame padded with zeros.
    Raw {
        /// Samples of a frame.
        len: u32,
    },
    /// `ln(floor + mel)` of the magnitudes of a Hann-windowed spectrum.
    LogMel(LogMel),
}

/// A mel spectrum. A frame counts if its whole window is audio, and the sample after it too.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogMel {
    /// Samples of a window.
    pub window: u32,
    /// Samples from one window to the next.
    pub hop: u32,
    /// Samples of the transform; zeros fill what the window leaves.
    pub fft: u32,
    /// Triangles.
    pub n_mels: u32,
    /// Where the lowest begins, in Hz.
    pub low: f32,
    /// Where the highest ends, in Hz.
    pub high: f32,
    /// Added before the logarithm.
    pub floor: f32,
    /// Zeros before the first sample.
    pub pad_left: u32,
}

impl Media {
    /// Whether there is text only.
    pub fn is_empty(&self) -> bool {
        *self == Media::default()
    }

    /// What the program takes besides text.
    pub fn modalities(&self) -> Vec<Modality> {
        let image = self.image.as_ref().map(|_| Modality::Image);
        let video = self.video.as_ref().map(|_| Modality::Video);
        let audio = self.audio.as_ref().map(|_| Modality::Audio);
        image.into_iter().chain(video).chain(audio).collect()
    }
}

impl ImageSpec {
    /// Pixels of the side of one soft token.
    pub fn cell(&self) -> u32 {
        self.patch.saturating_mul(self.pool)
    }

    /// Numbers of one patch.
    pub fn channels(&self) -> u64 {
        u64::from(self.patch).saturating_mul(u64::from(self.patch)).saturating_mul(3)
    }

    /// Patches of one soft token.
    pub fn patches_per_soft(&self) -> u32 {
        self.pool.saturating_mul(self.pool)
    }

    /// The most soft tokens of one image.
    pub fn max_soft(&self) -> u32 {
        match &self.size {
            ImageSize::Fixed { width, height } => {
                let cell = self.cell().max(1);
                width.div_euclid(cell).saturating_mul(height.div_euclid(cell))
            }
            ImageSize::Budget { choices, default } => {
                choices.iter().copied().max().unwrap_or(*default)
            }
        }
    }
}

impl AudioSpec {
    /// Numbers of one frame.
    pub fn channels(&self) -> u64 {
        match &self.frames {
            AudioFrames::Raw { len } => u64::from(*len),
            AudioFrames::LogMel(mel) => u64::from(mel.n_mels),
        }
    }

    /// Samples from one frame to the next.
    pub fn hop(&self) -> u32 {
        match &self.frames {
            AudioFrames::Raw { len } => *len,
            AudioFrames::LogMel(mel) => mel.hop,
        }
    }
}
