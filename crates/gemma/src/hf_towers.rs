//! `vision_config` and `audio_config` of a `config.json`.
//!
//! The defaults are those of transformers' configuration classes.

use lapidary_program::PatchLayout;

use crate::config::MAX_LAYERS;
use crate::error::{Error, Result};
use crate::json_fields::{Fields, narrow};
use crate::towers::{
    Audio, AudioFramesConfig, AudioTower, PatchesConfig, PositionTables, Siglip, Towers, Vision,
    VisionTower,
};

/// Reads what a model of this type has besides its text side.
pub(crate) fn read(model_type: &str, top: &Fields<'_>) -> Result<Towers> {
    let vision = top.object("vision_config")?;
    let audio = top.object("audio_config")?;
    Ok(match model_type {
        "gemma3" => {
            let tokens = top.positive("mm_tokens_per_image", 256)?;
            let siglip = vision.map(|f| siglip(&f, tokens)).transpose()?;
            Towers { vision: siglip.map(Vision::Siglip), audio: None }
        }
        "gemma4" => Towers {
            vision: vision.map(|f| vision_tower(&f)).transpose()?.map(Vision::Tower),
            audio: audio.map(|f| audio_tower(&f)).transpose()?.map(Audio::Tower),
        },
        "gemma4_unified" => Towers {
            vision: vision.map(|f| patches(&f)).transpose()?.map(Vision::Patches),
            audio: audio.map(|f| frames(&f)).transpose()?.map(Audio::Frames),
        },
        _ => Towers::default(),
    })
}

fn siglip(f: &Fields<'_>, tokens: u32) -> Result<Siglip> {
    activation(f, "hidden_act", "gelu_pytorch_tanh")?;
    if f.int("num_channels", 3)? != 3 {
        return Err(Error::config("num_channels of vision_config is not 3"));
    }
    let image_size = f.positive("image_size", 224)?;
    let patch_size = f.positive("patch_size", 16)?;
    let hidden_size = f.positive("hidden_size", 768)?;
    let n_heads = heads(f, 12, hidden_size)?;
    let (patches, side) = (image_size.div_euclid(patch_size), tokens.isqrt());
    let fits = side.checked_mul(side) == Some(tokens)
        && image_size.is_multiple_of(patch_size)
        && patches.is_multiple_of(side);
    if !fits {
        return Err(Error::config(format!(
            "mm_tokens_per_image {tokens} of an image of {patches} × {patches} patches"
        )));
    }
    Ok(Siglip {
        hidden_size,
        intermediate_size: f.positive("intermediate_size", 3072)?,
        n_layers: layers(f, 12)?,
        n_heads,
        image_size,
        patch_size,
        pool: patches.div_euclid(side),
        layer_norm_eps: eps(f, "layer_norm_eps")?,
        norm_offset: 1.0,
    })
}

fn vision_tower(f: &Fields<'_>) -> Result<VisionTower> {
    activation(f, "hidden_activation", "gelu_pytorch_tanh")?;
    let n_heads = f.positive("num_attention_heads", 12)?;
    let n_kv_heads = f.positive("num_key_value_heads", n_heads)?;
    if n_kv_heads != n_heads {
        return Err(Error::config(format!(
            "vision_config has {n_heads} attention heads and {n_kv_heads} key-value heads; as many \
             of both are run"
        )));
    }
    if f.flag("attention_bias", false)? {
        return Err(Error::config("attention_bias of vision_config is not run"));
    }
    let rope_theta = match f.object("rope_parameters")? {
        Some(rope) => {
            match rope.text("rope_type")?.as_deref() {
                None | Some("default" | "axial") => {}
                Some(other) => {
                    let what = format!("rope type `{other}` of vision_config is not run here");
                    return Err(Error::config(what));
                }
            }
            rope.number("rope_theta", 100.0)?
        }
        None => 100.0,
    };
    if !(rope_theta.is_finite() && rope_theta > 0.0) {
        return Err(Error::config(format!("rope_theta {rope_theta} of vision_config")));
    }
    Ok(VisionTower {
        hidden_size: f.positive("hidden_size", 768)?,
        intermediate_size: f.positive("intermediate_size", 3072)?,
        n_layers: layers(f, 16)?,
        n_heads,
        head_dim: f.positive("head_dim", 64)?,
        patch_size: f.positive("patch_size", 16)?,
        pool: f.positive("pooling_kernel_size", 3)?,
        n_positions: f.positive("position_embedding_size", 10_240)?,
        rms_norm_eps: eps(f, "rms_norm_eps")?,
        rope_theta,
        clipped: f.flag("use_clipped_linears", false)?,
        standardise: f.flag("standardize", false)?,
        layout: PatchLayout::Interleaved,
    })
}

