//! What sees and hears: the towers of the family, from a table of values to graphs.
//!
//! A tower makes the soft rows that `forward` takes in place of token embeddings. There are three
//! kinds of seeing (SigLIP, Gemma 4's tower, Gemma 4's bare patches) and two of hearing (Gemma 4's
//! tower, Gemma 4's bare frames). What differs between their files, Hugging Face's or GGUF, is a
//! field of their configuration or a form of a weight; the graphs are the same.

mod audio;
mod config;
mod graph;
mod media;
mod vision;
mod weights;

pub use config::{
    Audio, AudioFramesConfig, AudioTower, PatchesConfig, PositionTables, Siglip, Towers, Vision,
    VisionTower,
};
pub use weights::{AUDIO_PREFIXES, VISION_PREFIXES, is_tower_weight, tower_weights};

pub(crate) use audio::audio;
pub(crate) use media::{MediaNumbers, max_frames, max_patches, media};
pub(crate) use vision::vision;
