//! How images and audio are made ready for a model's towers.
//!
//! The numbers are those of the released processors, unless a checkpoint's own files say otherwise.

use lapidary_program::{
    AudioFrames, AudioSpec, ImageSize, ImageSpec, LogMel, Media, PanAndScan, PatchLayout, Resample,
    SoftTokens, VideoSpec,
};

use super::config::{Audio, Towers, Vision};

/// Numbers of soft tokens that an image may have in Gemma 4.
const BUDGETS: [u32; 5] = [70, 140, 280, 560, 1120];
/// Soft tokens of the longest audio clip: 30 seconds.
const MAX_SOFT_OF_AUDIO: u32 = 750;
/// The ids of soft tokens.
const GEMMA3_IMAGE_ID: u32 = 262_144;
const GEMMA4_IDS: MediaIds = MediaIds { image: 258_880, audio: 258_881, video: 258_884 };

/// What a checkpoint may say about images and audio besides its towers.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct MediaNumbers {
    pub ids: MediaIds,
    /// What becomes of levels of 0…1: they are multiplied, then added to.
    pub levels: (f32, f32),
    pub resample: Resample,
    /// Soft tokens of an image, where its size follows from them.
    pub image_budget: u32,
    pub pan_and_scan: PanAndScan,
    pub max_frames: u32,
    pub frame_budget: u32,
    pub sample_rate: u32,
    pub max_soft_of_audio: u32,
    pub mel: LogMel,
}

/// The ids that stand at soft positions in prompts that are given as ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MediaIds {
    pub image: u32,
    pub audio: u32,
    pub video: u32,
}

impl MediaNumbers {
    /// The released ones.
    pub fn released(towers: &Towers) -> Self {
        let gemma3 = matches!(towers.vision, Some(Vision::Siglip(_)));
        let image = if gemma3 { GEMMA3_IMAGE_ID } else { GEMMA4_IDS.image };
        MediaNumbers {
            ids: MediaIds { image, ..GEMMA4_IDS },
            levels: if gemma3 { (2.0, -1.0) } else { (1.0, 0.0) },
            resample: if gemma3 { Resample::Bilinear } else { Resample::Bicubic },
            image_budget: 280,
            pan_and_scan: PanAndScan {
                min_crop: 256,
                max_crops: 4,
                min_ratio: 1.2,
                before: "Here is the original image ".into(),
                between: " and here are some crops to help you see better ".into(),
                separator: " ".into(),
            },
            max_frames: 32,
            frame_budget: 70,
            sample_rate: 16_000,
            max_soft_of_audio: MAX_SOFT_OF_AUDIO,
            mel: LogMel {
                window: 320,
                hop: 160,
                fft: 512,
                n_mels: 128,
                low: 0.0,
                high: 8000.0,
                floor: 1e-3,
                pad_left: 160,
            },
        }
    }
}

/// How images and audio are made ready for these towers.
pub(crate) fn media(towers: &Towers, n: &MediaNumbers) -> Media {
    let image = towers.vision.as_ref().map(|v| image(v, n));
    let video = match (&towers.vision, &image) {
        (Some(Vision::Tower(_) | Vision::Patches(_)), Some(image)) => Some(VideoSpec {
            max_frames: n.max_frames,
            budget: n.frame_budget.min(image.max_soft()),
            separator: " ".into(),
            tokens: soft_tokens("<|video|>", "<|image>", "<image|>", n.ids.video),
        }),
        _ => None,
    };
    Media { video, audio: towers.audio.as_ref().map(|a| audio(a, n)), image }
}

fn image(vision: &Vision, n: &MediaNumbers) -> ImageSpec {
    let (scale, shift) = n.levels;
    let gemma4 = || soft_tokens("<|image|>", "<|image>", "<image|>", n.ids.image);
    match vision {
        Vision::Siglip(c) => ImageSpec {
            size: ImageSize::Fixed { width: c.image_size, height: c.image_size },
            resample: n.resample,
            patch: c.patch_size,
            pool: c.pool,
            layout: PatchLayout::Planar,
            scale,
            shift,
            pan_and_scan: Some(n.pan_and_scan.clone()),
            tokens: SoftTokens {
                is_padding: false,
                ..soft_tokens(
                    "<start_of_image>",
                    "\n\n<start_of_image>",
                    "<end_of_image>\n\n",
                    n.ids.image,
                )
            },
        },
        // The tower itself begins with 2·p − 1.
        Vision::Tower(c) => ImageSpec {
            size: budget(n.image_budget),
            resample: n.resample,
            patch: c.patch_size,
            pool: c.pool,
            layout: c.layout,
            scale: 2.0 * scale,
            shift: 2.0 * shift - 1.0,
            pan_and_scan: None,
            tokens: gemma4(),
        },
        Vision::Patches(c) => ImageSpec {
            size: budget(n.image_budget),
            resample: n.resample,
            patch: c.patch_size,
            pool: 1,
            layout: c.layout,
            scale,
            shift,
            pan_and_scan: None,
            tokens: gemma4(),
        },
    }
}

/// The released budgets, and the checkpoint's own. A strip that is longer than the model's table of
/// positions is refused when it is shown: most images of the same budget are not.
fn budget(default: u32) -> ImageSize {
    let mut choices = BUDGETS.to_vec();
    if let Err(place) = choices.binary_search(&default) {
        choices.insert(place, default);
    }
    ImageSize::Budget { choices, default }
}

fn audio(audio: &Audio, n: &MediaNumbers) -> AudioSpec {
    let tokens = soft_tokens("<|audio|>", "<|audio>", "<audio|>", n.ids.audio);
    let (frames, stride, hop) = match audio {
        Audio::Tower(c) => {
            let mel = LogMel { n_mels: c.n_mels, ..n.mel.clone() };
            // Each of two convolutions halves the frames.
            (AudioFrames::LogMel(mel), 4, n.mel.hop)
        }
        Audio::Frames(c) => (AudioFrames::Raw { len: c.len }, 1, c.len),
    };
    let max_samples = n.max_soft_of_audio.saturating_mul(stride).saturating_mul(hop);
    AudioSpec { sample_rate: n.sample_rate, max_samples, frames, stride, tokens }
}

/// The most frames that an audio clip has.
pub(crate) fn max_frames(spec: &AudioSpec) -> u32 {
    match &spec.frames {
        AudioFrames::Raw { len } => spec.max_samples.div_ceil((*len).max(1)),
        AudioFrames::LogMel(mel) => {
            let heard = spec.max_samples.saturating_add(mel.pad_left);
            // A window and one sample more.
            let last = heard.saturating_sub(mel.window).saturating_sub(1);
            last.checked_div(mel.hop).unwrap_or(0).saturating_add(1)
        }
    }
}

/// The most patches that an image has.
pub(crate) fn max_patches(spec: &ImageSpec) -> u32 {
    spec.max_soft().saturating_mul(spec.patches_per_soft())
}

/// Those of Gemma 4, which reads an id without media as padding. Gemma 3 reads the id's own row.
fn soft_tokens(placeholder: &str, before: &str, after: &str, id: u32) -> SoftTokens {
    SoftTokens {
        placeholder: placeholder.into(),
        before: before.into(),
        after: after.into(),
        id,
        is_padding: true,
    }
}
