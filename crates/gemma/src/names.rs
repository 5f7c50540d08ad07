//! The weights that a configuration needs, under their canonical names.
//!
//! Canonical names are those of a text-only Hugging Face checkpoint, and of a published multimodal
//! one for towers (`towers/weights.rs`); the readers map other spellings onto them.

use crate::config::{DraftConfig, LayerConfig, TextConfig};

/// Canonical name of the token embedding.
pub const EMBED_TOKENS: &str = "model.embed_tokens.weight";
/// Canonical name of the output head of untied models.
pub const LM_HEAD: &str = "lm_head.weight";
/// Canonical name of the per-layer-embedding table.
pub const EMBED_TOKENS_PER_LAYER: &str = "model.embed_tokens_per_layer.weight";
/// Canonical prefix of a drafter's weights beside its target's.
pub const DRAFT_PREFIX: &str = "draft.";

/// One weight that a model may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightSpec {
    /// Canonical name.
    pub name: String,
    /// The shape that the configuration implies.
    pub shape: Vec<u64>,
    /// Whether the model can do without it.
    pub optional: bool,
    /// How it may stand in a file, the likeliest first; empty if only in its own shape.
    pub stored: Vec<Stored>,
}

/// How the numbers of a weight stand in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stored {
    /// In their own order, under these lengths.
    As(Vec<u64>),
    /// Under these lengths, as `outer` matrices `[cols, rows]` of which each is turned to
    /// `[rows, cols]`.
    Turned {
        /// Lengths in the file.
        shape: Vec<u64>,
        /// Matrices.
        outer: u64,
        /// Rows of each, once turned.
        rows: u64,
        /// Columns of each, once turned.
        cols: u64,
    },
}

/// The prefix of a layer's weights: `model.layers.3.`.
pub fn layer(layer_idx: usize) -> String {
    format!("model.layers.{layer_idx}.")
}

/// All weights of a text model.
pub fn text_weights(c: &TextConfig) -> Vec<WeightSpec> {
    let h = u64::from(c.hidden_size);
    let mut specs = Specs(Vec::new());
    specs.need(EMBED_TOKENS, &[c.vocab_size.into(), h]);
    if !c.tie_word_embeddings {
        specs.need(LM_HEAD, &[c.vocab_size.into(), h]);
    }
    specs.need("model.norm.weight", &[h]);
    if let Some(p) = c.per_layer_input {
        let wide = c.layers.len() as u64 * u64::from(p.size);
        specs.need(EMBED_TOKENS_PER_LAYER, &[p.vocab_size.into(), wide]);
        specs.need("model.per_layer_model_projection.weight", &[wide, h]);
        specs.need("model.per_layer_projection_norm.weight", &[p.size.into()]);
    }
    for (i, l) in c.layers.iter().enumerate() {
        layer_weights(&mut specs, c, l, i, l.owns_kv(i));
    }
    specs.0
}

/// All weights of a drafter, without [`DRAFT_PREFIX`].
pub fn draft_weights(c: &DraftConfig) -> Vec<WeightSpec> {
    let h = u64::from(c.text.hidden_size);
    let backbone = u64::from(c.backbone_hidden_size);
    let vocab = u64::from(c.text.vocab_size);
    let mut specs = Specs(Vec::new());
    specs.need(EMBED_TOKENS, &[vocab, h]);
    specs.need("model.norm.weight", &[h]);
    specs.need("pre_projection.weight", &[h, 2 * backbone]);
    specs.need("post_projection.weight", &[backbone, h]);
    if let Some(head) = c.centroids {
        specs.need("masked_embedding.centroids.weight", &[head.n_centroids.into(), h]);
        specs.need("masked_embedding.token_ordering", &[vocab]);
    }
    for (i, l) in c.text.layers.iter().enumerate() {
        layer_weights(&mut specs, &c.text, l, i, false);
    }
    specs.0
}

