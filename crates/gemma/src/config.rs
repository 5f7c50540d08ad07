//! A Gemma as a table of values.
//!
//! Everything that differs between members of the family is a field here; `build.rs` has one set
//! of block functions for all of them. The fields are filled from a Hugging Face `config.json`
//! (`hf_config.rs`) or from GGUF metadata (`gguf/import.rs`).

use lapidary_program::{DType, RopeSpec, SamplingDefaults};

use crate::error::{Error, Result};

/// What Google recommends for every member of the family.
pub const SAMPLING: SamplingDefaults =
    SamplingDefaults { temperature: 1.0, top_k: 64, top_p: 0.95 };

/// The text side of a Gemma.
#[derive(Clone, Debug, PartialEq)]
pub struct TextConfig {
    /// The checkpoint's own word: `gemma3_text`, `gemma4_unified`.
    pub architecture: String,
    /// Rows of the embedding.
    pub vocab_size: u32,
    /// Channels of the residual stream.
    pub hidden_size: u32,
    /// Under every root of a norm.
    pub rms_norm_eps: f32,
    /// Added to every norm weight: 1 in Gemma 3 checkpoints, 0 in Gemma 4 and in GGUF files.
    pub norm_offset: f32,
    /// Whether values are normalised (without a weight) before they are cached.
    pub v_norm: bool,
    /// Whether each layer ends by multiplying the residual stream with a stored scalar.
    pub layer_scalar: bool,
    /// Positions that the model was made for.
    pub max_position_embeddings: u32,
    /// `cap·tanh(logits/cap)` at the end.
    pub final_logit_softcapping: Option<f32>,
    /// Whether the output head is the embedding.
    pub tie_word_embeddings: bool,
    /// Per-layer embeddings.
    pub per_layer_input: Option<PerLayerInput>,
    /// The layers, first to last.
    pub layers: Vec<LayerConfig>,
    /// The embedding's factor, where it is not the square root of `hidden_size` rounded to the
    /// embedding's own type.
    pub embed_scale: EmbedScale,
}

/// How the factor of the embedding is rounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EmbedScale {
    /// To the type that the table is stored in, as transformers does.
    StoredType,
    /// To this type: what those who quantised the table compute in.
    Rounded(DType),
    /// Not at all, as GGUF loaders do.
    Exact,
}

/// Per-layer embeddings: a second table whose rows feed every layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PerLayerInput {
    /// Channels per layer.
    pub size: u32,
    /// Rows of the table.
    pub vocab_size: u32,
}

/// Whether a layer sees everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerKind {
    /// The last `sliding_window` positions.
    Sliding,
    /// Every position.
    Full,
}

/// One layer.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerConfig {
    /// Sliding or full.
    pub kind: LayerKind,
    /// Positions that are seen; `None` on full layers.
    pub window: Option<u32>,
    /// Query heads.
    pub n_heads: u32,
    /// Key and value heads.
    pub n_kv_heads: u32,
    /// Elements of one head.
    pub head_dim: u32,
    /// Multiplies every attention score.
    pub attention_scale: f32,
    /// Rotary embedding.
    pub rope: RopeSpec,
    /// Whether the value is the key's raw projection.
    pub k_eq_v: bool,
    /// The layer whose keys and values are used: its own number, or a lower one.
    pub kv_source: usize,
    /// Inner channels of the dense MLP.
    pub intermediate_size: u32,
    /// Experts beside the dense MLP.
    pub moe: Option<MoeConfig>,
    /// Whether image blocks are seen whole.
    pub bidirectional_blocks: bool,
}

/// The experts of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MoeConfig {
    /// How many there are.
    pub n_experts: u32,
    /// How many a token uses.
    pub top_k: u32,
    /// Inner channels of one.
    pub intermediate_size: u32,
}

/// A drafter: a small stack that reads the caches of its target.
#[derive(Clone, Debug, PartialEq)]
pub struct DraftConfig {
    /// Its layers; every `kv_source` is meaningless here.
    pub text: TextConfig,
    /// Channels of the target's residual stream.
    pub backbone_hidden_size: u32,
    /// The centroid head, if it has one.
    pub centroids: Option<CentroidConfig>,
}

impl DraftConfig {
    /// Whether it was made for this target.
    pub fn fits(&self, target: &TextConfig) -> bool {
        self.backbone_hidden_size == target.hidden_size && self.text.vocab_size == target.vocab_size
    }
}

/// A head that looks only into the best clusters of the vocabulary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CentroidConfig {
    /// Clusters.
    pub n_centroids: u32,
    /// Clusters that are looked into.
    pub top_k: u32,
}

/// More layers than this are a lie.
pub(crate) const MAX_LAYERS: u32 = 1024;

/// Where layer `layer_idx` finds its keys and values when only the first `n_owners` layers have
/// their own: at itself, or at the last owner of its kind.
pub(crate) fn kv_source(kinds: &[LayerKind], n_owners: usize, layer_idx: usize) -> Result<usize> {
    if layer_idx < n_owners {
        return Ok(layer_idx);
    }
    let kind = kinds.get(layer_idx);
    kinds.iter().take(n_owners).rposition(|owner| Some(owner) == kind).ok_or_else(|| {
        Error::config(format!("layer {layer_idx} shares keys, but no layer of its kind owns any"))
    })
}

impl LayerConfig {
    /// Whether the layer computes and caches its own keys and values.
    pub fn owns_kv(&self, layer_idx: usize) -> bool {
        self.kv_source == layer_idx
    }

    /// Query channels.
    pub fn q_size(&self) -> u64 {
        u64::from(self.n_heads) * u64::from(self.head_dim)
    }

    /// Key or value channels.
    pub fn kv_size(&self) -> u64 {
        u64::from(self.n_kv_heads) * u64::from(self.head_dim)
    }
}

impl TextConfig {
    /// The last layer of a kind that owns its cache: what KV-sharing layers and drafters read.
    pub fn last_owner(&self, kind: LayerKind) -> Option<usize> {
        self.layers
            .iter()
            .enumerate()
            .filter(|(i, l)| l.kind == kind && l.owns_kv(*i))
            .map(|(i, _)| i)
            .next_back()
    }
}
