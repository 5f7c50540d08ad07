//! Every field of transformers' configuration classes for this family, and what becomes of it.
//!
//! A field changes what a model computes, or it does not. The first kind is used, or refused unless
//! it says what is run anyway; only the second kind is passed over. Fields that no class has are
//! other programs' notes. From transformers 5.22 and the older classes that published files come
//! from.

use serde_json::Value;

use crate::error::{Error, Result};
use crate::json_fields::Fields;

/// What becomes of a field.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Use {
    /// It is read here.
    Read,
    /// It is read where prompts and media are made ready.
    ReadWithMedia,
    /// It changes nothing that is computed from a prompt.
    Irrelevant,
    /// It may be absent, `null`, or this.
    Only(Run),
}

/// What a field may say.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Run {
    /// `false`.
    Off,
    /// Nothing: there is no value that is run.
    Nothing,
    /// This number or one that is larger.
    AtLeast(f64),
    /// This number or one that is smaller.
    AtMost(f64),
    /// One of these words.
    Word(&'static [&'static str]),
}

/// A class and its fields.
pub type Class = (&'static str, &'static [(&'static str, Use)]);

use Run::{AtLeast, AtMost, Nothing, Off, Word};
use Use::{Irrelevant, Only, Read, ReadWithMedia};

/// What every class inherits and published files carry.
pub const COMMON: Class = (
    "PreTrainedConfig",
    &[
        ("_name_or_path", Irrelevant),
        ("add_cross_attention", Only(Off)),
        // It tells the type of a file that has no `model_type`.
        ("architectures", Irrelevant),
        ("chunk_size_feed_forward", Irrelevant),
        ("dtype", Irrelevant),
        ("id2label", Irrelevant),
        ("initializer_range", Irrelevant),
        ("is_decoder", Irrelevant),
        ("is_encoder_decoder", Only(Off)),
        ("label2id", Irrelevant),
        ("output_attentions", Irrelevant),
        ("output_hidden_states", Irrelevant),
        ("problem_type", Irrelevant),
        ("return_dict", Irrelevant),
        ("torch_dtype", Irrelevant),
        ("transformers_version", Irrelevant),
        ("use_cache", Irrelevant),
    ],
);

/// The text side of Gemma 3.
pub const GEMMA3_TEXT: Class = (
    "Gemma3TextConfig",
    &[
        ("_sliding_window_pattern", Read),
        ("attention_bias", Only(Off)),
        ("attention_dropout", Irrelevant),
        ("attn_logit_softcapping", Only(Nothing)),
        ("bos_token_id", Read),
        ("cache_implementation", Irrelevant),
        ("eos_token_id", Read),
        ("final_logit_softcapping", Read),
        ("head_dim", Read),
        ("hidden_act", Read),
        ("hidden_activation", Read),
        ("hidden_size", Read),
        ("intermediate_size", Read),
        ("layer_types", Read),
        ("max_position_embeddings", Read),
        ("model_type", Only(Word(&["gemma3_text"]))),
        ("num_attention_heads", Read),
        ("num_hidden_layers", Read),
        ("num_key_value_heads", Read),
        ("pad_token_id", Read),
        ("query_pre_attn_scalar", Read),
        ("rms_norm_eps", Read),
        ("rope_local_base_freq", Read),
        ("rope_parameters", Read),
        ("rope_scaling", Read),
        ("rope_theta", Read),
        ("sliding_window", Read),
        ("sliding_window_pattern", Read),
        ("tie_word_embeddings", Read),
        ("use_bidirectional_attention", Read),
        ("vocab_size", Read),
    ],
);

/// The vision tower of Gemma 3.
pub const SIGLIP: Class = (
    "SiglipVisionConfig",
    &[
        ("attention_dropout", Irrelevant),
        ("hidden_act", Read),
        ("hidden_size", Read),
        ("image_size", Read),
        ("intermediate_size", Read),
        ("layer_norm_eps", Read),
        ("model_type", Only(Word(&["siglip_vision_model"]))),
        ("num_attention_heads", Read),
        ("num_channels", Read),
        ("num_hidden_layers", Read),
        ("patch_size", Read),
        // A head of the tower that Gemma does not look at.
        ("vision_use_head", Irrelevant),
    ],
);

/// Gemma 3 with eyes.
pub const GEMMA3: Class = (
    "Gemma3Config",
    &[
        // The template spells the tokens around an image.
        ("boi_token_index", Irrelevant),
        ("eoi_token_index", Irrelevant),
        ("eos_token_id", Read),
        ("image_token_index", ReadWithMedia),
        ("mm_tokens_per_image", Read),
        ("model_type", Read),
        ("text_config", Read),
        ("tie_word_embeddings", Read),
        ("vision_config", Read),
    ],
);

/// The text side of Gemma 4.
pub const GEMMA4_TEXT: Class = (
    "Gemma4TextConfig",
    &[
        ("attention_bias", Only(Off)),
        ("attention_dropout", Irrelevant),
        ("attention_k_eq_v", Read),
        ("bos_token_id", Read),
        ("enable_moe_block", Read),
        ("eos_token_id", Read),
        ("final_logit_softcapping", Read),
        ("global_head_dim", Read),
        ("head_dim", Read),
        ("hidden_activation", Read),
        ("hidden_size", Read),
        ("hidden_size_per_layer_input", Read),
        ("intermediate_size", Read),
        ("layer_types", Read),
        ("max_position_embeddings", Read),
        ("model_type", Only(Word(&["gemma4_text", "gemma4_unified_text"]))),
        ("moe_intermediate_size", Read),
        ("num_attention_heads", Read),
        ("num_experts", Read),
        ("num_global_key_value_heads", Read),
        ("num_hidden_layers", Read),
        ("num_key_value_heads", Read),
        ("num_kv_shared_layers", Read),
        ("pad_token_id", Read),
        ("per_layer_config", Read),
        ("rms_norm_eps", Read),
        ("rope_parameters", Read),
        ("sliding_window", Read),
        ("tie_word_embeddings", Read),
        ("top_k_experts", Read),
        ("use_bidirectional_attention", Read),
        ("use_double_wide_mlp", Read),
        ("vocab_size", Read),
        ("vocab_size_per_layer_input", Read),
    ],
);

/// The vision tower of Gemma 4.
pub const GEMMA4_VISION: Class = (
    "Gemma4VisionConfig",
    &[
        ("attention_bias", Read),
        ("attention_dropout", Irrelevant),
        ("head_dim", Read),
        ("hidden_activation", Read),
        ("hidden_size", Read),
        ("intermediate_size", Read),
        // Positions are looked up in a table of `position_embedding_size`.
        ("max_position_embeddings", Irrelevant),
        ("model_type", Only(Word(&["gemma4_vision"]))),
        ("num_attention_heads", Read),
        ("num_hidden_layers", Read),
        ("num_key_value_heads", Read),
        ("patch_size", Read),
        ("pooling_kernel_size", Read),
        ("position_embedding_size", Read),
        ("rms_norm_eps", Read),
        ("rope_parameters", Read),
        ("standardize", Read),
        ("use_clipped_linears", Read),
    ],
);

/// The audio tower of Gemma 4.
pub const GEMMA4_AUDIO: Class = (
    "Gemma4AudioConfig",
    &[
        ("attention_chunk_size", Read),
        ("attention_context_left", Read),
        ("attention_context_right", Read),
        // Far below any score, whatever it is.
        ("attention_invalid_logits_value", Only(AtMost(-1e6))),
        ("attention_logit_cap", Read),
        ("conv_kernel_size", Read),
        // Far above any activation: it was for training.
        ("gradient_clipping", Only(AtLeast(1e9))),
        ("hidden_act", Read),
        ("hidden_size", Read),
        ("model_type", Only(Word(&["gemma4_audio"]))),
        ("num_attention_heads", Read),
        ("num_hidden_layers", Read),
        ("output_proj_dims", Read),
        ("residual_weight", Read),
        ("rms_norm_eps", Read),
        ("subsampling_conv_channels", Read),
        ("use_clipped_linears", Read),
    ],
);

/// Gemma 4 with eyes and ears; the unified one, too.
pub const GEMMA4: Class = (
    "Gemma4Config",
    &[
        ("audio_config", Read),
        ("audio_token_id", ReadWithMedia),
        // The template spells the tokens around images and audio.
        ("boa_token_id", Irrelevant),
        ("boi_token_id", Irrelevant),
        ("eoa_token_id", Irrelevant),
        ("eoa_token_index", Irrelevant),
        ("eoi_token_id", Irrelevant),
        ("eos_token_id", Read),
        ("image_token_id", ReadWithMedia),
        ("model_type", Read),
        ("text_config", Read),
        ("tie_word_embeddings", Read),
        ("video_token_id", ReadWithMedia),
        ("vision_config", Read),
    ],
);

/// How the unified Gemma 4 takes patches.
pub const UNIFIED_VISION: Class = (
    "Gemma4UnifiedVisionConfig",
    &[
        ("mm_embed_dim", Read),
        ("mm_posemb_size", Read),
        ("model_patch_size", Read),
        ("model_type", Only(Word(&["gemma4_unified_vision"]))),
        ("output_proj_dims", Read),
        ("patch_size", Read),
        ("pooling_kernel_size", Read),
        ("rms_norm_eps", Read),
    ],
);

/// How the unified Gemma 4 takes audio.
pub const UNIFIED_AUDIO: Class = (
    "Gemma4UnifiedAudioConfig",
    &[
        ("audio_embed_dim", Read),
        // Other names of the same number.
        ("audio_samples_per_token", Read),
        ("hidden_size", Read),
        ("model_type", Only(Word(&["gemma4_unified_audio"]))),
        ("output_proj_dims", Read),
        ("rms_norm_eps", Read),
    ],
);

/// A drafter of Gemma 4.
pub const ASSISTANT: Class = (
    "Gemma4AssistantConfig",
    &[
        ("backbone_hidden_size", Read),
        ("centroid_intermediate_top_k", Read),
        ("model_type", Read),
        ("num_centroids", Read),
        ("text_config", Read),
        ("tie_word_embeddings", Read),
        ("use_ordered_embeddings", Read),
    ],
);

/// The classes of a `config.json` of this type: of the file itself, and of its parts by their names.
pub fn classes(model_type: &str) -> Vec<(&'static str, &'static [Class])> {
    match model_type {
        "gemma3_text" => vec![("", &[COMMON, GEMMA3_TEXT])],
        "gemma3" => vec![
            ("", &[COMMON, GEMMA3]),
            ("text_config", &[COMMON, GEMMA3_TEXT]),
            ("vision_config", &[COMMON, SIGLIP]),
        ],
        "gemma4_text" | "gemma4_unified_text" => vec![("", &[COMMON, GEMMA4_TEXT])],
        "gemma4" => vec![
            ("", &[COMMON, GEMMA4]),
            ("text_config", &[COMMON, GEMMA4_TEXT]),
            ("vision_config", &[COMMON, GEMMA4_VISION]),
            ("audio_config", &[COMMON, GEMMA4_AUDIO]),
        ],
        "gemma4_unified" => vec![
            ("", &[COMMON, GEMMA4]),
            ("text_config", &[COMMON, GEMMA4_TEXT]),
            ("vision_config", &[COMMON, UNIFIED_VISION]),
            ("audio_config", &[COMMON, UNIFIED_AUDIO]),
        ],
        "gemma4_assistant" | "gemma4_unified_assistant" => {
            vec![("", &[COMMON, ASSISTANT]), ("text_config", &[COMMON, GEMMA4_TEXT])]
        }
        _ => vec![],
    }
}

/// Refuses fields that would change what is computed, and are not run.
pub(crate) fn check(model_type: &str, top: &Fields<'_>) -> Result<()> {
    for (part, classes) in classes(model_type) {
        let fields = match part {
            "" => *top,
            part => match top.object(part)? {
                Some(fields) => fields,
                None => continue,
            },
        };
        for (field, then) in classes.iter().flat_map(|(_, fields)| *fields) {
            if let (Only(run), Some(value)) = (then, fields.get(field)) {
                run.check(part, field, value)?;
            }
        }
    }
    Ok(())
}

impl Run {
    fn check(self, part: &str, field: &str, value: &Value) -> Result<()> {
        let (is_run, only) = match self {
            Off => (value == &Value::Bool(false), "false".to_string()),
            Nothing => (false, "null".to_string()),
            AtLeast(x) => (value.as_f64().is_some_and(|v| v >= x), format!("{x:e} or more")),
            Word(words) => {
                (value.as_str().is_some_and(|v| words.contains(&v)), words.join(" or "))
            }
            AtMost(x) => (value.as_f64().is_some_and(|v| v <= x), format!("{x:e} or less")),
        };
        if is_run {
            return Ok(());
        }
        let of = if part.is_empty() { String::new() } else { format!(" of {part}") };
        Err(Error::config(format!("{field}{of} is {value}; only {only} is run here")))
    }
}