fn layer_weights(specs: &mut Specs, c: &TextConfig, l: &LayerConfig, i: usize, owns_kv: bool) {
    let h = u64::from(c.hidden_size);
    let p = layer(i);
    let inner = u64::from(l.intermediate_size);
    for norm in [
        "input_layernorm",
        "post_attention_layernorm",
        "pre_feedforward_layernorm",
        "post_feedforward_layernorm",
    ] {
        specs.need(&format!("{p}{norm}.weight"), &[h]);
    }
    specs.linear(&format!("{p}self_attn.q_proj"), l.q_size(), h);
    specs.need(&format!("{p}self_attn.q_norm.weight"), &[l.head_dim.into()]);
    if owns_kv {
        specs.linear(&format!("{p}self_attn.k_proj"), l.kv_size(), h);
        specs.need(&format!("{p}self_attn.k_norm.weight"), &[l.head_dim.into()]);
        if !l.k_eq_v {
            specs.linear(&format!("{p}self_attn.v_proj"), l.kv_size(), h);
        }
    }
    specs.linear(&format!("{p}self_attn.o_proj"), h, l.q_size());
    specs.need(&format!("{p}mlp.gate_proj.weight"), &[inner, h]);
    specs.need(&format!("{p}mlp.up_proj.weight"), &[inner, h]);
    specs.need(&format!("{p}mlp.down_proj.weight"), &[h, inner]);
    if let Some(m) = l.moe {
        let (experts, inner) = (u64::from(m.n_experts), u64::from(m.intermediate_size));
        specs.need(&format!("{p}router.proj.weight"), &[experts, h]);
        specs.need(&format!("{p}router.scale"), &[h]);
        specs.need(&format!("{p}router.per_expert_scale"), &[experts]);
        specs.need(&format!("{p}experts.gate_up_proj"), &[experts, 2 * inner, h]);
        specs.need(&format!("{p}experts.down_proj"), &[experts, h, inner]);
        for norm in [
            "post_feedforward_layernorm_1",
            "post_feedforward_layernorm_2",
            "pre_feedforward_layernorm_2",
        ] {
            specs.need(&format!("{p}{norm}.weight"), &[h]);
        }
    }
    if let Some(ple) = c.per_layer_input {
        let size = u64::from(ple.size);
        specs.need(&format!("{p}per_layer_input_gate.weight"), &[size, h]);
        specs.need(&format!("{p}per_layer_projection.weight"), &[h, size]);
        specs.need(&format!("{p}post_per_layer_input_norm.weight"), &[h]);
    }
    if c.layer_scalar {
        specs.may(&format!("{p}layer_scalar"), &[1]);
    }
}

impl WeightSpec {
    /// How the weight may stand in a file.
    pub fn forms(&self) -> Vec<Stored> {
        if self.stored.is_empty() {
            return vec![Stored::As(self.shape.clone())];
        }
        self.stored.clone()
    }
}

impl Stored {
    /// Lengths in the file.
    pub fn shape(&self) -> &[u64] {
        match self {
            Stored::As(shape) | Stored::Turned { shape, .. } => shape,
        }
    }
}

/// A list of weights in the making.
pub(crate) struct Specs(pub Vec<WeightSpec>);

impl Specs {
    /// A weight that must be there.
    pub fn need(&mut self, name: &str, shape: &[u64]) {
        self.add(name, shape, false, vec![]);
    }

    /// A weight that may be there.
    pub fn may(&mut self, name: &str, shape: &[u64]) {
        self.add(name, shape, true, vec![]);
    }

    /// A weight that must be there, in one of several forms.
    pub fn need_stored(&mut self, name: &str, shape: &[u64], stored: Vec<Stored>) {
        self.add(name, shape, false, stored);
    }

    /// One number that may be there, as a vector or as a tensor without lengths.
    pub fn may_scalar(&mut self, name: &str) {
        self.add(name, &[1], true, vec![Stored::As(vec![]), Stored::As(vec![1])]);
    }

    fn add(&mut self, name: &str, shape: &[u64], optional: bool, stored: Vec<Stored>) {
        self.0.push(WeightSpec { name: name.into(), shape: shape.into(), optional, stored });
    }

    /// A projection of attention, which `attention_bias` may give a bias.
    fn linear(&mut self, name: &str, rows: u64, cols: u64) {
        self.need(&format!("{name}.weight"), &[rows, cols]);
        self.may(&format!("{name}.bias"), &[rows]);
    }
}
