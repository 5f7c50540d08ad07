//! From a configuration and the declarations of its weights to the graphs of a program.
//!
//! One set of block functions serves every member of the family, float or quantised.

use std::collections::BTreeMap;

use lapidary_program::{
    AttentionSpec, DType, Encoding, Graph, GraphBuilder, Metadata, Method, Op, StateDecl, Sym,
    ValueId, ValueType, WeightDecl, input, method, output,
};

use crate::config::{DraftConfig, EmbedScale, LayerConfig, LayerKind, TextConfig};
use crate::error::{Error, Result};
use crate::names::{DRAFT_PREFIX, EMBED_TOKENS, EMBED_TOKENS_PER_LAYER, LM_HEAD, layer};
use crate::towers::{Towers, audio, max_frames, max_patches, vision};

/// The most tokens of one call; backends prefer fewer.
const MAX_CHUNK: u32 = 2048;

/// The graphs and caches of a model.
pub struct Built {
    /// Entry points by name.
    pub methods: BTreeMap<String, Method>,
    /// KV caches.
    pub states: Vec<StateDecl>,
}

/// Builds `forward`, `draft` where there is a drafter, and `vision` and `audio` where there are
/// towers. Of the metadata, the padding and what is said of images and audio matter here.
pub fn build(
    text: &TextConfig,
    draft: Option<&DraftConfig>,
    towers: &Towers,
    metadata: &Metadata,
    weights: &BTreeMap<String, WeightDecl>,
) -> Result<Built> {
    let states = states(text, draft)?;
    let max_chunk = MAX_CHUNK.min(text.max_position_embeddings);
    let mut methods = BTreeMap::new();
    let mut add = |name: &str, max_chunk: u32, graph: Graph| {
        methods.insert(name.to_string(), Method::new(max_chunk, graph));
    };
    // Where soft rows stand, tables are read at the padding.
    let soft_id = (!towers.is_empty()).then(|| metadata.pad_id.unwrap_or(0));
    add(method::FORWARD, max_chunk, forward(text, soft_id, weights, &states)?);
    if let Some(draft) = draft {
        let target = DraftTarget::of(text, weights)?;
        add(method::DRAFT, max_chunk, draft_step(&target, draft, weights, &states)?);
    }
    if let (Some(tower), Some(image)) = (&towers.vision, &metadata.media.image) {
        add(method::VISION, max_patches(image), vision(tower, weights)?);
    }
    if let (Some(tower), Some(spec)) = (&towers.audio, &metadata.media.audio) {
        add(method::AUDIO, max_frames(spec), audio(tower, weights)?);
    }
    Ok(Built { methods, states })
}

/// One cache per layer that owns its keys and values.
///
/// A drafter looks further back than its target. All sliding caches are then as wide as it needs,
/// not only those that it reads: caches of one window share their pages.
fn states(text: &TextConfig, draft: Option<&DraftConfig>) -> Result<Vec<StateDecl>> {
    let widest = draft.map_or(0, widest_window);
    let owners = text.layers.iter().enumerate().filter(|(i, l)| l.owns_kv(*i));
    let states = owners.map(|(i, l)| StateDecl {
        name: cache(i),
        n_kv_heads: l.n_kv_heads,
        head_dim: l.head_dim,
        window: l.window.map(|w| w.max(widest).min(text.max_position_embeddings)),
    });
    Ok(states.collect())
}

fn cache(layer_idx: usize) -> String {
    format!("kv.{layer_idx}")
}

/// Keys that the sliding layers of a drafter see at most.
pub(crate) fn widest_window(draft: &DraftConfig) -> u32 {
    draft.text.layers.iter().filter_map(|l| l.window).max().map_or(0, draft_window)
}

/// A drafter's query stands at the position after the newest key and sees the last `window + 1`
/// keys: all `k > p − (window + 2)`.
fn draft_window(window: u32) -> u32 {
    window.saturating_add(2)
}

