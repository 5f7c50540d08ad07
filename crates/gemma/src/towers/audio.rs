//! The method `audio`: frames of one audio clip in, soft rows out.
//!
//! Frames that hold no audio are not fed, so there is no mask: what a convolution sees beyond the
//! last frame is its own border of zeros.

use std::collections::BTreeMap;

use lapidary_program::{
    Activation, Graph, LocalAttentionSpec, Op, Sym, ValueId, ValueType, WeightDecl, input,
};

use super::config::{Audio, AudioFramesConfig, AudioTower};
use super::graph::Tower;
use super::weights::{AUDIO_TOWER, EMBED_AUDIO};
use crate::error::Result;

/// Builds the graph.
pub(crate) fn audio(c: &Audio, weights: &BTreeMap<String, WeightDecl>) -> Result<Graph> {
    match c {
        Audio::Tower(c) => tower(c, weights),
        Audio::Frames(c) => frames(c, weights),
    }
}

fn tower(c: &AudioTower, weights: &BTreeMap<String, WeightDecl>) -> Result<Graph> {
    let mut t = Tower::new(weights, c.rms_norm_eps);
    let frames = t.input(input::FRAMES, ValueType::rows(Sym::Frames, c.n_mels.into()));
    let mut x = subsample(&mut t, c, frames)?;
    for i in 0..c.n_layers {
        x = layer(&mut t, c, &format!("{AUDIO_TOWER}layers.{i}."), x)?;
    }
    let x = t.linear(&format!("{AUDIO_TOWER}output_proj"), x)?;
    let soft = embed(&mut t, x, c.output_size)?;
    Ok(t.finish(soft))
}

/// Two convolutions, each of which halves frames and columns.
fn subsample(t: &mut Tower<'_>, c: &AudioTower, frames: ValueId) -> Result<ValueId> {
    let p = format!("{AUDIO_TOWER}subsample_conv_projection.");
    let (mut x, mut width) = (frames, c.n_mels);
    for (i, channels) in c.conv_channels.into_iter().enumerate() {
        let l = format!("{p}layer{i}.");
        let conv = Op::Conv2d { weight: format!("{l}conv.weight"), width };
        x = t.node(&format!("{l}conv"), conv, &[x])?;
        x = t.layer_norm(&format!("{l}norm"), x, channels, c.rms_norm_eps)?;
        x = t.activate(&format!("{l}act"), x, Activation::Relu)?;
        width = width.div_ceil(2);
    }
    t.linear(&format!("{p}input_proj_linear"), x)
}

fn layer(t: &mut Tower<'_>, c: &AudioTower, l: &str, x: ValueId) -> Result<ValueId> {
    let hidden = c.hidden_size;
    let x = feed_forward(t, c, &format!("{l}feed_forward1."), x)?;

    let h = t.rms_norm(&format!("{l}norm_pre_attn"), x, hidden)?;
    let a = attention(t, c, &format!("{l}self_attn."), h)?;
    let a = t.rms_norm(&format!("{l}norm_post_attn"), a, hidden)?;
    let x = t.add(&format!("{l}attention_residual"), x, a)?;

    let x = light_conv(t, c, &format!("{l}lconv1d."), x)?;
    let x = feed_forward(t, c, &format!("{l}feed_forward2."), x)?;
    t.rms_norm(&format!("{l}norm_out"), x, hidden)
}

fn feed_forward(t: &mut Tower<'_>, c: &AudioTower, p: &str, x: ValueId) -> Result<ValueId> {
    let h = t.rms_norm(&format!("{p}pre_layer_norm"), x, c.hidden_size)?;
    let h = t.clipped(&format!("{p}ffw_layer_1"), h)?;
    let h = t.activate(&format!("{p}act"), h, Activation::Silu)?;
    let h = t.clipped(&format!("{p}ffw_layer_2"), h)?;
    let h = t.rms_norm(&format!("{p}post_layer_norm"), h, c.hidden_size)?;
    let h = t.scale(&format!("{p}residual_weight"), h, c.residual_weight)?;
    t.add(&format!("{p}residual"), x, h)
}

fn attention(t: &mut Tower<'_>, c: &AudioTower, p: &str, h: ValueId) -> Result<ValueId> {
    let q = t.clipped(&format!("{p}q_proj"), h)?;
    let k = t.clipped(&format!("{p}k_proj"), h)?;
    let v = t.clipped(&format!("{p}v_proj"), h)?;
    let head_dim = c.hidden_size.div_euclid(c.n_heads.max(1));
    // Softplus of 0 is ln 2: a vector of zeros leaves queries scaled as usual.
    let ln2 = std::f64::consts::LN_2;
    let spec = LocalAttentionSpec {
        n_heads: c.n_heads,
        head_dim,
        window: c.window,
        cap: c.logit_cap,
        q_scale: (f64::from(head_dim).powf(-0.5) / ln2) as f32,
        k_scale: ((1.0 + std::f64::consts::E).ln() / ln2) as f32,
        per_dim_scale: format!("{p}per_dim_scale"),
        softplus: c.softplus,
        relative: format!("{p}relative_k_proj.weight"),
    };
    let a = t.node(&format!("{p}attention"), Op::LocalAttention(spec), &[q, k, v])?;
    t.clipped(&format!("{p}post"), a)
}

fn light_conv(t: &mut Tower<'_>, c: &AudioTower, p: &str, x: ValueId) -> Result<ValueId> {
    let (hidden, len) = (c.hidden_size, c.hidden_size);
    let h = t.rms_norm(&format!("{p}pre_layer_norm"), x, hidden)?;
    let both = t.clipped(&format!("{p}linear_start"), h)?;
    let h = t.node(&format!("{p}value"), Op::Slice { start: 0, len }, &[both])?;
    let gate = t.node(&format!("{p}gate"), Op::Slice { start: hidden, len }, &[both])?;
    let h = t.node(&format!("{p}glu"), Op::SigmoidGate, &[h, gate])?;
    let conv = Op::CausalConv1d { weight: format!("{p}depthwise_conv1d.weight") };
    let h = t.node(&format!("{p}depthwise_conv1d"), conv, &[h])?;
    let h = t.rms_norm(&format!("{p}conv_norm"), h, hidden)?;
    let h = t.activate(&format!("{p}act"), h, Activation::Silu)?;
    let h = t.clipped(&format!("{p}linear_end"), h)?;
    t.add(&format!("{p}residual"), x, h)
}

fn frames(c: &AudioFramesConfig, weights: &BTreeMap<String, WeightDecl>) -> Result<Graph> {
    let mut t = Tower::new(weights, c.rms_norm_eps);
    let frames = t.input(input::FRAMES, ValueType::rows(Sym::Frames, c.len.into()));
    let soft = embed(&mut t, frames, c.len)?;
    Ok(t.finish(soft))
}

/// A norm without a weight, then the linear into the model.
fn embed(t: &mut Tower<'_>, x: ValueId, width: u32) -> Result<ValueId> {
    let x = t.bare_norm("model.embed_audio.embedding_pre_projection_norm", x, width)?;
    t.linear(EMBED_AUDIO, x)
}
