//! The weights that towers need, under the names of published checkpoints.

use super::config::{
    Audio, AudioTower, PatchesConfig, PositionTables, Siglip, Towers, Vision, VisionTower,
};
use crate::names::{Specs, Stored, WeightSpec};

/// What SigLIP's names begin with.
pub(super) const SIGLIP: &str = "vision_tower.vision_model.";
/// What the names of SigLIP's projector begin with.
pub(super) const PROJECTOR: &str = "multi_modal_projector.";
/// What the names of Gemma 4's vision tower begin with.
pub(super) const VISION_TOWER: &str = "model.vision_tower.";
/// What the names of Gemma 4 12B's patches begin with.
pub(super) const VISION_EMBEDDER: &str = "model.vision_embedder.";
/// Gemma 4's last linear of seeing.
pub(super) const EMBED_VISION: &str = "model.embed_vision.embedding_projection";
/// What the names of Gemma 4's audio tower begin with.
pub(super) const AUDIO_TOWER: &str = "model.audio_tower.";
/// Gemma 4's last linear of hearing.
pub(super) const EMBED_AUDIO: &str = "model.embed_audio.embedding_projection";

/// What the names of weights that see begin with, after `model.` or nothing.
pub const VISION_PREFIXES: &[&str] =
    &["vision_tower.", "multi_modal_projector.", "vision_embedder.", "embed_vision."];
/// What the names of weights that hear begin with, after `model.` or nothing.
pub const AUDIO_PREFIXES: &[&str] = &["audio_tower.", "embed_audio."];

/// Whether a name is one of a tower's.
pub fn is_tower_weight(name: &str) -> bool {
    let name = name.strip_prefix("model.").unwrap_or(name);
    VISION_PREFIXES.iter().chain(AUDIO_PREFIXES).any(|p| name.starts_with(p))
}

/// All weights of the towers of a model whose residual stream has `text_hidden` channels.
pub fn tower_weights(towers: &Towers, text_hidden: u32) -> Vec<WeightSpec> {
    let mut specs = Specs(Vec::new());
    let h = u64::from(text_hidden);
    match &towers.vision {
        Some(Vision::Siglip(c)) => siglip(&mut specs, c, h),
        Some(Vision::Tower(c)) => vision_tower(&mut specs, c, h),
        Some(Vision::Patches(c)) => patches(&mut specs, c, h),
        None => {}
    }
    match &towers.audio {
        Some(Audio::Tower(c)) => audio_tower(&mut specs, c, h),
        Some(Audio::Frames(c)) => {
            specs.need(&format!("{EMBED_AUDIO}.weight"), &[h, c.len.into()]);
        }
        None => {}
    }
    specs.0
}

fn siglip(specs: &mut Specs, c: &Siglip, text_hidden: u64) {
    let (h, inner) = (u64::from(c.hidden_size), u64::from(c.intermediate_size));
    let side = u64::from(c.image_size.div_euclid(c.patch_size.max(1)));
    let p = u64::from(c.patch_size);
    specs.need_stored(
        &format!("{SIGLIP}embeddings.patch_embedding.weight"),
        &[h, 3 * p * p],
        vec![
            Stored::As(vec![h, 3, p, p]),
            // MLX has a pixel's channels together.
            Stored::Turned { shape: vec![h, p, p, 3], outer: h, rows: 3, cols: p * p },
        ],
    );
    specs.need(&format!("{SIGLIP}embeddings.patch_embedding.bias"), &[h]);
    specs.need(&format!("{SIGLIP}embeddings.position_embedding.weight"), &[side * side, h]);
    for i in 0..c.n_layers {
        let l = format!("{SIGLIP}encoder.layers.{i}.");
        for norm in ["layer_norm1", "layer_norm2"] {
            norm_with_bias(specs, &format!("{l}{norm}"), h);
        }
        for proj in ["q_proj", "k_proj", "v_proj", "out_proj"] {
            linear_with_bias(specs, &format!("{l}self_attn.{proj}"), h, h);
        }
        linear_with_bias(specs, &format!("{l}mlp.fc1"), inner, h);
        linear_with_bias(specs, &format!("{l}mlp.fc2"), h, inner);
    }
    norm_with_bias(specs, &format!("{SIGLIP}post_layernorm"), h);
    specs.need(&format!("{PROJECTOR}mm_soft_emb_norm.weight"), &[h]);
    // It multiplies from the right, so its rows are a linear's columns.
    specs.need_stored(
        &format!("{PROJECTOR}mm_input_projection_weight"),
        &[text_hidden, h],
        vec![Stored::Turned { shape: vec![h, text_hidden], outer: 1, rows: text_hidden, cols: h }],
    );
}

