//! The method `vision`: patches of one image in, soft rows out.
//!
//! The patches of one soft token follow each other, so pooling is a mean of runs of rows.

use std::collections::BTreeMap;

use lapidary_program::{
    Activation, AxialRopeSpec, Graph, Op, Sym, ValueId, ValueType, WeightDecl, input,
};

use super::config::{PatchesConfig, PositionTables, Siglip, Vision, VisionTower};
use super::graph::Tower;
use super::weights::{EMBED_VISION, PROJECTOR, SIGLIP, VISION_EMBEDDER, VISION_TOWER};
use crate::error::Result;

/// PyTorch's default, which the norms of bare patches have.
const LAYER_NORM_EPS: f32 = 1e-5;

/// Builds the graph.
pub(crate) fn vision(c: &Vision, weights: &BTreeMap<String, WeightDecl>) -> Result<Graph> {
    match c {
        Vision::Siglip(c) => siglip(c, weights),
        Vision::Tower(c) => tower(c, weights),
        Vision::Patches(c) => patches(c, weights),
    }
}

fn patch_values(patch_size: u32) -> ValueType {
    let p = u64::from(patch_size);
    ValueType::rows(Sym::Patches, 3 * p * p)
}

fn siglip(c: &Siglip, weights: &BTreeMap<String, WeightDecl>) -> Result<Graph> {
    let mut t = Tower::new(weights, c.layer_norm_eps);
    let patches = t.input(input::PATCHES, patch_values(c.patch_size));
    let index = t.input(input::PATCH_INDEX, ValueType::indices(Sym::Patches));

    let embeddings = format!("{SIGLIP}embeddings.");
    let x = t.linear(&format!("{embeddings}patch_embedding"), patches)?;
    let table = format!("{embeddings}position_embedding.weight");
    let place = t.positions(&format!("{embeddings}position_embedding"), &table, index, (0, 1))?;
    let mut x = t.add(&format!("{embeddings}sum"), x, place)?;
    for i in 0..c.n_layers {
        x = siglip_layer(&mut t, c, &format!("{SIGLIP}encoder.layers.{i}."), x)?;
    }
    let x = t.layer_norm(&format!("{SIGLIP}post_layernorm"), x, c.hidden_size, c.layer_norm_eps)?;
    let size = c.pool.saturating_mul(c.pool);
    let x = t.node(&format!("{PROJECTOR}avg_pool"), Op::PoolRows { size }, &[x])?;
    let norm = format!("{PROJECTOR}mm_soft_emb_norm");
    let weight = Some((format!("{norm}.weight"), c.norm_offset));
    let x = t.rms_norm_as(&norm, x, c.hidden_size, weight)?;
    let weight = format!("{PROJECTOR}mm_input_projection_weight");
    let linear = Op::Linear { weight, bias: None };
    let soft = t.node(&format!("{PROJECTOR}mm_input_projection"), linear, &[x])?;
    Ok(t.finish(soft))
}

fn siglip_layer(t: &mut Tower<'_>, c: &Siglip, l: &str, x: ValueId) -> Result<ValueId> {
    let h = t.layer_norm(&format!("{l}layer_norm1"), x, c.hidden_size, c.layer_norm_eps)?;
    let q = t.linear(&format!("{l}self_attn.q_proj"), h)?;
    let k = t.linear(&format!("{l}self_attn.k_proj"), h)?;
    let v = t.linear(&format!("{l}self_attn.v_proj"), h)?;
    let head_dim = c.hidden_size.div_euclid(c.n_heads.max(1));
    let scale = f64::from(head_dim).powf(-0.5) as f32;
    let attention = Op::SelfAttention { n_heads: c.n_heads, head_dim, scale };
    let a = t.node(&format!("{l}self_attn.attention"), attention, &[q, k, v])?;
    let a = t.linear(&format!("{l}self_attn.out_proj"), a)?;
    let x = t.add(&format!("{l}attention_residual"), x, a)?;

    let h = t.layer_norm(&format!("{l}layer_norm2"), x, c.hidden_size, c.layer_norm_eps)?;
    let m = t.linear(&format!("{l}mlp.fc1"), h)?;
    let m = t.activate(&format!("{l}mlp.act"), m, Activation::GeluTanh)?;
    let m = t.linear(&format!("{l}mlp.fc2"), m)?;
    t.add(&format!("{l}mlp_residual"), x, m)
}

/// Where each patch stands.
struct Place {
    x: ValueId,
    y: ValueId,
}

fn tower(c: &VisionTower, weights: &BTreeMap<String, WeightDecl>) -> Result<Graph> {
    let mut t = Tower::new(weights, c.rms_norm_eps);
    let patches = t.input(input::PATCHES, patch_values(c.patch_size));
    let columns = t.input(input::PATCH_X, ValueType::indices(Sym::Patches));
    let rows = t.input(input::PATCH_Y, ValueType::indices(Sym::Patches));
    let place = Place { x: columns, y: rows };

    let embedder = format!("{VISION_TOWER}patch_embedder.");
    let x = t.linear(&format!("{embedder}input_proj"), patches)?;
    let table = format!("{embedder}position_embedding_table");
    let mut x = add_positions(&mut t, &table, x, &place, (0, c.n_positions), 1)?;
    for i in 0..c.n_layers {
        x = tower_layer(&mut t, c, &format!("{VISION_TOWER}encoder.layers.{i}."), x, &place)?;
    }
    let size = c.pool.saturating_mul(c.pool);
    let x = t.node(&format!("{VISION_TOWER}pooler"), Op::PoolRows { size }, &[x])?;
    let root = f64::from(c.hidden_size).sqrt() as f32;
    let mut x = t.scale(&format!("{VISION_TOWER}pooler.root"), x, root)?;
    if c.standardise {
        let (bias, scale) = (format!("{VISION_TOWER}std_bias"), format!("{VISION_TOWER}std_scale"));
        let standardise = Op::Standardise { bias, scale };
        x = t.node(&format!("{VISION_TOWER}standardise"), standardise, &[x])?;
    }
    let soft = embed(&mut t, x, c.hidden_size)?;
    Ok(t.finish(soft))
}

