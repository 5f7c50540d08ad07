//! GGUF metadata as a [`TextConfig`].
//!
//! Keys stand under the architecture's name. What llama.cpp's converter leaves out has the value
//! that its loader assumes. Some facts stand in no key: the vocabulary's size is that of the
//! embedding, values that equal keys are told by a missing tensor, and rotated pairs by a tensor
//! of frequency factors.

use lapidary_program::RopeSpec;

use super::keys::{Family, Keys};
use super::reader::Gguf;
use super::value::{Value, narrow};
use crate::config::{
    DraftConfig, EmbedScale, LayerConfig, LayerKind, MAX_LAYERS, MoeConfig, PerLayerInput,
    TextConfig, kv_source,
};
use crate::error::{Error, Result};

/// Longer contexts than this are a lie.
const MAX_CONTEXT: u32 = 1 << 27;
/// Gemma 3 has a full layer after every five sliding ones.
const GEMMA3_PERIOD: u32 = 6;
/// The layers of Gemma 3 27B, whose attention scale differs from the others'. The file does not
/// say so; every loader goes by this number.
const GEMMA3_27B_LAYERS: usize = 62;

/// Reads the text side of a model.
pub(super) fn text(file: &Gguf, family: Family) -> Result<TextConfig> {
    let k = Keys { file, family };
    let base = Base::read(&k)?;
    let layers = match family {
        Family::Gemma3 => gemma3_layers(&k, &base)?,
        Family::Gemma4 => gemma4_layers(&k, &base, k.u32("attention.shared_kv_layers")?)?,
        Family::Gemma4Assistant => gemma4_layers(&k, &base, None)?,
    };
    for (i, l) in layers.iter().enumerate() {
        if !l.n_heads.is_multiple_of(l.n_kv_heads) {
            return Err(Error::config(format!(
                "layer {i}: {} attention heads do not divide among {} key-value heads",
                l.n_heads, l.n_kv_heads
            )));
        }
    }
    let gemma4 = family != Family::Gemma3;
    let softcap = k.float("final_logit_softcapping")?.filter(|cap| *cap != 0.0);
    if softcap.is_some_and(|cap| cap < 0.0) {
        return Err(k.bad("final_logit_softcapping", "it is negative"));
    }
    Ok(TextConfig {
        architecture: family.name().to_string(),
        vocab_size: base.vocab_size,
        hidden_size: base.hidden_size,
        rms_norm_eps: narrow(k.float("attention.layer_norm_rms_epsilon")?.unwrap_or(1e-6)),
        // Gemma 3's converter adds the 1 to the stored weights.
        norm_offset: 0.0,
        v_norm: gemma4,
        layer_scalar: gemma4,
        max_position_embeddings: base.context_length,
        final_logit_softcapping: softcap.map(narrow),
        tie_word_embeddings: file.tensor("output.weight").is_none(),
        per_layer_input: if family == Family::Gemma4 { per_layer_input(&k)? } else { None },
        layers,
        embed_scale: EmbedScale::Exact,
    })
}

/// Reads a drafter.
pub(super) fn draft(file: &Gguf) -> Result<DraftConfig> {
    let k = Keys { file, family: Family::Gemma4Assistant };
    let backbone_hidden_size = k.need("embedding_length_out")?;
    // The converter drops the centroid head; the full head gives a superset of its tokens.
    Ok(DraftConfig { text: text(file, k.family)?, backbone_hidden_size, centroids: None })
}

/// Values that every layer shares.
struct Base {
    vocab_size: u32,
    hidden_size: u32,
    context_length: u32,
    n_layers: usize,
    n_heads: Vec<u32>,
    n_kv_heads: Vec<u32>,
    intermediate_size: Vec<u32>,
}

impl Base {
    fn read(k: &Keys<'_>) -> Result<Base> {
        let n_layers = k.need("block_count")?;
        if n_layers > MAX_LAYERS {
            return Err(k.bad("block_count", format!("it is {n_layers}, over {MAX_LAYERS}")));
        }
        let context_length = k.need("context_length")?;
        if context_length > MAX_CONTEXT {
            let what = format!("it is {context_length}, over {MAX_CONTEXT}");
            return Err(k.bad("context_length", what));
        }
        let n_layers = usize::try_from(n_layers).unwrap_or(0);
        let n_heads = k.per_layer("attention.head_count", n_layers)?;
        let n_heads = n_heads.ok_or_else(|| k.missing("attention.head_count"))?;
        let n_kv_heads = k.per_layer("attention.head_count_kv", n_layers)?;
        let intermediate_size = k.per_layer("feed_forward_length", n_layers)?;
        let embedding = k
            .file
            .tensor("token_embd.weight")
            .ok_or_else(|| Error::tensor("token_embd.weight", "it is missing"))?;
        let rows = embedding.shape.first().copied().unwrap_or(0);
        Ok(Base {
            vocab_size: u32::try_from(rows)
                .map_err(|_| Error::tensor(&embedding.name, format!("it has {rows} rows")))?,
            hidden_size: k.need("embedding_length")?,
            context_length,
            n_layers,
            n_kv_heads: n_kv_heads.unwrap_or_else(|| n_heads.clone()),
            n_heads,
            intermediate_size: intermediate_size.ok_or_else(|| k.missing("feed_forward_length"))?,
        })
    }

    /// The values that differ by layer: query heads, key-value heads, inner channels.
    fn per_layer(&self) -> impl Iterator<Item = (u32, u32, u32)> {
        let heads = self.n_heads.iter().zip(&self.n_kv_heads);
        heads.zip(&self.intermediate_size).map(|((h, kv), inner)| (*h, *kv, *inner))
    }
}

