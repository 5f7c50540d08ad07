use serde::{Deserialize, Serialize};

use crate::answer::AnswerFormat;
use crate::media::Media;

/// What a model can take besides text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Modality {
    /// Still images.
    Image,
    /// Audio.
    Audio,
    /// Frames with time stamps.
    Video,
}

/// Sampling that the model's makers recommend.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SamplingDefaults {
    /// 0 is greedy.
    pub temperature: f32,
    /// 0 keeps all.
    pub top_k: u32,
    /// 1 keeps all.
    pub top_p: f32,
}

/// Facts about the model that are not ops. Names follow ExecuTorch's where it has them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Metadata {
    /// For people: `gemma-3-270m`.
    pub name: String,
    /// The checkpoint's own word for its architecture: `gemma3_text`.
    pub architecture: String,
    /// What made this program: `lapidary 0.1.0`.
    pub made_by: String,
    /// Rows of the output.
    pub vocab_size: u32,
    /// Positions that the model was made for: the most that prompt and answer may fill.
    pub max_context_len: u32,
    /// Begin of sequence.
    pub bos_id: Option<u32>,
    /// Padding; also what stands at soft positions.
    pub pad_id: Option<u32>,
    /// Tokens that end an answer.
    pub eos_ids: Vec<u32>,
    /// Tokens that are never sampled.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub suppress_ids: Vec<u32>,
    /// Whether plain text is preceded by `bos_id`.
    pub add_bos: bool,
    /// What the makers recommend.
    pub sampling: SamplingDefaults,
    /// What the model takes besides text, and how it is made ready.
    #[serde(default, skip_serializing_if = "Media::is_empty")]
    pub media: Media,
    /// How the model writes its answers; without it, all of an answer is text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<AnswerFormat>,
}

impl Modality {
    /// For people.
    pub const fn name(self) -> &'static str {
        match self {
            Modality::Image => "image",
            Modality::Audio => "audio",
            Modality::Video => "video",
        }
    }
}

impl Default for SamplingDefaults {
    /// The model's own distribution, uncut.
    fn default() -> Self {
        SamplingDefaults { temperature: 1.0, top_k: 0, top_p: 1.0 }
    }
}
