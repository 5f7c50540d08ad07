//! The same image and the same audio for both engines: arbitrary, but always alike.

use std::sync::Arc;

use anyhow::{Context, Result};
use lapidary::program::Media;
use lapidary::{
    SoftInput, arbitrary_audio, arbitrary_image, arbitrary_levels, arbitrary_samples,
};

use crate::protocol::Test;

/// What is said about an image or an audio clip, after it: about as long as [`TEXT_TOKENS`].
pub const TEXT: &str = "Say in a few words what this is, where it may have been made and when, who \
                        made it and for whom, and what you would change in it if you could.";
/// Tokens of text that Lapidary is given beside the medium.
pub const TEXT_TOKENS: usize = 36;

/// What a medium costs.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    /// Seconds in the tower.
    pub encode_s: f64,
    /// Seconds until the first token after medium and text, the tower included.
    pub first_token_s: f64,
    /// Tokens that the medium became.
    pub n_soft: usize,
}

/// Levels of red, green and blue, row by row.
pub fn levels(width: u32, height: u32) -> Vec<u8> {
    arbitrary_levels(width, height)
}

/// Samples of a quiet noise.
pub fn samples(seconds: u32, rate: u32) -> Vec<f32> {
    arbitrary_samples(seconds * rate)
}

/// What Lapidary's towers are given; `None` if the test shows and plays nothing.
pub fn input(test: Test, media: &Media) -> Result<Option<Arc<SoftInput>>> {
    let made = match test {
        Test::Image { width, height } => {
            let spec = media.image.as_ref().context("the model does not see")?;
            arbitrary_image(spec, (width, height), None)?
        }
        Test::Audio { seconds } => {
            let spec = media.audio.as_ref().context("the model does not hear")?;
            arbitrary_audio(spec, Some(seconds))?
        }
        _ => return Ok(None),
    };
    Ok(Some(Arc::new(made)))
}
