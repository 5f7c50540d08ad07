//! `config.json`, in all its spellings.
//!
//! Published files, files saved by newer versions of transformers, and text-only extracts of
//! multimodal files name the same things differently, and leave out whatever equals a default.
//! The defaults here are those of transformers' configuration classes.

use lapidary_program::RopeSpec;
use serde_json::Value;

use crate::config::{
    CentroidConfig, DraftConfig, EmbedScale, LayerConfig, LayerKind, MAX_LAYERS, MoeConfig,
    PerLayerInput, TextConfig, kv_source,
};
use crate::config_fields;
use crate::error::{Error, Result};
use crate::hf_towers;
use crate::json_fields::{Fields, floor_to_u32, narrow};
use crate::towers::Towers;

/// What a `config.json` describes.
#[derive(Clone, Debug, PartialEq)]
pub enum HfConfig {
    /// A model that generates text.
    Model(Box<ModelConfig>),
    /// A drafter for one.
    Draft(Box<DraftConfig>),
}

/// A model with what its `config.json` says besides the text side.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// The text side.
    pub text: TextConfig,
    /// What it has besides.
    pub towers: Towers,
    /// Begin of sequence.
    pub bos_id: Option<u32>,
    /// Padding.
    pub pad_id: Option<u32>,
    /// Ends an answer, unless `generation_config.json` says more.
    pub eos_ids: Vec<u32>,
}

impl ModelConfig {
    /// The same model without eyes.
    pub(crate) fn drop_vision(&mut self) {
        self.towers.vision = None;
        for layer in &mut self.text.layers {
            layer.bidirectional_blocks = false;
        }
    }
}

/// Reads a `config.json`.
pub fn parse(json: &[u8]) -> Result<HfConfig> {
    let json: Value = serde_json::from_slice(json)
        .map_err(|source| Error::Json { file: "config.json".into(), source })?;
    read(&json)
}

/// Reads a `config.json` that was parsed.
pub(crate) fn read(json: &Value) -> Result<HfConfig> {
    let top = json.as_object().ok_or_else(|| Error::config("config.json is not an object"))?;
    let top = Fields(top);
    let model_type = top.text("model_type")?.unwrap_or_else(|| guess(&top));
    let inner = match top.get("text_config") {
        Some(Value::Object(map)) => Some(Fields(map)),
        Some(_) => return Err(Error::config("text_config is not an object")),
        None => None,
    };
    let text = inner.as_ref().unwrap_or(&top);
    config_fields::check(&model_type, &top)?;
    match model_type.as_str() {
        "gemma3_text" | "gemma3" => {
            let towers = hf_towers::read(&model_type, &top)?;
            let config = gemma3(&model_type, text, &top, towers.vision.is_some())?;
            Ok(HfConfig::Model(Box::new(model(config, towers, text, &top)?)))
        }
        "gemma4_text" | "gemma4" | "gemma4_unified" | "gemma4_unified_text" => {
            let towers = hf_towers::read(&model_type, &top)?;
            let config = gemma4(&model_type, text, &top, towers.vision.is_some(), None)?;
            Ok(HfConfig::Model(Box::new(model(config, towers, text, &top)?)))
        }
        "gemma4_assistant" | "gemma4_unified_assistant" => {
            Ok(HfConfig::Draft(Box::new(drafter(&model_type, text, &top)?)))
        }
        other => Err(unsupported(other)),
    }
}

/// Some extracts have no `model_type`; their class name tells.
fn guess(top: &Fields<'_>) -> String {
    let class = top
        .get("architectures")
        .and_then(|a| a.get(0))
        .and_then(Value::as_str)
        .unwrap_or("a model without model_type");
    match class {
        "Gemma3ForCausalLM" => "gemma3_text",
        "Gemma3ForConditionalGeneration" => "gemma3",
        "Gemma4ForCausalLM" => "gemma4_text",
        "Gemma4ForConditionalGeneration" => "gemma4",
        "Gemma4UnifiedForConditionalGeneration" => "gemma4_unified",
        "Gemma4AssistantForCausalLM" => "gemma4_assistant",
        "Gemma4UnifiedAssistantForCausalLM" => "gemma4_unified_assistant",
        other => other,
    }
    .to_string()
}

pub(crate) fn unsupported(architecture: &str) -> Error {
    let advice = match architecture {
        "embedding_gemma2" | "gemma-embedding" => {
            "it makes embeddings, not text; Gemma 3 and Gemma 4 text models are run"
        }
        "gemma3n" | "gemma3n_text" => "Gemma 3n is not supported yet; its successor Gemma 4 E2B is",
        "diffusion_gemma" => "it generates by diffusion; Gemma 3 and Gemma 4 are run",
        _ => "this program runs Gemma 3 and Gemma 4",
    };
    Error::Unsupported { architecture: architecture.to_string(), advice: advice.to_string() }
}