fn vision_tower(specs: &mut Specs, c: &VisionTower, text_hidden: u64) {
    let (h, inner) = (u64::from(c.hidden_size), u64::from(c.intermediate_size));
    let heads = u64::from(c.n_heads) * u64::from(c.head_dim);
    let (p, n) = (u64::from(c.patch_size), u64::from(c.n_positions));
    specs.need_stored(
        &format!("{VISION_TOWER}patch_embedder.input_proj.weight"),
        &[h, 3 * p * p],
        vec![Stored::As(vec![h, 3 * p * p]), Stored::As(vec![h, 3, p, p])],
    );
    specs.need_stored(
        &format!("{VISION_TOWER}patch_embedder.position_embedding_table"),
        &[2 * n, h],
        vec![Stored::As(vec![2, n, h])],
    );
    for i in 0..c.n_layers {
        let l = format!("{VISION_TOWER}encoder.layers.{i}.");
        for norm in [
            "input_layernorm",
            "post_attention_layernorm",
            "pre_feedforward_layernorm",
            "post_feedforward_layernorm",
        ] {
            specs.need(&format!("{l}{norm}.weight"), &[h]);
        }
        for norm in ["q_norm", "k_norm"] {
            specs.need(&format!("{l}self_attn.{norm}.weight"), &[c.head_dim.into()]);
        }
        for proj in ["q_proj", "k_proj", "v_proj"] {
            clipped(specs, &format!("{l}self_attn.{proj}"), heads, h, c.clipped);
        }
        clipped(specs, &format!("{l}self_attn.o_proj"), h, heads, c.clipped);
        clipped(specs, &format!("{l}mlp.gate_proj"), inner, h, c.clipped);
        clipped(specs, &format!("{l}mlp.up_proj"), inner, h, c.clipped);
        clipped(specs, &format!("{l}mlp.down_proj"), h, inner, c.clipped);
    }
    if c.standardise {
        specs.need(&format!("{VISION_TOWER}std_bias"), &[h]);
        specs.need(&format!("{VISION_TOWER}std_scale"), &[h]);
    }
    specs.need(&format!("{EMBED_VISION}.weight"), &[text_hidden, h]);
}

fn patches(specs: &mut Specs, c: &PatchesConfig, text_hidden: u64) {
    let (h, n, p) = (u64::from(c.hidden_size), u64::from(c.n_positions), u64::from(c.patch_size));
    let patch = 3 * p * p;
    norm_with_bias(specs, &format!("{VISION_EMBEDDER}patch_ln1"), patch);
    linear_with_bias(specs, &format!("{VISION_EMBEDDER}patch_dense"), h, patch);
    norm_with_bias(specs, &format!("{VISION_EMBEDDER}patch_ln2"), h);
    let table = match c.tables {
        PositionTables::Apart => vec![2, n, h],
        PositionTables::ByTurns => vec![n, 2, h],
    };
    let stored = vec![Stored::As(table)];
    specs.need_stored(&format!("{VISION_EMBEDDER}pos_embedding"), &[2 * n, h], stored);
    norm_with_bias(specs, &format!("{VISION_EMBEDDER}pos_norm"), h);
    specs.need(&format!("{EMBED_VISION}.weight"), &[text_hidden, h]);
}