/// With `soft_id`, soft rows may take the place of embeddings.
fn forward(
    c: &TextConfig,
    soft_id: Option<u32>,
    weights: &BTreeMap<String, WeightDecl>,
    states: &[StateDecl],
) -> Result<Graph> {
    let mut g = GraphBuilder::new(weights, states);
    let tokens = g.input(input::TOKENS, ValueType::indices(Sym::Tokens));
    let rows = g.input(input::ROWS, ValueType::indices(Sym::Rows));
    let soft = soft_id.map(|id| Soft {
        id,
        index: g.input(input::SOFT_INDEX, ValueType::indices(Sym::Tokens)),
        rows: g.input(input::SOFT, ValueType::rows(Sym::Soft, c.hidden_size.into())),
    });

    let mut b = Blocks { g, c, weights, prefix: String::new() };
    let scale = embed_scale(c, weights, EMBED_TOKENS, c.hidden_size)?;
    let embed = Op::embed(EMBED_TOKENS, scale);
    let mut x = b.node("model.embed_tokens", embed, &[tokens])?;
    if let Some(soft) = &soft {
        x = b.node("model.soft_merge", Op::SoftMerge, &[x, soft.index, soft.rows])?;
    }
    let per_layer = b.per_layer_inputs(tokens, x, soft.as_ref())?;
    for (i, l) in c.layers.iter().enumerate() {
        let source = KvUse {
            owned: l.owns_kv(i),
            owns_keys: true,
            state: cache(l.kv_source),
            window: l.window,
        };
        x = b.layer(i, l, x, &source, per_layer)?;
    }
    let x = b.node("model.rows", Op::GatherRows, &[x, rows])?;
    let hidden = b.norm("model.norm", "model.norm", x, c.hidden_size)?;
    let head = if c.tie_word_embeddings { EMBED_TOKENS } else { LM_HEAD };
    let mut logits =
        b.node("lm_head", Op::Linear { weight: head.into(), bias: None }, &[hidden])?;
    if let Some(cap) = c.final_logit_softcapping {
        logits = b.node("final_logit_softcapping", Op::SoftCap { cap }, &[logits])?;
    }
    b.g.output(output::LOGITS, logits);
    b.g.output(output::HIDDEN, hidden);
    Ok(b.g.finish())
}

/// What a drafter's graph takes of its target.
pub(crate) struct DraftTarget {
    /// Channels of the residual stream.
    pub hidden_size: u32,
    /// Rows of the vocabulary.
    pub vocab_size: u32,
    /// How a token becomes a row.
    pub embed: Op,
    /// The cache that sliding layers read.
    pub sliding: Option<String>,
    /// The cache that full layers read.
    pub full: Option<String>,
}

impl DraftTarget {
    fn of(target: &TextConfig, weights: &BTreeMap<String, WeightDecl>) -> Result<Self> {
        let scale = embed_scale(target, weights, EMBED_TOKENS, target.hidden_size)?;
        Ok(DraftTarget {
            hidden_size: target.hidden_size,
            vocab_size: target.vocab_size,
            embed: Op::embed(EMBED_TOKENS, scale),
            sliding: target.last_owner(LayerKind::Sliding).map(cache),
            full: target.last_owner(LayerKind::Full).map(cache),
        })
    }
}