fn model(
    text: TextConfig,
    towers: Towers,
    inner: &Fields<'_>,
    top: &Fields<'_>,
) -> Result<ModelConfig> {
    let id = |key: &str, default: u32| -> Result<Option<u32>> {
        match inner.get(key).or_else(|| top.get(key)) {
            None => Ok(Some(default)),
            Some(v) => Ok(ids(key, v)?.first().copied()),
        }
    };
    let eos = match (top.get("eos_token_id"), inner.get("eos_token_id")) {
        (Some(v), _) | (None, Some(v)) => ids("eos_token_id", v)?,
        (None, None) => vec![1],
    };
    Ok(ModelConfig {
        bos_id: id("bos_token_id", 2)?,
        pad_id: id("pad_token_id", 0)?,
        eos_ids: eos,
        text,
        towers,
    })
}

/// One id or a list of them.
pub(crate) fn ids(key: &str, v: &Value) -> Result<Vec<u32>> {
    let one = |v: &Value| {
        v.as_u64()
            .and_then(|n| u32::try_from(n).ok())
            .ok_or_else(|| Error::config(format!("{key} is {v}, not a token id")))
    };
    match v {
        Value::Null => Ok(vec![]),
        Value::Array(list) => list.iter().map(one).collect(),
        v => Ok(vec![one(v)?]),
    }
}

fn gemma3(
    model_type: &str,
    f: &Fields<'_>,
    top: &Fields<'_>,
    sees: bool,
) -> Result<TextConfig> {
    if f.flag("use_bidirectional_attention", false)? {
        return Err(unsupported("embedding_gemma2"));
    }
    let base = Base::read(f, &GEMMA3)?;
    let scalar = f.number("query_pre_attn_scalar", 256.0)?;
    if !(scalar.is_finite() && scalar > 0.0) {
        return Err(Error::config(format!("query_pre_attn_scalar {scalar} must be positive")));
    }
    let pattern = match f.get("sliding_window_pattern") {
        Some(_) => f.int("sliding_window_pattern", 6)?,
        None => f.int("_sliding_window_pattern", 6)?,
    };
    let kinds = layer_kinds(f, base.n_layers, pattern)?;
    let rope = |kind: LayerKind| rope_gemma3(f, kind, base.head_dim);
    let mut layers = Vec::new();
    for (i, kind) in kinds.iter().enumerate() {
        layers.push(LayerConfig {
            kind: *kind,
            window: (*kind == LayerKind::Sliding).then_some(base.sliding_window),
            n_heads: base.n_heads,
            n_kv_heads: base.n_kv_heads,
            head_dim: base.head_dim,
            attention_scale: narrow(scalar.powf(-0.5)),
            rope: rope(*kind)?,
            k_eq_v: false,
            kv_source: i,
            intermediate_size: base.intermediate_size,
            moe: None,
            bidirectional_blocks: sees,
        });
    }
    base.finish(f, top, model_type, layers, Traits { norm_offset: 1.0, gemma4: false, ple: None })
}

