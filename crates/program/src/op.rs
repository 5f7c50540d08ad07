//! The op set: small, each one a thing that backends have fast kernels for.
//!
//! Activations are `f32` values of shape `[length, channels]`; indices are `i32` values.
//! `reference` holds the meaning of each op in a file of the same stem; `rules.rs` its shapes.

use serde::{Deserialize, Serialize};

/// Names of method inputs that the runner feeds.
pub mod input {
    /// `[T]` token ids.
    pub const TOKENS: &str = "tokens";
    /// `[T]` the KV slot of each token.
    pub const SLOTS: &str = "slots";
    /// `[T]` the position of each token in its slot.
    pub const POSITIONS: &str = "positions";
    /// `[T]` the last position that each token may see in a bidirectional block; its own position
    /// for ordinary text.
    pub const HORIZONS: &str = "horizons";
    /// `[R]` which of the `T` tokens reach the output head.
    pub const ROWS: &str = "rows";
    /// `[T]` the soft row that replaces each token's embedding, or −1.
    pub const SOFT_INDEX: &str = "soft_index";
    /// `[S, hidden]` soft rows, made by `vision` or `audio`.
    pub const SOFT: &str = "soft";
    /// `[T, hidden]` the target's hidden rows, for `draft`.
    pub const HIDDEN: &str = "hidden";
}

/// Rotary position embedding over heads of `head_dim`, half-split: pair `i` couples elements `i`
/// and `i + head_dim/2`.
///
/// `angle(i) = position · theta^(−2i/head_dim) / factor` for `i < rotated_pairs`, else 0.
/// That covers the default, the linear and the proportional kind.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RopeSpec {
    /// Elements of one head.
    pub head_dim: u32,
    /// Base of the frequencies.
    pub theta: f64,
    /// Pairs that rotate; the rest pass unchanged.
    pub rotated_pairs: u32,
    /// Divides every frequency.
    pub factor: f64,
}

/// Attention of queries over a KV cache.
///
/// A query at position `p` with horizon `h` sees the key at position `k` iff
/// `k ≤ (bidirectional ? max(p, h) : p)` and, with a window `W`, `k > p − W`.
/// Masks are this predicate and nothing else; no mask is ever added to a score.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AttentionSpec {
    /// Query heads.
    pub n_heads: u32,
    /// Key and value heads; divides `n_heads`.
    pub n_kv_heads: u32,
    /// Elements of one head.
    pub head_dim: u32,
    /// Multiplies every score.
    pub scale: f32,
    /// Keys that a query sees, itself included; `None` for all.
    pub window: Option<u32>,
    /// Whether the horizon counts.
    pub bidirectional: bool,
}

