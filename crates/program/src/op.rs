//! The op set: small, each one a thing that backends have fast kernels for.
//!
//! Activations are `f32` values of shape `[length, channels]`; indices are `i32` values.
//! `reference` holds the meaning of each op in a file of the same stem; `rules.rs` its shapes.

use serde::{Deserialize, Serialize};

/// Names of method inputs that the runner feeds. Where a token stands (its sequence, position and
/// horizon) is no input: it belongs to the call, and ops that depend on it take it from there.
pub mod input {
    /// `[T]` token ids.
    pub const TOKENS: &str = "tokens";
    /// `[R]` which of the `T` tokens reach the output head.
    pub const ROWS: &str = "rows";
    /// `[T]` the soft row that replaces each token's embedding, or −1.
    pub const SOFT_INDEX: &str = "soft_index";
    /// `[S, hidden]` soft rows, made by `vision` or `audio`.
    pub const SOFT: &str = "soft";
    /// `[T, hidden]` the target's hidden rows, for `draft`.
    pub const HIDDEN: &str = "hidden";
    /// `[P, channels]` the patches of one image, for `vision`.
    pub const PATCHES: &str = "patches";
    /// `[P]` the number of each patch, row by row in the image.
    pub const PATCH_INDEX: &str = "patch_index";
    /// `[P]` the column of each patch.
    pub const PATCH_X: &str = "patch_x";
    /// `[P]` the row of each patch.
    pub const PATCH_Y: &str = "patch_y";
    /// `[F, channels]` the frames of one audio clip, for `audio`.
    pub const FRAMES: &str = "frames";
}

/// Names of method outputs that the runner asks for.
pub mod output {
    /// `[R, vocab]` the score of every token as the next one.
    pub const LOGITS: &str = "logits";
    /// `[R, hidden]` the rows that the logits were made of; `draft` continues from them.
    pub const HIDDEN: &str = "hidden";
    /// `[S, hidden]` soft rows, made by `vision` or `audio`.
    pub const SOFT: &str = "soft";
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
/// `k ≤ (bidirectional ? max(p, h) : p)` and, with a window `W`, `k > p − W`; without its own key,
/// `k < p` instead. Masks are this predicate and nothing else; no mask is ever added to a score.
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
    /// Whether a query sees the key at its own position. A method that writes no keys (`draft`)
    /// stands one position after the newest key, and does not.
    pub own_key: bool,
}

/// Rotary position embedding in two directions: the first half of each head turns by the column,
/// the second by the row, each half on its own as [`RopeSpec`] has it, all pairs rotating.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AxialRopeSpec {
    /// Elements of one head; a multiple of 4.
    pub head_dim: u32,
    /// Base of the frequencies.
    pub theta: f64,
}

/// Attention of each row over itself and the rows just before it, by their distance.
///
/// With `q′ = q · q_scale · s` and `k′ = k · k_scale`, the score of a query at row `t` for the key
/// at row `t − d` is `cap · tanh((q′·k′ + q′·R(d)) / cap)`, for `0 ≤ d < window`.
/// `s` is `per_dim_scale`, the same for every head, or its softplus.
/// `R(d) = W · [sin(d·τ), cos(d·τ)]` with `τᵢ = 10⁴^(−i/(C/2 − 1))`, `i < C/2`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LocalAttentionSpec {
    /// Heads of queries, keys and values.
    pub n_heads: u32,
    /// Elements of one head.
    pub head_dim: u32,
    /// Keys that a query sees, itself included.
    pub window: u32,
    /// Bounds every score.
    pub cap: f32,
    /// Multiplies queries.
    pub q_scale: f32,
    /// Multiplies keys.
    pub k_scale: f32,
    /// Vector `[head_dim]`.
    pub per_dim_scale: String,
    /// Whether queries are multiplied by the softplus of that vector.
    pub softplus: bool,
    /// `W`, a matrix `[n_heads·head_dim, C]`, `C` even and at least 4.
    pub relative: String,
}

/// A function of one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activation {
    /// `0.5·x·(1 + tanh(√(2/π)·(x + 0.044715·x³)))`.
    GeluTanh,
    /// `x / (1 + e^−x)`.
    Silu,
    /// `max(x, 0)`.
    Relu,
}