fn gemma4(
    model_type: &str,
    f: &Fields<'_>,
    top: &Fields<'_>,
    sees: bool,
    all_shared: Option<()>,
) -> Result<TextConfig> {
    let unified = model_type.starts_with("gemma4_unified");
    let base = Base::read(f, if unified { &GEMMA4_UNIFIED } else { &GEMMA4 })?;
    let bidirectional = match f.text("use_bidirectional_attention")?.as_deref() {
        Some("vision") => true,
        Some("all") => return Err(unsupported("embedding_gemma2")),
        Some(other) => {
            return Err(Error::config(format!("use_bidirectional_attention is `{other}`")));
        }
        None => unified && !f.0.contains_key("use_bidirectional_attention"),
    };
    let mut kinds = layer_kinds(f, base.n_layers, 6)?;
    if let Some(last) = kinds.last_mut() {
        *last = LayerKind::Full;
    }
    let k_eq_v = f.flag("attention_k_eq_v", false)?;
    let shared = if all_shared.is_some() { 0 } else { f.int("num_kv_shared_layers", 0)? };
    let n_owners = base.n_layers.checked_sub(shared).filter(|n| *n > 0).ok_or_else(|| {
        Error::config(format!("num_kv_shared_layers {shared} of {} layers", base.n_layers))
    })?;
    let owners = usize::try_from(n_owners).unwrap_or(usize::MAX);
    let double_wide = f.flag("use_double_wide_mlp", false)?;
    let moe = experts(f)?;
    let overrides = Overrides::read(f, k_eq_v)?;

    let mut layers: Vec<LayerConfig> = Vec::new();
    for (i, (idx, kind)) in (0u32..).zip(&kinds).enumerate() {
        let is_shared = idx >= n_owners;
        let o = overrides.of(idx, *kind, &base)?;
        let wide = if is_shared && double_wide { 2 } else { 1 };
        layers.push(LayerConfig {
            kind: *kind,
            window: (*kind == LayerKind::Sliding).then_some(base.sliding_window),
            n_heads: base.n_heads,
            n_kv_heads: o.n_kv_heads,
            head_dim: o.head_dim,
            attention_scale: 1.0,
            rope: rope_gemma4(f, *kind, o.head_dim)?,
            k_eq_v: k_eq_v && *kind == LayerKind::Full,
            kv_source: kv_source(&kinds, owners, i)?,
            intermediate_size: base
                .intermediate_size
                .checked_mul(wide)
                .ok_or_else(|| Error::config("intermediate_size overflows"))?,
            moe,
            bidirectional_blocks: sees && bidirectional && *kind == LayerKind::Sliding,
        });
    }
    let ple_size = if unified { 0 } else { f.int("hidden_size_per_layer_input", 256)? };
    let ple = (ple_size > 0)
        .then(|| -> Result<PerLayerInput> {
            let vocab_size = f.int("vocab_size_per_layer_input", 262_144)?;
            Ok(PerLayerInput { size: ple_size, vocab_size })
        })
        .transpose()?;
    base.finish(f, top, model_type, layers, Traits { norm_offset: 0.0, gemma4: true, ple })
}

fn drafter(model_type: &str, f: &Fields<'_>, top: &Fields<'_>) -> Result<DraftConfig> {
    let family = model_type.strip_suffix("_assistant").unwrap_or("gemma4");
    let mut text = gemma4(family, f, top, false, Some(()))?;
    text.architecture = model_type.to_string();
    text.per_layer_input = None;
    let centroids = if top.flag("use_ordered_embeddings", false)? {
        Some(CentroidConfig {
            n_centroids: top.positive("num_centroids", 2048)?,
            top_k: top.positive("centroid_intermediate_top_k", 32)?,
        })
    } else {
        None
    };
    let backbone_hidden_size = top.positive("backbone_hidden_size", 1536)?;
    Ok(DraftConfig { text, backbone_hidden_size, centroids })
}

fn experts(f: &Fields<'_>) -> Result<Option<MoeConfig>> {
    if !f.flag("enable_moe_block", false)? {
        return Ok(None);
    }
    let need = |key: &str| match f.get(key) {
        Some(_) => f.positive(key, 1),
        None => Err(Error::config(format!("enable_moe_block is set, but {key} is missing"))),
    };
    Ok(Some(MoeConfig {
        n_experts: need("num_experts")?,
        top_k: need("top_k_experts")?,
        intermediate_size: need("moe_intermediate_size")?,
    }))
}

/// Values that every member of the family has.
struct Base {
    vocab_size: u32,
    hidden_size: u32,
    intermediate_size: u32,
    n_layers: u32,
    n_heads: u32,
    n_kv_heads: u32,
    head_dim: u32,
    sliding_window: u32,
    max_position_embeddings: u32,
}

const GEMMA3: Base = Base {
    vocab_size: 262_208,
    hidden_size: 2304,
    intermediate_size: 9216,
    n_layers: 26,
    n_heads: 8,
    n_kv_heads: 4,
    head_dim: 256,
    sliding_window: 4096,
    max_position_embeddings: 131_072,
};
const GEMMA4: Base = Base { vocab_size: 262_144, n_layers: 30, sliding_window: 512, ..GEMMA3 };
const GEMMA4_UNIFIED: Base =
    Base { sliding_window: 1024, max_position_embeddings: 262_144, ..GEMMA4 };

struct Traits {
    norm_offset: f32,
    gemma4: bool,
    ple: Option<PerLayerInput>,
}