fn audio_tower(specs: &mut Specs, c: &AudioTower, text_hidden: u64) {
    let (h, out) = (u64::from(c.hidden_size), u64::from(c.output_size));
    let sub = format!("{AUDIO_TOWER}subsample_conv_projection.");
    let mut taken = 1u64;
    for (i, made) in c.conv_channels.into_iter().map(u64::from).enumerate() {
        specs.need_stored(
            &format!("{sub}layer{i}.conv.weight"),
            &[made, taken, 3, 3],
            vec![
                Stored::As(vec![made, taken, 3, 3]),
                Stored::Turned {
                    shape: vec![made, 3, 3, taken],
                    outer: made,
                    rows: taken,
                    cols: 9,
                },
            ],
        );
        specs.need(&format!("{sub}layer{i}.norm.weight"), &[made]);
        taken = made;
    }
    let columns = u64::from(c.n_mels.div_ceil(2).div_ceil(2));
    specs.need(&format!("{sub}input_proj_linear.weight"), &[h, columns * taken]);
    for i in 0..c.n_layers {
        conformer_layer(specs, c, &format!("{AUDIO_TOWER}layers.{i}."));
    }
    specs.need(&format!("{AUDIO_TOWER}output_proj.weight"), &[out, h]);
    specs.need(&format!("{AUDIO_TOWER}output_proj.bias"), &[out]);
    specs.need(&format!("{EMBED_AUDIO}.weight"), &[text_hidden, out]);
}

fn conformer_layer(specs: &mut Specs, c: &AudioTower, l: &str) {
    let (h, kernel) = (u64::from(c.hidden_size), u64::from(c.conv_kernel));
    for ff in ["feed_forward1", "feed_forward2"] {
        specs.need(&format!("{l}{ff}.pre_layer_norm.weight"), &[h]);
        clipped(specs, &format!("{l}{ff}.ffw_layer_1"), 4 * h, h, c.clipped);
        clipped(specs, &format!("{l}{ff}.ffw_layer_2"), h, 4 * h, c.clipped);
        specs.need(&format!("{l}{ff}.post_layer_norm.weight"), &[h]);
    }
    for proj in ["q_proj", "k_proj", "v_proj", "post"] {
        clipped(specs, &format!("{l}self_attn.{proj}"), h, h, c.clipped);
    }
    specs.need(&format!("{l}self_attn.relative_k_proj.weight"), &[h, h]);
    let head_dim = u64::from(c.hidden_size.div_euclid(c.n_heads.max(1)));
    specs.need(&format!("{l}self_attn.per_dim_scale"), &[head_dim]);
    for norm in ["norm_pre_attn", "norm_post_attn", "norm_out"] {
        specs.need(&format!("{l}{norm}.weight"), &[h]);
    }
    specs.need(&format!("{l}lconv1d.pre_layer_norm.weight"), &[h]);
    clipped(specs, &format!("{l}lconv1d.linear_start"), 2 * h, h, c.clipped);
    specs.need_stored(
        &format!("{l}lconv1d.depthwise_conv1d.weight"),
        &[h, kernel],
        [vec![h, 1, kernel], vec![h, kernel], vec![h, kernel, 1]].map(Stored::As).to_vec(),
    );
    specs.need(&format!("{l}lconv1d.conv_norm.weight"), &[h]);
    clipped(specs, &format!("{l}lconv1d.linear_end"), h, h, c.clipped);
}

fn norm_with_bias(specs: &mut Specs, name: &str, h: u64) {
    specs.need(&format!("{name}.weight"), &[h]);
    specs.need(&format!("{name}.bias"), &[h]);
}

fn linear_with_bias(specs: &mut Specs, name: &str, rows: u64, cols: u64) {
    specs.need(&format!("{name}.weight"), &[rows, cols]);
    specs.need(&format!("{name}.bias"), &[rows]);
}

/// A linear one level deeper than its name, with the bounds that a checkpoint may have for it.
fn clipped(specs: &mut Specs, name: &str, rows: u64, cols: u64, bounds: bool) {
    specs.need(&format!("{name}.linear.weight"), &[rows, cols]);
    if bounds {
        for bound in ["input_min", "input_max", "output_min", "output_max"] {
            specs.may_scalar(&format!("{name}.{bound}"));
        }
    }
}
