//! Audio to frames.

use lapidary_program::{AudioFrames, AudioSpec};

use crate::audio::{Audio, RATES};
use crate::error::{Error, Result};
use crate::log_mel;
use crate::resample::{new_len, resampled};

/// What `audio` is fed for one audio clip.
#[derive(Clone, Debug, PartialEq)]
pub struct Frames {
    /// Numbers of each frame in turn.
    pub data: Vec<f32>,
    /// Frames.
    pub n_frames: usize,
    /// Soft tokens.
    pub n_soft: usize,
    /// Whether the audio was longer than what the model listens to.
    pub is_cut: bool,
}

/// An audio clip as frames, at the rate that the program takes.
pub fn frames(audio: &Audio, spec: &AudioSpec) -> Result<Frames> {
    if !RATES.contains(&spec.sample_rate) {
        return Err(Error::Spec { what: format!("{} samples in a second", spec.sample_rate) });
    }
    let len = new_len(audio.samples().len(), audio.rate(), spec.sample_rate);
    let heard = len.min(spec.max_samples as usize);
    let mut samples = resampled(audio, spec.sample_rate, heard);
    let (n_frames, least) = match &spec.frames {
        AudioFrames::Raw { len } => (heard.div_ceil((*len).max(1) as usize), 1),
        AudioFrames::LogMel(mel) => (log_mel::n_frames(heard, mel), log_mel::least(mel)),
    };
    if n_frames == 0 {
        return Err(Error::AudioShort { samples: heard, rate: spec.sample_rate, min: least });
    }
    let data = match &spec.frames {
        AudioFrames::Raw { len } => {
            samples.resize(n_frames * (*len).max(1) as usize, 0.0);
            samples
        }
        AudioFrames::LogMel(mel) => log_mel::log_mel(&samples, spec.sample_rate, mel)?,
    };
    let n_soft = n_frames.div_ceil(spec.stride.max(1) as usize);
    Ok(Frames { data, n_frames, n_soft, is_cut: heard < len })
}