fn patches(f: &Fields<'_>) -> Result<PatchesConfig> {
    let patch = f.positive("patch_size", 16)?;
    let pool = f.positive("pooling_kernel_size", 3)?;
    let patch_size = patch.checked_mul(pool).filter(|n| *n < 1 << 16);
    if let (Some(n), Some(given)) = (patch_size, f.get("model_patch_size"))
        && f.int("model_patch_size", n)? != n
    {
        return Err(Error::config(format!(
            "model_patch_size {given} of vision_config is not {patch} × {pool}"
        )));
    }
    let hidden_size = f.positive("mm_embed_dim", 3840)?;
    let projected = f.positive("output_proj_dims", hidden_size)?;
    if projected != hidden_size {
        return Err(Error::config(format!(
            "output_proj_dims {projected} of vision_config is not mm_embed_dim {hidden_size}"
        )));
    }
    Ok(PatchesConfig {
        hidden_size,
        patch_size: patch_size
            .ok_or_else(|| Error::config(format!("patches of {patch} × {pool} pixels")))?,
        n_positions: f.positive("mm_posemb_size", 1120)?,
        rms_norm_eps: eps(f, "rms_norm_eps")?,
        layout: PatchLayout::Interleaved,
        tables: PositionTables::ByTurns,
    })
}

fn audio_tower(f: &Fields<'_>) -> Result<AudioTower> {
    activation(f, "hidden_act", "silu")?;
    let hidden_size = f.positive("hidden_size", 1024)?;
    let n_heads = heads(f, 8, hidden_size)?;
    let left = f.positive("attention_context_left", 13)?;
    let chunk = f.positive("attention_chunk_size", 12)?;
    let right = f.int("attention_context_right", 0)?;
    let window = left.saturating_sub(1);
    // Chunks are only a way to compute the window, as long as distances fit in one.
    if window == 0 || chunk != window || right != 0 {
        return Err(Error::config(format!(
            "audio_config has attention in chunks of {chunk} with {left} before and {right} after; \
             chunks as long as the context before, and nothing after, are run"
        )));
    }
    let conv_channels = channels(f)?;
    Ok(AudioTower {
        hidden_size,
        n_layers: layers(f, 12)?,
        n_heads,
        // transformers has no key for it: the linear after the convolutions takes as many columns
        // as the first of them makes channels.
        n_mels: conv_channels[0],
        conv_channels,
        conv_kernel: f.positive("conv_kernel_size", 5)?,
        window,
        logit_cap: positive(f, "attention_logit_cap", 50.0)?,
        residual_weight: positive(f, "residual_weight", 0.5)?,
        output_size: f.positive("output_proj_dims", 1536)?,
        rms_norm_eps: eps(f, "rms_norm_eps")?,
        clipped: f.flag("use_clipped_linears", true)?,
        softplus: true,
    })
}

fn frames(f: &Fields<'_>) -> Result<AudioFramesConfig> {
    let len = f.positive("audio_embed_dim", 640)?;
    // Other names of the same number, of which the last one counts in transformers.
    for name in ["hidden_size", "output_proj_dims", "audio_samples_per_token"] {
        let other = f.positive(name, len)?;
        if other != len {
            return Err(Error::config(format!(
                "{name} {other} of audio_config is not audio_embed_dim {len}"
            )));
        }
    }
    Ok(AudioFramesConfig {
        len,
        rms_norm_eps: eps(f, "rms_norm_eps")?,
    })
}

fn channels(f: &Fields<'_>) -> Result<[u32; 2]> {
    let key = "subsampling_conv_channels";
    let Some(list) = f.get(key) else { return Ok([128, 32]) };
    let number = |i: usize| {
        let n = list.get(i).and_then(serde_json::Value::as_u64);
        n.and_then(|n| u32::try_from(n).ok()).filter(|n| *n > 0 && *n < 1 << 16)
    };
    match (number(0), number(1), list.get(2)) {
        (Some(first), Some(second), None) => Ok([first, second]),
        _ => Err(Error::config(format!("{key} is {list}, not two positive numbers"))),
    }
}

fn activation(f: &Fields<'_>, key: &str, run: &str) -> Result<()> {
    match f.text(key)?.as_deref() {
        Some(other) if other != run => {
            Err(Error::config(format!("{key} `{other}` of a tower is not run here")))
        }
        _ => Ok(()),
    }
}

fn layers(f: &Fields<'_>, default: u32) -> Result<u32> {
    let n = f.positive("num_hidden_layers", default)?;
    if n > MAX_LAYERS {
        return Err(Error::config(format!("num_hidden_layers of a tower is {n}")));
    }
    Ok(n)
}

/// Heads that divide the channels among them.
fn heads(f: &Fields<'_>, default: u32, channels: u32) -> Result<u32> {
    let n = f.positive("num_attention_heads", default)?;
    if !channels.is_multiple_of(n) {
        return Err(Error::config(format!("{n} heads of a tower of {channels} channels")));
    }
    Ok(n)
}

fn eps(f: &Fields<'_>, key: &str) -> Result<f32> {
    let eps = f.number(key, 1e-6)?;
    if !(eps.is_finite() && eps >= 0.0) {
        return Err(Error::config(format!("{key} {eps} must not be negative")));
    }
    Ok(narrow(eps))
}

fn positive(f: &Fields<'_>, key: &str, default: f64) -> Result<f32> {
    let x = f.number(key, default)?;
    if !(x.is_finite() && x > 0.0) {
        return Err(Error::config(format!("{key} {x} must be positive")));
    }
    Ok(narrow(x))
}