impl Base {
    fn read(f: &Fields<'_>, default: &Base) -> Result<Base> {
        let base = Base {
            vocab_size: f.positive("vocab_size", default.vocab_size)?,
            hidden_size: f.positive("hidden_size", default.hidden_size)?,
            intermediate_size: f.positive("intermediate_size", default.intermediate_size)?,
            n_layers: f.positive("num_hidden_layers", default.n_layers)?,
            n_heads: f.positive("num_attention_heads", default.n_heads)?,
            n_kv_heads: f.positive("num_key_value_heads", default.n_kv_heads)?,
            head_dim: f.positive("head_dim", default.head_dim)?,
            sliding_window: f.positive("sliding_window", default.sliding_window)?,
            max_position_embeddings: f
                .positive("max_position_embeddings", default.max_position_embeddings)?,
        };
        if base.n_layers > MAX_LAYERS {
            return Err(Error::config(format!("num_hidden_layers is {}", base.n_layers)));
        }
        if base.sliding_window > base.max_position_embeddings {
            return Err(Error::config(format!(
                "sliding_window {} is larger than max_position_embeddings {}",
                base.sliding_window, base.max_position_embeddings
            )));
        }
        let key = if f.get("hidden_activation").is_some() { "hidden_activation" } else { "hidden_act" };
        match f.text(key)?.as_deref() {
            None | Some("gelu_pytorch_tanh") => {}
            Some(other) => return Err(Error::config(format!("{key} `{other}` is not run here"))),
        }
        Ok(base)
    }

    fn finish(
        self,
        f: &Fields<'_>,
        top: &Fields<'_>,
        model_type: &str,
        layers: Vec<LayerConfig>,
        t: Traits,
    ) -> Result<TextConfig> {
        for l in &layers {
            if !l.n_heads.is_multiple_of(l.n_kv_heads) {
                return Err(Error::config(format!(
                    "{} attention heads do not divide among {} key-value heads",
                    l.n_heads, l.n_kv_heads
                )));
            }
        }
        // transformers' multimodal Gemma 3 does not apply it, though the key may be there.
        let capped = model_type != "gemma3";
        let cap = f.optional_number("final_logit_softcapping")?.filter(|_| capped);
        if cap.is_some_and(|c| !(c.is_finite() && c > 0.0)) {
            return Err(Error::config("final_logit_softcapping must be positive"));
        }
        let eps = f.number("rms_norm_eps", 1e-6)?;
        if !(eps.is_finite() && eps >= 0.0) {
            return Err(Error::config(format!("rms_norm_eps {eps} must not be negative")));
        }
        // A multimodal file may say both; transformers ties by the outer one.
        let tied = match top.get("tie_word_embeddings") {
            Some(_) => top.flag("tie_word_embeddings", true)?,
            None => f.flag("tie_word_embeddings", true)?,
        };
        Ok(TextConfig {
            architecture: model_type.to_string(),
            vocab_size: self.vocab_size,
            hidden_size: self.hidden_size,
            rms_norm_eps: narrow(eps),
            norm_offset: t.norm_offset,
            v_norm: t.gemma4,
            layer_scalar: t.gemma4,
            max_position_embeddings: self.max_position_embeddings,
            final_logit_softcapping: cap.map(narrow),
            tie_word_embeddings: tied,
            per_layer_input: t.ple,
            layers,
            embed_scale: EmbedScale::StoredType,
        })
    }
}

fn layer_kinds(f: &Fields<'_>, n_layers: u32, pattern: u32) -> Result<Vec<LayerKind>> {
    let Some(list) = f.get("layer_types") else {
        if pattern == 0 {
            return Err(Error::config("sliding_window_pattern is 0"));
        }
        let kind = |i: u32| {
            if i.is_multiple_of(pattern) { LayerKind::Full } else { LayerKind::Sliding }
        };
        return Ok((1..=n_layers).map(kind).collect());
    };
    let list = list.as_array().ok_or_else(|| Error::config("layer_types is not a list"))?;
    if u32::try_from(list.len()).ok() != Some(n_layers) {
        return Err(Error::config(format!(
            "layer_types has {} entries for {n_layers} layers",
            list.len()
        )));
    }
    list.iter()
        .map(|v| match v.as_str() {
            Some("sliding_attention") => Ok(LayerKind::Sliding),
            Some("full_attention") => Ok(LayerKind::Full),
            _ => Err(Error::config(format!("layer type {v} is not known"))),
        })
        .collect()
}

fn rope_key(kind: LayerKind) -> &'static str {
    match kind {
        LayerKind::Sliding => "sliding_attention",
        LayerKind::Full => "full_attention",
    }
}

/// New spelling: `rope_parameters` by layer type. Old: `rope_theta`, `rope_local_base_freq` and
/// `rope_scaling`, which applies to full layers only.
fn rope_gemma3(f: &Fields<'_>, kind: LayerKind, head_dim: u32) -> Result<RopeSpec> {
    let (old_key, default) = match kind {
        LayerKind::Full => ("rope_theta", 1e6),
        LayerKind::Sliding => ("rope_local_base_freq", 1e4),
    };
    let theta = f.number(old_key, default)?;
    let fallback = Rope { kind: "default".into(), theta, factor: 1.0, partial: 1.0 };
    let mut rope = match f.object("rope_parameters")? {
        Some(all) => Rope::read(all.object(rope_key(kind))?.as_ref(), fallback)?,
        None => fallback,
    };
    if kind == LayerKind::Full {
        rope = Rope::read(f.object("rope_scaling")?.as_ref(), rope)?;
    }
    rope.spec(head_dim)
}