/// One step of the drafter: the target's embedding of the last token beside the target's (or the
/// previous step's) hidden row, through layers that own no keys.
pub(crate) fn draft_step(
    target: &DraftTarget,
    d: &DraftConfig,
    weights: &BTreeMap<String, WeightDecl>,
    states: &[StateDecl],
) -> Result<Graph> {
    if (d.backbone_hidden_size, d.text.vocab_size) != (target.hidden_size, target.vocab_size) {
        return Err(Error::config(format!(
            "the drafter is made for a target of hidden size {} and vocabulary {}, not {} and {}",
            d.backbone_hidden_size, d.text.vocab_size, target.hidden_size, target.vocab_size
        )));
    }
    let mut g = GraphBuilder::new(weights, states);
    let tokens = g.input(input::TOKENS, ValueType::indices(Sym::Tokens));
    let wide = u64::from(target.hidden_size);
    let previous = g.input(input::HIDDEN, ValueType::rows(Sym::Tokens, wide));

    let mut b = Blocks { g, c: &d.text, weights, prefix: DRAFT_PREFIX.to_string() };
    let embedded = b.node("target.embed_tokens", target.embed.clone(), &[tokens])?;
    let both = b.node("draft.input", Op::Concat, &[embedded, previous])?;
    let mut x = b.linear("pre_projection", both)?;
    for (i, l) in d.text.layers.iter().enumerate() {
        let owner = match l.kind {
            LayerKind::Sliding => &target.sliding,
            LayerKind::Full => &target.full,
        };
        let state = owner.clone().ok_or_else(|| {
            Error::config(format!("drafter layer {i} is {:?}, the target has none", l.kind))
        })?;
        let window = l.window.map(draft_window);
        let source = KvUse { owned: false, owns_keys: false, state, window };
        x = b.layer(i, l, x, &source, None)?;
    }
    let y = b.norm("model.norm", "model.norm", x, d.text.hidden_size)?;
    let embedding = format!("{DRAFT_PREFIX}{EMBED_TOKENS}");
    let head = match d.centroids {
        Some(head) => Op::CentroidHead {
            centroids: format!("{DRAFT_PREFIX}masked_embedding.centroids.weight"),
            ordering: format!("{DRAFT_PREFIX}masked_embedding.token_ordering"),
            embedding,
            top: head.top_k,
        },
        None => Op::Linear { weight: embedding, bias: None },
    };
    let logits = b.node("lm_head", head, &[y])?;
    let hidden = b.linear("post_projection", y)?;
    b.g.output(output::LOGITS, logits);
    b.g.output(output::HIDDEN, hidden);
    Ok(b.g.finish())
}

/// Rows that take the place of embeddings.
struct Soft {
    /// The token whose row of other tables is read there.
    id: u32,
    index: ValueId,
    rows: ValueId,
}

/// Which cache a layer reads, whether it writes it, whether its model has written it, and how much
/// of it it sees.
struct KvUse {
    owned: bool,
    owns_keys: bool,
    state: String,
    window: Option<u32>,
}

struct Blocks<'a> {
    g: GraphBuilder<'a>,
    c: &'a TextConfig,
    weights: &'a BTreeMap<String, WeightDecl>,
    prefix: String,
}