fn gemma3_layers(k: &Keys<'_>, base: &Base) -> Result<Vec<LayerConfig>> {
    let window = k.window(base.context_length)?;
    let kinds = match (window, k.get("attention.sliding_window_pattern")) {
        (None, _) => vec![LayerKind::Full; base.n_layers],
        (_, Some(Value::Array(_))) => k.kinds(base.n_layers)?,
        (_, _) => {
            let period = k.positive("attention.sliding_window_pattern")?.unwrap_or(GEMMA3_PERIOD);
            let full = |i: u32| i.is_multiple_of(period);
            let kind = |i| if full(i) { LayerKind::Full } else { LayerKind::Sliding };
            (1u32..).take(base.n_layers).map(kind).collect()
        }
    };
    let first_heads = base.n_heads.first().copied().unwrap_or(1);
    let per_head = base.hidden_size.checked_div(first_heads).unwrap_or(0);
    let head_dim = k.head_dim("", Some(per_head))?;
    k.whole_rope("", head_dim)?;
    let scalar = if base.n_layers == GEMMA3_27B_LAYERS { per_head } else { head_dim };
    let attention_scale = narrow(f64::from(scalar).powf(-0.5));
    let full_rope = k.rope("", head_dim, 1e6, k.linear_factor()?)?;
    let sliding_rope = k.rope("_swa", head_dim, 1e4, 1.0)?;
    Ok(kinds
        .iter()
        .zip(base.per_layer())
        .enumerate()
        .map(|(i, (kind, (n_heads, n_kv_heads, intermediate_size)))| LayerConfig {
            kind: *kind,
            window: window.filter(|_| *kind == LayerKind::Sliding),
            n_heads,
            n_kv_heads,
            head_dim,
            attention_scale,
            rope: if *kind == LayerKind::Full { full_rope } else { sliding_rope },
            k_eq_v: false,
            kv_source: i,
            intermediate_size,
            moe: None,
            bidirectional_blocks: false,
        })
        .collect())
}

/// With `shared` layers at the end that use the keys and values of earlier ones. A drafter's
/// layers own none, and nothing is said of them.
fn gemma4_layers(k: &Keys<'_>, base: &Base, shared: Option<u32>) -> Result<Vec<LayerConfig>> {
    let window = k.window(base.context_length)?.ok_or_else(|| k.missing("attention.sliding_window"))?;
    let kinds = k.kinds(base.n_layers)?;
    let shared = shared.unwrap_or(0);
    let n_owners = usize::try_from(shared)
        .ok()
        .and_then(|n| base.n_layers.checked_sub(n))
        .filter(|n| *n > 0)
        .ok_or_else(|| {
            let what = format!("it is {shared} of {} layers", base.n_layers);
            k.bad("attention.shared_kv_layers", what)
        })?;
    let full_dim = k.head_dim("", None)?;
    let sliding_dim = k.head_dim("_swa", None)?;
    k.whole_rope("", full_dim)?;
    k.whole_rope("_swa", sliding_dim)?;
    let has_full = kinds.contains(&LayerKind::Full);
    let (rotated_pairs, factor) = if has_full { k.frequency_factors(full_dim)? } else { (0, 1.0) };
    let factor = factor * k.linear_factor()?;
    let full_rope = RopeSpec { rotated_pairs, ..k.rope("", full_dim, 1e6, factor)? };
    let sliding_rope = k.rope("_swa", sliding_dim, 1e4, 1.0)?;

    let mut layers = Vec::with_capacity(base.n_layers);
    for (i, (kind, (n_heads, n_kv_heads, intermediate_size))) in
        kinds.iter().zip(base.per_layer()).enumerate()
    {
        let full = *kind == LayerKind::Full;
        let owned = i < n_owners && k.family == Family::Gemma4;
        let has = |tensor: &str| k.file.tensor(&format!("blk.{i}.{tensor}.weight")).is_some();
        layers.push(LayerConfig {
            kind: *kind,
            window: (!full).then_some(window),
            n_heads,
            n_kv_heads,
            head_dim: if full { full_dim } else { sliding_dim },
            attention_scale: 1.0,
            rope: if full { full_rope } else { sliding_rope },
            k_eq_v: full && owned && !has("attn_v"),
            kv_source: kv_source(&kinds, n_owners, i)?,
            intermediate_size,
            moe: if has("ffn_gate_inp") { Some(experts(k)?) } else { None },
            bidirectional_blocks: false,
        });
    }
    Ok(layers)
}

fn experts(k: &Keys<'_>) -> Result<MoeConfig> {
    let moe = MoeConfig {
        n_experts: k.need("expert_count")?,
        top_k: k.need("expert_used_count")?,
        intermediate_size: k.need("expert_feed_forward_length")?,
    };
    if moe.top_k > moe.n_experts {
        let what = format!("it is {} of {} experts", moe.top_k, moe.n_experts);
        return Err(k.bad("expert_used_count", what));
    }
    Ok(moe)
}

fn per_layer_input(k: &Keys<'_>) -> Result<Option<PerLayerInput>> {
    let Some(size) = k.u32("embedding_length_per_layer_input")?.filter(|n| *n > 0) else {
        return Ok(None);
    };
    let name = "per_layer_token_embd.weight";
    let rows = k
        .file
        .tensor(name)
        .and_then(|t| u32::try_from(*t.shape.first()?).ok())
        .ok_or_else(|| Error::tensor(name, "it is missing"))?;
    Ok(Some(PerLayerInput { size, vocab_size: rows }))
}