fn rope_gemma4(f: &Fields<'_>, kind: LayerKind, head_dim: u32) -> Result<RopeSpec> {
    let fallback = match kind {
        LayerKind::Full => {
            Rope { kind: "proportional".into(), theta: 1e6, factor: 1.0, partial: 0.25 }
        }
        LayerKind::Sliding => Rope { kind: "default".into(), theta: 1e4, factor: 1.0, partial: 1.0 },
    };
    let rope = match f.object("rope_parameters")? {
        Some(all) => match all.object(rope_key(kind))? {
            // Within an entry, what is left out is plain, not this family's default.
            Some(own) => Rope::read(Some(&own), Rope { partial: 1.0, ..fallback })?,
            None => fallback,
        },
        None => fallback,
    };
    rope.spec(head_dim)
}

struct Rope {
    kind: String,
    theta: f64,
    factor: f64,
    partial: f64,
}

impl Rope {
    fn read(f: Option<&Fields<'_>>, base: Rope) -> Result<Rope> {
        let Some(f) = f else { return Ok(base) };
        let kind = match f.text("rope_type")? {
            Some(kind) => kind,
            None => f.text("type")?.unwrap_or(base.kind),
        };
        Ok(Rope {
            kind,
            theta: f.number("rope_theta", base.theta)?,
            factor: f.number("factor", base.factor)?,
            partial: f.number("partial_rotary_factor", base.partial)?,
        })
    }

    fn spec(self, head_dim: u32) -> Result<RopeSpec> {
        let half = head_dim.div_euclid(2);
        let (rotated_pairs, factor) = match self.kind.as_str() {
            "default" => (half, 1.0),
            "linear" => (half, self.factor),
            "proportional" => {
                if !(0.0..=1.0).contains(&self.partial) {
                    let what = format!("partial_rotary_factor {} of a head", self.partial);
                    return Err(Error::config(what));
                }
                let pairs = (self.partial * f64::from(head_dim) / 2.0).floor();
                (floor_to_u32(pairs).min(half), self.factor)
            }
            other => return Err(Error::config(format!("rope type `{other}` is not run here"))),
        };
        Ok(RopeSpec { head_dim, theta: self.theta, rotated_pairs, factor })
    }
}

/// What full layers, or single layers, have otherwise: `global_head_dim` and
/// `num_global_key_value_heads` in published files, `per_layer_config` in re-saved ones.
struct Overrides<'a> {
    per_layer: Option<Fields<'a>>,
    global_head_dim: u32,
    global_kv_heads: Option<u32>,
}

struct Heads {
    head_dim: u32,
    n_kv_heads: u32,
}

impl<'a> Overrides<'a> {
    fn read(f: &Fields<'a>, k_eq_v: bool) -> Result<Self> {
        let global_kv_heads = match f.get("num_global_key_value_heads") {
            Some(_) if k_eq_v => Some(f.positive("num_global_key_value_heads", 1)?),
            _ => None,
        };
        Ok(Overrides {
            per_layer: f.object("per_layer_config")?,
            global_head_dim: f.positive("global_head_dim", 512)?,
            global_kv_heads,
        })
    }

    fn of(&self, idx: u32, kind: LayerKind, base: &Base) -> Result<Heads> {
        let mut heads = Heads { head_dim: base.head_dim, n_kv_heads: base.n_kv_heads };
        match &self.per_layer {
            Some(all) => {
                // Keys are numbers, perhaps zero-padded.
                let own = all.0.iter().find(|(k, _)| k.parse::<u32>().ok() == Some(idx));
                if let Some((key, value)) = own {
                    let own = value.as_object().map(Fields).ok_or_else(|| {
                        Error::config(format!("per_layer_config[{key}] is not an object"))
                    })?;
                    heads.head_dim = own.positive("head_dim", heads.head_dim)?;
                    heads.n_kv_heads = own.positive("num_key_value_heads", heads.n_kv_heads)?;
                }
            }
            None if kind == LayerKind::Full => {
                heads.head_dim = self.global_head_dim;
                heads.n_kv_heads = self.global_kv_heads.unwrap_or(heads.n_kv_heads);
            }
            None => {}
        }
        Ok(heads)
    }
}
