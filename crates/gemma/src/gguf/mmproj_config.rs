//! The metadata of an mmproj file as [`Towers`].
//!
//! Keys stand under `clip.vision` and `clip.audio`. What llama.cpp's loader takes for granted is
//! taken for granted here; lengths that stand in no key are those of tensors.

use lapidary_program::PatchLayout;

use super::reader::{Gguf, TensorInfo};
use super::value::{Value, narrow};
use crate::config::MAX_LAYERS;
use crate::error::{Error, Result};
use crate::towers::{
    Audio, AudioFramesConfig, AudioTower, MediaNumbers, PatchesConfig, PositionTables, Siglip,
    Towers, Vision, VisionTower,
};

/// Under every root of a norm of hearing, whatever the file says: early files say it wrong.
const AUDIO_EPS: f32 = 1e-6;

/// What a file says of its towers.
pub(super) struct Described {
    pub towers: Towers,
    /// Channels of the model that they are made for.
    pub text_hidden: u32,
}

/// Reads the towers of a file.
pub(super) fn towers(file: &Gguf) -> Result<Described> {
    let vision = Side { file, name: "vision" };
    let audio = Side { file, name: "audio" };
    let seeing = match vision.projector()? {
        None => None,
        Some("gemma3") => Some(Vision::Siglip(siglip(&vision)?)),
        Some("gemma4v") => Some(Vision::Tower(vision_tower(&vision)?)),
        Some("gemma4uv") => Some(Vision::Patches(patches(&vision)?)),
        Some(other) => return Err(unknown_projector(other)),
    };
    let hearing = match audio.projector()? {
        None => None,
        Some("gemma4a") => Some(Audio::Tower(audio_tower(&audio)?)),
        Some("gemma4ua") => Some(Audio::Frames(AudioFramesConfig {
            len: audio.need("embedding_length")?,
            rms_norm_eps: AUDIO_EPS,
        })),
        Some(other) => return Err(unknown_projector(other)),
    };
    let towers = Towers { vision: seeing, audio: hearing };
    if towers.is_empty() {
        let what = "`clip.has_vision_encoder` and `clip.has_audio_encoder` are both not set";
        return Err(Error::config(what));
    }
    let dims = [
        towers.vision.as_ref().map(|_| vision.need("projection_dim")).transpose()?,
        towers.audio.as_ref().map(|_| audio.need("projection_dim")).transpose()?,
    ];
    match dims {
        [Some(a), Some(b)] if a != b => Err(Error::config(format!(
            "`clip.vision.projection_dim` is {a}, `clip.audio.projection_dim` {b}"
        ))),
        [a, b] => Ok(Described { towers, text_hidden: a.or(b).unwrap_or(0) }),
    }
}

/// The released numbers, with what the file says of levels.
pub(super) fn media_numbers(file: &Gguf, towers: &Towers) -> Result<MediaNumbers> {
    let mut numbers = MediaNumbers::released(towers);
    let side = Side { file, name: "vision" };
    let (mean, std) = (side.same_in_all_channels("image_mean")?, side.same_in_all_channels("image_std")?);
    if let (Some(mean), Some(std)) = (mean, std) {
        let levels = (1.0 / std, -mean / std);
        if !(levels.0.is_finite() && levels.1.is_finite()) {
            return Err(side.bad("image_std", format!("it is {std}")));
        }
        numbers.levels = (narrow(levels.0), narrow(levels.1));
    }
    Ok(numbers)
}

fn unknown_projector(name: &str) -> Error {
    Error::Unsupported {
        architecture: format!("clip/{name}"),
        advice: "the mmproj files of Gemma 3 and Gemma 4 are read".into(),
    }
}

fn siglip(k: &Side<'_>) -> Result<Siglip> {
    let hidden_size = k.need("embedding_length")?;
    let (image_size, patch_size) = (k.need("image_size")?, k.need("patch_size")?);
    let pool = k.positive("projector.scale_factor")?.unwrap_or(4);
    let side = image_size.checked_div(patch_size).unwrap_or(0);
    if !image_size.is_multiple_of(patch_size) || !side.is_multiple_of(pool) {
        let what = format!("it is {image_size}, in patches of {patch_size}, pooled by {pool}");
        return Err(k.bad("image_size", what));
    }
    Ok(Siglip {
        hidden_size,
        intermediate_size: k.need("feed_forward_length")?,
        n_layers: k.layers()?,
        n_heads: k.heads(hidden_size)?,
        image_size,
        patch_size,
        pool,
        layer_norm_eps: k.eps()?,
        // The converter adds the 1.
        norm_offset: 0.0,
    })
}

fn vision_tower(k: &Side<'_>) -> Result<VisionTower> {
    let hidden_size = k.need("embedding_length")?;
    Ok(VisionTower {
        hidden_size,
        intermediate_size: k.need("feed_forward_length")?,
        n_layers: k.layers()?,
        n_heads: k.need("attention.head_count")?,
        head_dim: k.length("v.blk.0.attn_q_norm.weight", 0)?,
        patch_size: k.need("patch_size")?,
        pool: k.positive("projector.scale_factor")?.unwrap_or(3),
        n_positions: k.length("v.position_embd.weight", 1)?,
        rms_norm_eps: k.eps()?,
        rope_theta: 100.0,
        clipped: true,
        standardise: k.file.tensor("v.std_bias").is_some(),
        // The converter reorders the patch embedding.
        layout: PatchLayout::Planar,
    })
}

