//! llama.cpp's names for the weights of towers.

/// Names outside the layers: what they begin with here and there.
const GLOBAL: [(&str, &str); 22] = [
    ("vision_tower.vision_model.embeddings.patch_embedding.", "v.patch_embd."),
    ("vision_tower.vision_model.embeddings.position_embedding.", "v.position_embd."),
    ("vision_tower.vision_model.post_layernorm.", "v.post_ln."),
    ("multi_modal_projector.mm_soft_emb_norm.", "mm.soft_emb_norm."),
    ("multi_modal_projector.mm_input_projection_weight", "mm.input_projection.weight"),
    ("model.vision_tower.patch_embedder.input_proj.", "v.patch_embd."),
    ("model.vision_tower.patch_embedder.position_embedding_table", "v.position_embd.weight"),
    ("model.vision_tower.std_bias", "v.std_bias"),
    ("model.vision_tower.std_scale", "v.std_scale"),
    ("model.vision_embedder.patch_ln1.", "v.patch_norm.1."),
    ("model.vision_embedder.patch_dense.", "v.patch_embd."),
    ("model.vision_embedder.patch_ln2.", "v.patch_norm.2."),
    ("model.vision_embedder.pos_embedding", "v.position_embd.weight"),
    ("model.vision_embedder.pos_norm.", "v.patch_norm.3."),
    ("model.embed_vision.embedding_projection.", "mm.input_projection."),
    ("model.audio_tower.subsample_conv_projection.layer0.conv.", "a.conv1d.0."),
    ("model.audio_tower.subsample_conv_projection.layer0.norm.", "a.conv1d.0.norm."),
    ("model.audio_tower.subsample_conv_projection.layer1.conv.", "a.conv1d.1."),
    ("model.audio_tower.subsample_conv_projection.layer1.norm.", "a.conv1d.1.norm."),
    ("model.audio_tower.subsample_conv_projection.input_proj_linear.", "a.input_projection."),
    ("model.audio_tower.output_proj.", "a.pre_encode.out."),
    ("model.embed_audio.embedding_projection.", "mm.a.input_projection."),
];

/// Modules inside a layer of SigLIP.
const SIGLIP: [(&str, &str); 8] = [
    ("layer_norm1", "ln1"),
    ("layer_norm2", "ln2"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.out_proj", "attn_out"),
    ("mlp.fc1", "ffn_up"),
    ("mlp.fc2", "ffn_down"),
];

/// Modules inside a layer of Gemma 4's vision tower.
const VISION: [(&str, &str); 13] = [
    ("input_layernorm", "ln1"),
    ("post_attention_layernorm", "attn_post_norm"),
    ("pre_feedforward_layernorm", "ln2"),
    ("post_feedforward_layernorm", "ffn_post_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_out"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
];

/// Modules inside a layer of Gemma 4's audio tower.
const AUDIO: [(&str, &str); 21] = [
    ("feed_forward1.pre_layer_norm", "ffn_norm"),
    ("feed_forward1.ffw_layer_1", "ffn_up"),
    ("feed_forward1.ffw_layer_2", "ffn_down"),
    ("feed_forward1.post_layer_norm", "ffn_post_norm"),
    ("feed_forward2.pre_layer_norm", "ffn_norm_1"),
    ("feed_forward2.ffw_layer_1", "ffn_up_1"),
    ("feed_forward2.ffw_layer_2", "ffn_down_1"),
    ("feed_forward2.post_layer_norm", "ffn_post_norm_1"),
    ("norm_pre_attn", "attn_pre_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.post", "attn_out"),
    ("self_attn.relative_k_proj", "attn_k_rel"),
    ("norm_post_attn", "attn_post_norm"),
    // These two are the wrong way round in every file.
    ("lconv1d.pre_layer_norm", "conv_norm"),
    ("lconv1d.conv_norm", "norm_conv"),
    ("lconv1d.linear_start", "conv_pw1"),
    ("lconv1d.depthwise_conv1d", "conv_dw"),
    ("lconv1d.linear_end", "conv_pw2"),
    ("norm_out", "ln2"),
];

/// Pairs of our names and theirs.
type Pairs = &'static [(&'static str, &'static str)];

/// What layers' names begin with here and there, and their modules.
const LAYERS: [(&str, &str, Pairs); 3] = [
    ("vision_tower.vision_model.encoder.layers.", "v.blk.", &SIGLIP),
    ("model.vision_tower.encoder.layers.", "v.blk.", &VISION),
    ("model.audio_tower.layers.", "a.blk.", &AUDIO),
];

/// The tensor behind a canonical name; `None` if there is no name for it. Early files of Gemma 3
/// have the names of the two linears of an MLP exchanged.
pub(super) fn tensor_of(canonical: &str, mlp_exchanged: bool) -> Option<String> {
    for (prefix, blocks, modules) in LAYERS {
        let Some((layer, rest)) = canonical.strip_prefix(prefix).and_then(|r| r.split_once('.'))
        else {
            continue;
        };
        if rest == "self_attn.per_dim_scale" {
            return Some(format!("{blocks}{layer}.per_dim_scale.weight"));
        }
        // The level inside of a clipped linear is left out.
        let (module, leaf) = rest.rsplit_once('.')?;
        let module = module.strip_suffix(".linear").unwrap_or(module);
        let name = modules.iter().find(|(own, _)| *own == module).map(|(_, theirs)| *theirs)?;
        let name = match name {
            "ffn_up" if mlp_exchanged => "ffn_down",
            "ffn_down" if mlp_exchanged => "ffn_up",
            name => name,
        };
        return Some(format!("{blocks}{layer}.{name}.{leaf}"));
    }
    GLOBAL.iter().find_map(|(own, theirs)| {
        let leaf = canonical.strip_prefix(own)?;
        Some(format!("{theirs}{leaf}"))
    })
}