fn tower_layer(
    t: &mut Tower<'_>,
    c: &VisionTower,
    l: &str,
    x: ValueId,
    place: &Place,
) -> Result<ValueId> {
    let hidden = c.hidden_size;
    let h = t.rms_norm(&format!("{l}input_layernorm"), x, hidden)?;
    let a = tower_attention(t, c, &format!("{l}self_attn."), h, place)?;
    let a = t.rms_norm(&format!("{l}post_attention_layernorm"), a, hidden)?;
    let x = t.add(&format!("{l}attention_residual"), x, a)?;

    let h = t.rms_norm(&format!("{l}pre_feedforward_layernorm"), x, hidden)?;
    let gate = t.clipped(&format!("{l}mlp.gate_proj"), h)?;
    let up = t.clipped(&format!("{l}mlp.up_proj"), h)?;
    let act = t.node(&format!("{l}mlp.act"), Op::GeluGate, &[gate, up])?;
    let m = t.clipped(&format!("{l}mlp.down_proj"), act)?;
    let m = t.rms_norm(&format!("{l}post_feedforward_layernorm"), m, hidden)?;
    t.add(&format!("{l}mlp_residual"), x, m)
}

fn tower_attention(
    t: &mut Tower<'_>,
    c: &VisionTower,
    p: &str,
    h: ValueId,
    place: &Place,
) -> Result<ValueId> {
    let rope = Op::AxialRope(AxialRopeSpec { head_dim: c.head_dim, theta: c.rope_theta });
    let turned = |t: &mut Tower<'_>, of: &str| {
        let y = t.clipped(&format!("{p}{of}_proj"), h)?;
        let y = t.rms_norm(&format!("{p}{of}_norm"), y, c.head_dim)?;
        t.node(&format!("{p}{of}_rope"), rope.clone(), &[y, place.x, place.y])
    };
    let q = turned(t, "q")?;
    let k = turned(t, "k")?;
    let v = t.clipped(&format!("{p}v_proj"), h)?;
    let v = t.bare_norm(&format!("{p}v_norm"), v, c.head_dim)?;
    let attention = Op::SelfAttention { n_heads: c.n_heads, head_dim: c.head_dim, scale: 1.0 };
    let a = t.node(&format!("{p}attention"), attention, &[q, k, v])?;
    t.clipped(&format!("{p}o_proj"), a)
}

fn patches(c: &PatchesConfig, weights: &BTreeMap<String, WeightDecl>) -> Result<Graph> {
    let mut t = Tower::new(weights, c.rms_norm_eps);
    let values = patch_values(c.patch_size);
    let patch = values.channels() as u32;
    let patches = t.input(input::PATCHES, values);
    let columns = t.input(input::PATCH_X, ValueType::indices(Sym::Patches));
    let rows = t.input(input::PATCH_Y, ValueType::indices(Sym::Patches));
    let place = Place { x: columns, y: rows };

    let e = VISION_EMBEDDER;
    let x = t.layer_norm(&format!("{e}patch_ln1"), patches, patch, LAYER_NORM_EPS)?;
    let x = t.linear(&format!("{e}patch_dense"), x)?;
    let x = t.layer_norm(&format!("{e}patch_ln2"), x, c.hidden_size, LAYER_NORM_EPS)?;
    let (second, stride) = match c.tables {
        PositionTables::Apart => (c.n_positions, 1),
        PositionTables::ByTurns => (1, 2),
    };
    let table = format!("{e}pos_embedding");
    let x = add_positions(&mut t, &table, x, &place, (0, second), stride)?;
    let x = t.layer_norm(&format!("{e}pos_norm"), x, c.hidden_size, LAYER_NORM_EPS)?;
    let soft = embed(&mut t, x, c.hidden_size)?;
    Ok(t.finish(soft))
}

/// Adds a column's row and a row's row of a table that holds both.
fn add_positions(
    t: &mut Tower<'_>,
    table: &str,
    x: ValueId,
    place: &Place,
    starts: (u32, u32),
    stride: u32,
) -> Result<ValueId> {
    let column = t.positions(&format!("{table}.x"), table, place.x, (starts.0, stride))?;
    let row = t.positions(&format!("{table}.y"), table, place.y, (starts.1, stride))?;
    let both = t.add(&format!("{table}.sum"), column, row)?;
    t.add(&format!("{table}.added"), x, both)
}

/// A norm without a weight, then the linear into the model.
fn embed(t: &mut Tower<'_>, x: ValueId, width: u32) -> Result<ValueId> {
    let x = t.bare_norm("model.embed_vision.embedding_pre_projection_norm", x, width)?;
    t.linear(EMBED_VISION, x)
}