/// One operation. Weights are named; values are the node's inputs, in the order given here.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Op {
    /// `ids [T] → [T, C]`: rows of a table `[V, C]`, times `scale`.
    /// With `soft_id`, a second input `soft_index [T]` says where to read row `soft_id` instead.
    Embed {
        /// Table `[V, C]`.
        weight: String,
        /// Multiplies every row.
        scale: f32,
        /// Row that is read at soft positions.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        soft_id: Option<u32>,
    },
    /// `x [T, C], soft_index [T], soft [S, C] → [T, C]`: soft rows replace rows of `x`.
    SoftMerge,
    /// `x [_, K] → [_, N]`: `x · Wᵀ (+ b)`, `W [N, K]`.
    Linear {
        /// Matrix `[N, K]`.
        weight: String,
        /// Vector `[N]`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        bias: Option<String>,
    },
    /// `x [_, C] → [_, C]`: each run of `width` channels becomes
    /// `x / sqrt(mean(x²) + eps) · (offset + w)`; without a weight the last factor is 1.
    RmsNorm {
        /// Vector `[width]`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        weight: Option<String>,
        /// Added under the root.
        eps: f32,
        /// Added to the weight: 1 in Gemma 3 checkpoints, else 0.
        offset: f32,
        /// Channels that are normalised together; divides `C`.
        width: u32,
    },
    /// `x [T, heads·head_dim], positions [T] → same`.
    Rope(RopeSpec),
    /// `k [T, heads·D], v [T, heads·D], slots [T], positions [T] → nothing`: writes a cache.
    KvWrite {
        /// The cache.
        state: String,
    },
    /// `q [T, heads·D], slots [T], positions [T] (, horizons [T]) → [T, heads·D]`, over a cache
    /// that already holds this call's keys. The fourth input is there iff `bidirectional`.
    Attention {
        /// The cache.
        state: String,
        /// Heads, scale and mask.
        spec: AttentionSpec,
    },
    /// `gate, up → gelu_tanh(gate) · up`.
    GeluGate,
    /// `a, b → a + b`.
    Add,
    /// `x → x · factor`.
    Scale {
        /// The factor.
        factor: f32,
    },
    /// `x [_, C] → x · w`, `w` of `[C]` or `[1]`.
    ScaleBy {
        /// Vector `[C]` or `[1]`.
        weight: String,
    },
    /// `x → cap · tanh(x / cap)`.
    SoftCap {
        /// The cap.
        cap: f32,
    },
    /// `x [_, C] → [_, len]`: channels `start .. start + len`.
    Slice {
        /// First channel.
        start: u32,
        /// Number of channels.
        len: u32,
    },
    /// `a [_, A], b [_, B] → [_, A + B]`.
    Concat,
    /// `x [T, C], rows [R] → [R, C]`.
    GatherRows,
    /// `x [T, C] → experts i32 [T, top_k], weights [T, top_k]`: softmax over `W·x`, the `top_k`
    /// largest (lowest index first among equals), renormalised, times `expert_scale`.
    Router {
        /// Matrix `[E, C]`.
        weight: String,
        /// Vector `[E]`.
        expert_scale: String,
        /// Experts per token.
        top_k: u32,
    },
    /// `x [T, C], experts [T, k], weights [T, k] → [T, C]`: weighted sum over the chosen experts
    /// of `down · (gelu_tanh(gate) · up)`.
    Experts {
        /// `[E, 2·I, C]`, gate rows first.
        gate_up: String,
        /// `[E, C, I]`.
        down: String,
    },
    /// `x [_, C] → [_, V]`: logits of the tokens under the `top` best centroids; every other logit
    /// is the least of those, minus 1.
    CentroidHead {
        /// Matrix `[n_centroids, C]`.
        centroids: String,
        /// `i64 [V]`: token ids, `V / n_centroids` for each centroid in turn.
        ordering: String,
        /// Matrix `[V, C]`.
        embedding: String,
        /// Centroids that are looked into.
        top: u32,
    },
}

impl Op {
    /// The op's name, as in `program.json` and as the stem of its files.
    pub fn kind(&self) -> &'static str {
        match self {
            Op::Embed { .. } => "embed",
            Op::SoftMerge => "soft_merge",
            Op::Linear { .. } => "linear",
            Op::RmsNorm { .. } => "rms_norm",
            Op::Rope(_) => "rope",
            Op::KvWrite { .. } => "kv_write",
            Op::Attention { .. } => "attention",
            Op::GeluGate => "gelu_gate",
            Op::Add => "add",
            Op::Scale { .. } => "scale",
            Op::ScaleBy { .. } => "scale_by",
            Op::SoftCap { .. } => "soft_cap",
            Op::Slice { .. } => "slice",
            Op::Concat => "concat",
            Op::GatherRows => "gather_rows",
            Op::Router { .. } => "router",
            Op::Experts { .. } => "experts",
            Op::CentroidHead { .. } => "centroid_head",
        }
    }

    /// Names of the weights that the op reads.
    pub fn weights(&self) -> Vec<&str> {
        match self {
            Op::Embed { weight, .. } | Op::ScaleBy { weight } => vec![weight],
            Op::Linear { weight, bias } => {
                std::iter::once(weight.as_str()).chain(bias.as_deref()).collect()
            }
            Op::RmsNorm { weight, .. } => weight.as_deref().into_iter().collect(),
            Op::Router { weight, expert_scale, .. } => vec![weight, expert_scale],
            Op::Experts { gate_up, down } => vec![gate_up, down],
            Op::CentroidHead { centroids, ordering, embedding, .. } => {
                vec![centroids, ordering, embedding]
            }
            _ => vec![],
        }
    }

    /// Number of values that the op makes.
    pub fn n_outputs(&self) -> usize {
        match self {
            Op::KvWrite { .. } => 0,
            Op::Router { .. } => 2,
            _ => 1,
        }
    }
}