/// One operation. Weights are named; values are the node's inputs, in the order given here.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Op {
    /// `ids [T] → [T, C]`: rows `start + stride·id` of a table `[V, C]`, times `scale`.
    /// With `soft_id`, a second input `soft_index [T]` says where to read row `soft_id` instead.
    /// Ids are an input of the method: `tokens` or the place of a patch.
    Embed {
        /// Table `[V, C]`.
        weight: String,
        /// Multiplies every row.
        scale: f32,
        /// The row of id 0.
        #[serde(default, skip_serializing_if = "is_zero")]
        start: u32,
        /// Rows from one id to the next.
        #[serde(default = "one", skip_serializing_if = "is_one")]
        stride: u32,
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
    /// `x [_, C] → [_, C]`: each run of `width` channels becomes
    /// `(x − mean) / sqrt(variance + eps) · w + b`; without a bias the last term is 0.
    LayerNorm {
        /// Vector `[width]`.
        weight: String,
        /// Vector `[width]`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        bias: Option<String>,
        /// Added under the root.
        eps: f32,
        /// Channels that are normalised together; divides `C`.
        width: u32,
    },
    /// `x [T, heads·head_dim] → same`, by the position of each token.
    Rope(RopeSpec),
    /// `x [P, heads·head_dim], columns [P], rows [P] → same`.
    AxialRope(AxialRopeSpec),
    /// `k [T, heads·D], v [T, heads·D] → nothing`: writes a cache, each token at its position.
    KvWrite {
        /// The cache.
        state: String,
    },
    /// `q [T, heads·D] → [T, heads·D]`, each token over what the cache holds of its sequence; with
    /// `own_key`, the cache already holds this call's keys.
    Attention {
        /// The cache.
        state: String,
        /// Heads, scale and mask.
        spec: AttentionSpec,
    },
    /// `q, k, v [P, heads·head_dim] → same`: every row attends to every row of the call, with
    /// scores `scale · q·k`.
    SelfAttention {
        /// Heads of queries, keys and values.
        n_heads: u32,
        /// Elements of one head.
        head_dim: u32,
        /// Multiplies every score.
        scale: f32,
    },
    /// `q, k, v [F, heads·head_dim] → same`: every row attends to itself and a few before it.
    LocalAttention(LocalAttentionSpec),
    /// `x [F, width·I] → [F/2, width/2·O]`, lengths rounded up: a 3×3 convolution of stride 2 over
    /// rows and columns, with a border of one zero. A column's channels follow each other.
    Conv2d {
        /// `[O, I, 3, 3]`: output, input, row, column.
        weight: String,
        /// Columns.
        width: u32,
    },
    /// `x [F, C] → [F, C]`: `y[t] = Σ_k w[:, k] · x[t − K + 1 + k]` in each channel by itself; rows
    /// before the first are zero.
    CausalConv1d {
        /// Matrix `[C, K]`.
        weight: String,
    },
    /// `x [P, C] → [P/size, C]`: the mean of each run of `size` rows. `P` is a multiple of `size`.
    PoolRows {
        /// Rows of one run.
        size: u32,
    },
    /// `gate, up → gelu_tanh(gate) · up`.
    GeluGate,
    /// `x, gate → x · sigmoid(gate)`.
    SigmoidGate,
    /// `x → f(x)`.
    Activate {
        /// `f`.
        function: Activation,
    },
    /// `x → min(max(x, low), high)`.
    Clamp {
        /// Vector `[1]`.
        low: String,
        /// Vector `[1]`.
        high: String,
    },
    /// `x [_, C] → (x − bias) · scale`.
    Standardise {
        /// Vector `[C]`.
        bias: String,
        /// Vector `[C]`.
        scale: String,
    },
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
    /// Rows of a table by their number, times `scale`.
    pub fn embed(weight: impl Into<String>, scale: f32) -> Self {
        Op::Embed { weight: weight.into(), scale, start: 0, stride: 1, soft_id: None }
    }

    /// The op's name, as in `program.json` and as the stem of its files.
    pub fn kind(&self) -> &'static str {
        match self {
            Op::Embed { .. } => "embed",
            Op::SoftMerge => "soft_merge",
            Op::Linear { .. } => "linear",
            Op::RmsNorm { .. } => "rms_norm",
            Op::LayerNorm { .. } => "layer_norm",
            Op::Rope(_) => "rope",
            Op::AxialRope(_) => "axial_rope",
            Op::KvWrite { .. } => "kv_write",
            Op::Attention { .. } => "attention",
            Op::SelfAttention { .. } => "self_attention",
            Op::LocalAttention(_) => "local_attention",
            Op::Conv2d { .. } => "conv2d",
            Op::CausalConv1d { .. } => "causal_conv1d",
            Op::PoolRows { .. } => "pool_rows",
            Op::GeluGate => "gelu_gate",
            Op::SigmoidGate => "sigmoid_gate",
            Op::Activate { .. } => "activate",
            Op::Clamp { .. } => "clamp",
            Op::Standardise { .. } => "standardise",
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
            Op::Embed { weight, .. }
            | Op::ScaleBy { weight }
            | Op::Conv2d { weight, .. }
            | Op::CausalConv1d { weight } => vec![weight],
            Op::Linear { weight, bias } => {
                std::iter::once(weight.as_str()).chain(bias.as_deref()).collect()
            }
            Op::RmsNorm { weight, .. } => weight.as_deref().into_iter().collect(),
            Op::LayerNorm { weight, bias, .. } => {
                std::iter::once(weight.as_str()).chain(bias.as_deref()).collect()
            }
            Op::LocalAttention(spec) => vec![&spec.per_dim_scale, &spec.relative],
            Op::Clamp { low, high } => vec![low, high],
            Op::Standardise { bias, scale } => vec![bias, scale],
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

fn one() -> u32 {
    1
}

// serde hands references to these.
fn is_zero(n: &u32) -> bool {
    *n == 0
}

fn is_one(n: &u32) -> bool {
    *n == 1
}
