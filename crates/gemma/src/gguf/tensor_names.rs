//! llama.cpp's names for the weights that stand in a Hugging Face checkpoint.

/// What stands behind a canonical name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Tensors {
    /// A tensor of this name.
    One(String),
    /// A tensor of the first name, or the other two joined along their rows.
    OneOrJoined(String, [String; 2]),
}

/// Names outside the layers.
const GLOBAL: [(&str, &str); 8] = [
    ("model.embed_tokens.weight", "token_embd.weight"),
    ("lm_head.weight", "output.weight"),
    ("model.norm.weight", "output_norm.weight"),
    ("model.embed_tokens_per_layer.weight", "per_layer_token_embd.weight"),
    ("model.per_layer_model_projection.weight", "per_layer_model_proj.weight"),
    ("model.per_layer_projection_norm.weight", "per_layer_proj_norm.weight"),
    ("pre_projection.weight", "nextn.pre_projection.weight"),
    ("post_projection.weight", "nextn.post_projection.weight"),
];

/// Names inside a layer, after `model.layers.N.` and `blk.N.`.
const LAYER: [(&str, &str); 28] = [
    ("input_layernorm.weight", "attn_norm.weight"),
    ("post_attention_layernorm.weight", "post_attention_norm.weight"),
    ("pre_feedforward_layernorm.weight", "ffn_norm.weight"),
    ("post_feedforward_layernorm.weight", "post_ffw_norm.weight"),
    ("self_attn.q_proj.weight", "attn_q.weight"),
    ("self_attn.k_proj.weight", "attn_k.weight"),
    ("self_attn.v_proj.weight", "attn_v.weight"),
    ("self_attn.o_proj.weight", "attn_output.weight"),
    ("self_attn.q_proj.bias", "attn_q.bias"),
    ("self_attn.k_proj.bias", "attn_k.bias"),
    ("self_attn.v_proj.bias", "attn_v.bias"),
    ("self_attn.o_proj.bias", "attn_output.bias"),
    ("self_attn.q_norm.weight", "attn_q_norm.weight"),
    ("self_attn.k_norm.weight", "attn_k_norm.weight"),
    ("mlp.gate_proj.weight", "ffn_gate.weight"),
    ("mlp.up_proj.weight", "ffn_up.weight"),
    ("mlp.down_proj.weight", "ffn_down.weight"),
    ("layer_scalar", "layer_output_scale.weight"),
    ("per_layer_input_gate.weight", "inp_gate.weight"),
    ("per_layer_projection.weight", "proj.weight"),
    ("post_per_layer_input_norm.weight", "post_norm.weight"),
    ("router.proj.weight", "ffn_gate_inp.weight"),
    ("router.scale", "ffn_gate_inp.scale"),
    ("router.per_expert_scale", "ffn_down_exps.scale"),
    ("experts.down_proj", "ffn_down_exps.weight"),
    ("post_feedforward_layernorm_1.weight", "post_ffw_norm_1.weight"),
    ("post_feedforward_layernorm_2.weight", "post_ffw_norm_2.weight"),
    ("pre_feedforward_layernorm_2.weight", "pre_ffw_norm_2.weight"),
];

/// The tensors behind a canonical name; `None` if GGUF has no name for it.
pub(super) fn tensors_of(canonical: &str) -> Option<Tensors> {
    let find = |table: &[(&str, &'static str)], name: &str| {
        table.iter().find(|(hf, _)| *hf == name).map(|(_, gguf)| *gguf)
    };
    let Some((layer, rest)) =
        canonical.strip_prefix("model.layers.").and_then(|r| r.split_once('.'))
    else {
        return find(&GLOBAL, canonical).map(|name| Tensors::One(name.to_string()));
    };
    let name = |rest: &str| format!("blk.{layer}.{rest}.weight");
    if rest == "experts.gate_up_proj" {
        let split = [name("ffn_gate_exps"), name("ffn_up_exps")];
        return Some(Tensors::OneOrJoined(name("ffn_gate_up_exps"), split));
    }
    find(&LAYER, rest).map(|rest| Tensors::One(format!("blk.{layer}.{rest}")))
}

/// Whether a tensor that no weight uses may be left out without changing what the model says.
pub(super) fn is_ignorable(tensor: &str) -> bool {
    // Towers that ride along, the drafter's shortcut head, factors that became rotated pairs.
    let elsewhere = ["v.", "mm.", "a.", "masked_embd_", "rope_freqs."];
    // Sharing layers keep the projections that they do not use.
    let shared = ["attn_k.weight", "attn_v.weight", "attn_k_norm.weight"];
    elsewhere.iter().any(|p| tensor.starts_with(p))
        || tensor.starts_with("blk.") && shared.iter().any(|s| tensor.ends_with(s))
}