fn patches(k: &Side<'_>) -> Result<PatchesConfig> {
    let (patch, pool) = (k.need("patch_size")?, k.positive("projector.scale_factor")?.unwrap_or(3));
    let patch_size = patch.checked_mul(pool).filter(|n| *n < 1 << 16);
    Ok(PatchesConfig {
        hidden_size: k.need("embedding_length")?,
        patch_size: patch_size
            .ok_or_else(|| k.bad("patch_size", format!("it is {patch}, {pool} together")))?,
        n_positions: k.length("v.position_embd.weight", 1)?,
        rms_norm_eps: k.eps()?,
        layout: PatchLayout::Planar,
        tables: PositionTables::Apart,
    })
}

fn audio_tower(k: &Side<'_>) -> Result<AudioTower> {
    let hidden_size = k.need("embedding_length")?;
    Ok(AudioTower {
        hidden_size,
        n_layers: k.layers()?,
        n_heads: k.heads(hidden_size)?,
        n_mels: k.need("num_mel_bins")?,
        conv_channels: [k.length("a.conv1d.0.weight", 0)?, k.length("a.conv1d.1.weight", 0)?],
        conv_kernel: k.length("a.blk.0.conv_dw.weight", 1)?,
        window: 12,
        logit_cap: 50.0,
        residual_weight: 0.5,
        output_size: k.length("a.pre_encode.out.weight", 0)?,
        rms_norm_eps: AUDIO_EPS,
        clipped: true,
        // The converter has taken the softplus.
        softplus: false,
    })
}

/// The keys of seeing or of hearing.
struct Side<'a> {
    file: &'a Gguf,
    name: &'static str,
}

impl<'a> Side<'a> {
    fn key(&self, name: &str) -> String {
        format!("clip.{}.{name}", self.name)
    }

    fn bad(&self, name: &str, what: impl AsRef<str>) -> Error {
        Error::config(format!("`{}`: {}", self.key(name), what.as_ref()))
    }

    /// What kind of tower there is; files with one tower may leave the side out of the key.
    fn projector(&self) -> Result<Option<&'a str>> {
        let there = format!("clip.has_{}_encoder", self.name);
        if !self.file.flag(&there)?.unwrap_or(false) {
            return Ok(None);
        }
        let own = self.file.text(&self.key("projector_type"))?;
        match own.or(self.file.text("clip.projector_type")?) {
            Some(name) => Ok(Some(name)),
            None => Err(Error::config(format!("`{}` is missing", self.key("projector_type")))),
        }
    }

    fn positive(&self, name: &str) -> Result<Option<u32>> {
        match self.file.u32(&self.key(name))? {
            Some(0) => Err(self.bad(name, "it is 0")),
            Some(n) if n >= 1 << 31 => Err(self.bad(name, format!("it is {n}"))),
            n => Ok(n),
        }
    }

    fn need(&self, name: &str) -> Result<u32> {
        let missing = || Error::config(format!("`{}` is missing", self.key(name)));
        self.positive(name)?.ok_or_else(missing)
    }

    fn layers(&self) -> Result<u32> {
        let n = self.need("block_count")?;
        if n > MAX_LAYERS {
            return Err(self.bad("block_count", format!("it is {n}, over {MAX_LAYERS}")));
        }
        Ok(n)
    }

    fn heads(&self, channels: u32) -> Result<u32> {
        let n = self.need("attention.head_count")?;
        if !channels.is_multiple_of(n) {
            let what = format!("{n} heads do not divide {channels} channels");
            return Err(self.bad("attention.head_count", what));
        }
        Ok(n)
    }

    fn eps(&self) -> Result<f32> {
        let name = "attention.layer_norm_epsilon";
        match self.file.float(&self.key(name))? {
            Some(eps) if eps < 0.0 => Err(self.bad(name, "it is negative")),
            eps => Ok(narrow(eps.unwrap_or(1e-6))),
        }
    }

    /// One length of a tensor.
    fn length(&self, tensor: &str, axis: usize) -> Result<u32> {
        let find = |t: &TensorInfo| t.shape.get(axis).copied();
        match self.file.tensor(tensor) {
            None => Err(Error::tensor(tensor, "it is missing")),
            Some(t) => {
                let n = find(t).and_then(|n| u32::try_from(n).ok()).filter(|n| *n < 1 << 31);
                n.ok_or_else(|| Error::tensor(tensor, format!("it has shape {:?}", t.shape)))
            }
        }
    }

    /// A number that stands there once for each of three channels.
    fn same_in_all_channels(&self, name: &str) -> Result<Option<f64>> {
        let Some(values) = self.file.scalars(&self.key(name))? else { return Ok(None) };
        match values.as_slice() {
            [Value::Float(r), Value::Float(g), Value::Float(b)] if r == g && g == b => Ok(Some(*r)),
            _ => Err(self.bad(name, "it is not the same number for three channels")),
        }
    }
}
