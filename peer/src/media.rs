//! The same picture and the same sound for both engines: arbitrary, but always alike.

use std::sync::Arc;

use anyhow::{Context, Result};
use lapidary_media::{Picture, Sound, frames, patches};
use lapidary_program::{Media, input, method};
use lapidary_runner::SoftInput;

use crate::protocol::Test;

/// What is said about a picture or a sound, behind it: about as long as [`TEXT_TOKENS`].
pub const TEXT: &str = "Say in a few words what this is, where it may have been made and when, who \
                        made it and for whom, and what you would change in it if you could.";
/// Tokens of text that Lapidary is given beside the medium.
pub const TEXT_TOKENS: usize = 36;

/// What a medium costs.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    /// Seconds in the tower.
    pub encode_s: f64,
    /// Seconds until the first token behind medium and text, the tower included.
    pub first_token_s: f64,
    /// Tokens that the medium became.
    pub n_soft: usize,
}

/// Levels of red, green and blue, row by row.
pub fn levels(width: u32, height: u32) -> Vec<u8> {
    (0..width * height * 3).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}

/// Samples of a quiet noise.
pub fn samples(seconds: u32, rate: u32) -> Vec<f32> {
    let sample = |i: u32| ((i.wrapping_mul(2_654_435_761) >> 16) as f32 / 32768.0 - 1.0) * 0.1;
    (0..seconds * rate).map(sample).collect()
}

/// What Lapidary's towers are given; `None` if the test shows and plays nothing.
pub fn input(test: Test, media: &Media) -> Result<Option<Arc<SoftInput>>> {
    let made = match test {
        Test::Picture { width, height } => {
            let spec = media.image.as_ref().context("the model does not see")?;
            let picture = Picture::from_rgb(width, height, levels(width, height));
            let made = patches(&picture.context("an empty picture")?, spec, None)?;
            SoftInput {
                method: method::VISION,
                hash: made.hash().0,
                n_soft: made.n_soft,
                block: true,
                indices: vec![
                    (input::PATCH_INDEX, made.index),
                    (input::PATCH_X, made.x),
                    (input::PATCH_Y, made.y),
                ],
                rows: (input::PATCHES, made.data),
            }
        }
        Test::Sound { seconds } => {
            let spec = media.audio.as_ref().context("the model does not hear")?;
            let heard = samples(seconds, spec.sample_rate);
            let made = frames(&Sound::from_samples(spec.sample_rate, heard)?, spec)?;
            SoftInput {
                method: method::AUDIO,
                hash: made.hash().0,
                n_soft: made.n_soft,
                block: false,
                indices: vec![],
                rows: (input::FRAMES, made.data),
            }
        }
        _ => return Ok(None),
    };
    Ok(Some(Arc::new(made)))
}