impl Blocks<'_> {
    fn layer(
        &mut self,
        i: usize,
        l: &LayerConfig,
        x: ValueId,
        source: &KvUse,
        per_layer: Option<ValueId>,
    ) -> Result<ValueId> {
        let p = layer(i);
        let hidden = self.c.hidden_size;
        let h = self.norm(&p, "input_layernorm", x, hidden)?;
        let a = self.attention(&format!("{p}self_attn."), l, h, source)?;
        let a = self.norm(&p, "post_attention_layernorm", a, hidden)?;
        let x = self.add(&format!("{p}attention_residual"), x, a)?;

        let h = self.norm(&p, "pre_feedforward_layernorm", x, hidden)?;
        let mut m = self.mlp(&format!("{p}mlp."), h)?;
        if l.moe.is_some() {
            let dense = self.norm(&p, "post_feedforward_layernorm_1", m, hidden)?;
            let sparse = self.experts(&p, l, x)?;
            let sparse = self.norm(&p, "post_feedforward_layernorm_2", sparse, hidden)?;
            m = self.add(&format!("{p}moe_sum"), dense, sparse)?;
        }
        let m = self.norm(&p, "post_feedforward_layernorm", m, hidden)?;
        let mut x = self.add(&format!("{p}mlp_residual"), x, m)?;

        if let (Some(all), Some(ple)) = (per_layer, self.c.per_layer_input) {
            let start = i as u32 * ple.size;
            let slice = Op::Slice { start, len: ple.size };
            let own = self.node(&format!("{p}per_layer_input"), slice, &[all])?;
            let gate = self.linear(&format!("{p}per_layer_input_gate"), x)?;
            let gated = self.node(&format!("{p}per_layer_act"), Op::GeluGate, &[gate, own])?;
            let y = self.linear(&format!("{p}per_layer_projection"), gated)?;
            let y = self.norm(&p, "post_per_layer_input_norm", y, hidden)?;
            x = self.add(&format!("{p}per_layer_residual"), x, y)?;
        }
        let scalar = format!("{}{p}layer_scalar", self.prefix);
        if self.c.layer_scalar && self.weights.contains_key(&scalar) {
            x = self.node(&format!("{p}layer_scalar"), Op::ScaleBy { weight: scalar }, &[x])?;
        }
        Ok(x)
    }

    fn attention(
        &mut self,
        p: &str,
        l: &LayerConfig,
        h: ValueId,
        source: &KvUse,
    ) -> Result<ValueId> {
        let rope = Op::Rope(l.rope);
        if source.owned {
            let k_raw = self.linear(&format!("{p}k_proj"), h)?;
            let v_raw = if l.k_eq_v { k_raw } else { self.linear(&format!("{p}v_proj"), h)? };
            let k = self.norm(p, "k_norm", k_raw, l.head_dim)?;
            let k = self.node(&format!("{p}k_rope"), rope.clone(), &[k])?;
            let v = if self.c.v_norm {
                let norm = Op::RmsNorm {
                    weight: None,
                    eps: self.c.rms_norm_eps,
                    offset: 0.0,
                    width: l.head_dim,
                };
                self.node(&format!("{p}v_norm"), norm, &[v_raw])?
            } else {
                v_raw
            };
            let write = Op::KvWrite { state: source.state.clone() };
            self.node(&format!("{p}kv_write"), write, &[k, v])?;
        }
        let q = self.linear(&format!("{p}q_proj"), h)?;
        let q = self.norm(p, "q_norm", q, l.head_dim)?;
        let q = self.node(&format!("{p}q_rope"), rope, &[q])?;
        let spec = AttentionSpec {
            n_heads: l.n_heads,
            n_kv_heads: l.n_kv_heads,
            head_dim: l.head_dim,
            scale: l.attention_scale,
            window: source.window.map(|w| w.min(self.c.max_position_embeddings)),
            bidirectional: source.owns_keys && l.bidirectional_blocks,
            own_key: source.owns_keys,
        };
        let attention = Op::Attention { state: source.state.clone(), spec };
        let a = self.node(&format!("{p}attention"), attention, &[q])?;
        self.linear(&format!("{p}o_proj"), a)
    }

    fn mlp(&mut self, p: &str, h: ValueId) -> Result<ValueId> {
        let gate = self.linear(&format!("{p}gate_proj"), h)?;
        let up = self.linear(&format!("{p}up_proj"), h)?;
        let act = self.node(&format!("{p}act"), Op::GeluGate, &[gate, up])?;
        self.linear(&format!("{p}down_proj"), act)
    }

    /// The experts beside the MLP. The router looks at the residual stream itself.
    fn experts(&mut self, p: &str, l: &LayerConfig, x: ValueId) -> Result<ValueId> {
        let hidden = self.c.hidden_size;
        let moe = l.moe.ok_or_else(|| Error::config("a layer without experts"))?;
        let norm =
            Op::RmsNorm { weight: None, eps: self.c.rms_norm_eps, offset: 0.0, width: hidden };
        let r = self.node(&format!("{p}router.norm"), norm, &[x])?;
        let weight = format!("{}{p}router.scale", self.prefix);
        let r = self.node(&format!("{p}router.scale"), Op::ScaleBy { weight }, &[r])?;
        let factor = (f64::from(hidden).powf(-0.5)) as f32;
        let r = self.node(&format!("{p}router.root"), Op::Scale { factor }, &[r])?;
        let router = Op::Router {
            weight: format!("{}{p}router.proj.weight", self.prefix),
            expert_scale: format!("{}{p}router.per_expert_scale", self.prefix),
            top_k: moe.top_k,
        };
        let chosen = self.node(&format!("{p}router"), router, &[r])?;
        let chosen_weights = ValueId(chosen.0 + 1);
        let h = self.norm(p, "pre_feedforward_layernorm_2", x, hidden)?;
        let experts = Op::Experts {
            gate_up: format!("{}{p}experts.gate_up_proj", self.prefix),
            down: format!("{}{p}experts.down_proj", self.prefix),
        };
        self.node(&format!("{p}experts"), experts, &[h, chosen, chosen_weights])
    }

    /// The per-layer inputs of all layers side by side, `[T, layers·size]`.
    fn per_layer_inputs(
        &mut self,
        tokens: ValueId,
        x: ValueId,
        soft: Option<&Soft>,
    ) -> Result<Option<ValueId>> {
        let Some(ple) = self.c.per_layer_input else { return Ok(None) };
        let weight = EMBED_TOKENS_PER_LAYER.to_string();
        let scale = embed_scale(self.c, self.weights, &weight, ple.size)?;
        let soft_id = soft.map(|s| s.id);
        let embed = Op::Embed { weight, scale, start: 0, stride: 1, soft_id };
        let inputs: Vec<ValueId> = [tokens].into_iter().chain(soft.map(|s| s.index)).collect();
        let looked_up = self.node("model.embed_tokens_per_layer", embed, &inputs)?;
        let projected = self.linear("model.per_layer_model_projection", x)?;
        let factor = f64::from(self.c.hidden_size).powf(-0.5) as f32;
        let scale = Op::Scale { factor };
        let projected = self.node("model.per_layer_model_projection_scale", scale, &[projected])?;
        let context = self.norm("model.", "per_layer_projection_norm", projected, ple.size)?;
        let sum = self.add("model.per_layer_sum", context, looked_up)?;
        let factor = std::f32::consts::FRAC_1_SQRT_2;
        Ok(Some(self.node("model.per_layer_inputs", Op::Scale { factor }, &[sum])?))
    }

    /// A norm with a weight. `p` is the prefix of its name, or its whole name for `model.norm`.
    fn norm(&mut self, p: &str, name: &str, x: ValueId, width: u32) -> Result<ValueId> {
        let name = if p == name { name.to_string() } else { format!("{p}{name}") };
        let op = Op::RmsNorm {
            weight: Some(format!("{}{name}.weight", self.prefix)),
            eps: self.c.rms_norm_eps,
            offset: self.c.norm_offset,
            width,
        };
        self.node(&name, op, &[x])
    }

    fn linear(&mut self, name: &str, x: ValueId) -> Result<ValueId> {
        let weight = format!("{}{name}.weight", self.prefix);
        let bias = format!("{}{name}.bias", self.prefix);
        let bias = self.weights.contains_key(&bias).then_some(bias);
        self.node(name, Op::Linear { weight, bias }, &[x])
    }

    fn add(&mut self, name: &str, a: ValueId, b: ValueId) -> Result<ValueId> {
        self.node(name, Op::Add, &[a, b])
    }

    fn node(&mut self, name: &str, op: Op, inputs: &[ValueId]) -> Result<ValueId> {
        Ok(self.g.node(name, op, inputs)?)
    }
}

/// `sqrt(width)`, rounded to the table's own type where the checkpoint's makers do that.
fn embed_scale(
    c: &TextConfig,
    weights: &BTreeMap<String, WeightDecl>,
    table: &str,
    width: u32,
) -> Result<f32> {
    let exact = f64::from(width).sqrt() as f32;
    let decl = weights.get(table).ok_or_else(|| Error::tensor(table, "it is missing"))?;
    let dtype = match (c.embed_scale, decl.encoding) {
        (EmbedScale::StoredType, Encoding::Dense(dtype)) | (EmbedScale::Rounded(dtype), _) => dtype,
        (EmbedScale::StoredType, Encoding::Quant(_)) | (EmbedScale::Exact, _) => DType::F32,
    };
    Ok(match dtype {
        DType::Bf16 => half::bf16::from_f32(exact).to_f32(),
        DType::F16 => half::f16::from_f32(exact).to_f32(),
        _ => exact,
    })
}
