#!/usr/bin/env python3
"""Write the GGUF fixtures beside this script (or into OUT): dequant.safetensors and one tiny model per family.

    python make_gguf.py [OUT] [--f32]

  dequant.safetensors        per block type: raw bytes, the values that gguf-py reads from them; for the types that
                             gguf-py can also write: source values and the bytes it makes of them
  <family>/model.gguf        tensors, metadata and a made-up tokenizer, as llama.cpp's converter would lay them out
  <family>/config.json       the transformers config that the reference was computed with
  <family>/reference.safetensors   input_ids, logits, greedy: transformers with the dequantised weights, in float32
  <family>/tokens.json       what the made-up tokenizer does with some texts

The Gemma 4 models are the checkpoints of ../tiny (run ../make.py first). The Gemma 3 model is its own: a GGUF holds
neither query_pre_attn_scalar nor the layer pattern of Gemma 3, so only the usual values of both can be stored.
`--f32` stores every matrix as F32 (for comparing with llama.cpp, which rounds activations for quantised matrices).
"""
import json
import shutil
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import oracle  # isort: skip  (first: it pins the instruction set that torch may use)
import gguf
import make
import numpy as np
import tiny_tokenizer
import torch
import transformers as tf
from gguf import GGMLQuantizationType as Q
from safetensors.numpy import save_file

# ---------------------------------------------------------------------------------------------- block types

# Byte offsets of the f16 scales in a block. Everything else in a block may be any bits.
SCALE_OFFSETS = {
    Q.Q4_0: [0],
    Q.Q4_1: [0, 2],
    Q.Q5_0: [0],
    Q.Q5_1: [0, 2],
    Q.Q8_0: [0],
    Q.Q2_K: [80, 82],
    Q.Q3_K: [108],
    Q.Q4_K: [0, 2],
    Q.Q5_K: [0, 2],
    Q.Q6_K: [208],
}
WRITABLE = [Q.F16, Q.BF16, Q.Q4_0, Q.Q4_1, Q.Q5_0, Q.Q5_1, Q.Q8_0]
ROWS, COLUMNS = 3, 512


def random_blocks(kind, rng):
    """Rows of random blocks: any payload, finite scales of both signs, one zero and one subnormal scale."""
    block_len, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (ROWS * COLUMNS // block_len, block_bytes), dtype=np.uint8)
    if kind in (Q.F16, Q.BF16):
        exponent = 0x7C00 if kind == Q.F16 else 0x7F80
        bits = blocks.view(np.uint16)
        bits[(bits & exponent) == exponent] &= 0x8FFF  # neither infinite nor NaN
    for offset in SCALE_OFFSETS.get(kind, []):
        scales = rng.uniform(1e-3, 0.1, len(blocks)) * rng.choice([-1, 1], len(blocks))
        scales[:2] = [0.0, 5e-8]
        rng.shuffle(scales)
        blocks[:, offset : offset + 2] = scales.astype(np.float16)[:, None].view(np.uint8)
    return blocks.reshape(ROWS, -1)


def write_dequant(path):
    tensors = {}
    rng = np.random.default_rng(31)
    for kind in [Q.F16, Q.BF16, *SCALE_OFFSETS]:
        raw = random_blocks(kind, rng)
        values = gguf.dequantize(raw, kind)
        assert values.shape == (ROWS, COLUMNS) and np.isfinite(values).all()
        tensors[f"{kind.name}.raw"], tensors[f"{kind.name}.f32"] = raw.reshape(-1), values.astype(np.float32)
        if kind in WRITABLE:
            source = rng.normal(0, 1, (ROWS, COLUMNS)).astype(np.float32)
            source[0, :64] = 0.0  # whole blocks of zeros
            tensors[f"{kind.name}.source"] = source
            tensors[f"{kind.name}.quantised"] = gguf.quantize(source, kind).view(np.uint8).reshape(-1)
    save_file(tensors, path)
    path.chmod(0o644)
    print(f"{path.name}: {path.stat().st_size / 1e3:.0f} kB")


# ---------------------------------------------------------------------------------------------- names

TOP = {
    "embed_tokens.weight": "token_embd.weight",
    "norm.weight": "output_norm.weight",
    "embed_tokens_per_layer.weight": "per_layer_token_embd.weight",
    "per_layer_model_projection.weight": "per_layer_model_proj.weight",
    "per_layer_projection_norm.weight": "per_layer_proj_norm.weight",
}
LAYER = {
    "input_layernorm.weight": "attn_norm.weight",
    "post_attention_layernorm.weight": "post_attention_norm.weight",
    "pre_feedforward_layernorm.weight": "ffn_norm.weight",
    "post_feedforward_layernorm.weight": "post_ffw_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "self_attn.q_norm.weight": "attn_q_norm.weight",
    "self_attn.k_norm.weight": "attn_k_norm.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
    "layer_scalar": "layer_output_scale.weight",
    "per_layer_input_gate.weight": "inp_gate.weight",
    "per_layer_projection.weight": "proj.weight",
    "post_per_layer_input_norm.weight": "post_norm.weight",
    "router.proj.weight": "ffn_gate_inp.weight",
    "router.scale": "ffn_gate_inp.scale",
    "router.per_expert_scale": "ffn_down_exps.scale",
    "experts.gate_up_proj": "ffn_gate_up_exps.weight",
    "experts.down_proj": "ffn_down_exps.weight",
    "post_feedforward_layernorm_1.weight": "post_ffw_norm_1.weight",
    "pre_feedforward_layernorm_2.weight": "pre_ffw_norm_2.weight",
    "post_feedforward_layernorm_2.weight": "post_ffw_norm_2.weight",
}


def gguf_name(name):
    name = name.removeprefix("model.")
    if name in TOP:
        return TOP[name]
    _, layer, rest = name.split(".", 2)
    return f"blk.{layer}.{LAYER[rest]}"


# ---------------------------------------------------------------------------------------------- models

# By layer, in turn; what cannot hold a row length takes F16. Embeddings, the per-layer table and the router: below.
LAYER_TYPES = {
    "gemma3_text": [Q.Q8_0, Q.Q4_0, Q.Q5_0, Q.F16, Q.Q4_1, Q.Q5_1, Q.F32],
    "gemma4_text_dense": [Q.F32, Q.Q8_0, Q.Q4_0, Q.BF16, Q.Q5_0],
    "gemma4_text_e": [Q.Q8_0, Q.F32, Q.Q4_0],
    "gemma4_text_moe": [Q.Q4_0, Q.F16, Q.Q8_0],
}
WHOLE_TYPES = {
    "token_embd.weight": Q.Q8_0,
    "per_layer_token_embd.weight": Q.Q4_0,
    "per_layer_model_proj.weight": Q.BF16,
    "ffn_gate_inp.weight": Q.F32,
}


def tensor_type(family, name, shape, all_f32):
    if all_f32 or len(shape) == 1:
        return Q.F32
    if name.startswith("blk."):
        _, layer, rest = name.split(".", 2)
        kinds = LAYER_TYPES[family]
        kind = WHOLE_TYPES.get(rest) or kinds[int(layer) % len(kinds)]
    else:
        kind = WHOLE_TYPES[name]
    return kind if shape[-1] % gguf.GGML_QUANT_SIZES[kind][0] == 0 else Q.F16


def load_model(family):
    if family == "gemma3_text":
        config = make.gemma3_text(
            layers=7, factor=8.0, vocab_size=317, hidden_size=64, intermediate_size=64, num_attention_heads=4,
            num_key_value_heads=2, head_dim=16, query_pre_attn_scalar=16, sliding_window=8,
        )  # fmt: skip
        return oracle.randomise(tf.Gemma3ForCausalLM(config), 32)
    return tf.Gemma4ForCausalLM.from_pretrained(HERE.parent / "tiny" / family).eval()


def store_weights(writer, family, model, all_f32):
    """Add every tensor to the file, and put what a reader will get back into the model."""
    norm_shift = 1.0 if family == "gemma3_text" else 0.0  # the 1 of Gemma 3's (1 + w) is folded into the file
    kinds = {}
    state = model.state_dict()
    for name in sorted(state):
        if name == "lm_head.weight":
            continue
        values = state[name].numpy()
        target = gguf_name(name)
        if target.endswith("norm.weight"):
            values = values + np.float32(norm_shift)
        kind = tensor_type(family, target, values.shape, all_f32)
        raw = gguf.quantize(values, kind)
        writer.add_tensor(target, raw, raw_dtype=kind)
        kinds[kind.name] = kinds.get(kind.name, 0) + 1
        values = gguf.dequantize(raw, kind).reshape(values.shape)
        if target.endswith("norm.weight"):
            values = values - np.float32(norm_shift)
        state[name].copy_(torch.from_numpy(values.copy()))
    if family != "gemma3_text":
        writer.add_tensor("rope_freqs.weight", rope_freqs(model.config))
    model.tie_weights()
    return kinds


def rope_freqs(config):
    """Divisors of the rotary angles on full layers: 1 where the pair rotates, huge where it does not."""
    head_dim = full_layer(config).head_dim
    n_rotated = int(config.rope_parameters[make.F]["partial_rotary_factor"] * head_dim / 2)
    return np.array([1.0] * n_rotated + [1e30] * (head_dim // 2 - n_rotated), dtype=np.float32)


def full_layer(config):
    return config.per_layer_config[config.layer_types.index(make.F)]


# ---------------------------------------------------------------------------------------------- metadata


def add_metadata(writer, family, config):
    writer.add_type("model")
    writer.add_name(f"tiny random {family}")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count(config.num_attention_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_sliding_window(config.sliding_window)
    writer.add_rope_freq_base(config.rope_parameters[make.F]["rope_theta"])
    if family.startswith("gemma3"):
        # Neither the pattern (period 6) nor the base of sliding layers (1e4) is in the published Gemma 3 files.
        writer.add_feed_forward_length(config.intermediate_size)
        writer.add_head_count_kv(config.num_key_value_heads)
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(config.rope_parameters[make.F]["factor"])
    else:
        add_gemma4_metadata(writer, config)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)


def add_gemma4_metadata(writer, config):
    sliding = config.per_layer_config[config.layer_types.index(make.S)]
    full = full_layer(config)
    is_sliding = [kind == make.S for kind in config.layer_types]
    n_shared = config.num_kv_shared_layers
    widths = [config.intermediate_size] * config.num_hidden_layers
    if config.use_double_wide_mlp:
        widths[-n_shared:] = [2 * config.intermediate_size] * n_shared
    writer.add_feed_forward_length(widths if len(set(widths)) > 1 else widths[0])
    kv_heads = [(sliding if s else full).num_key_value_heads for s in is_sliding]
    writer.add_head_count_kv(kv_heads if len(set(kv_heads)) > 1 else kv_heads[0])
    writer.add_key_length(full.head_dim)
    writer.add_value_length(full.head_dim)
    writer.add_key_length_swa(sliding.head_dim)
    writer.add_value_length_swa(sliding.head_dim)
    writer.add_rope_dimension_count(full.head_dim)
    writer.add_rope_dimension_count_swa(sliding.head_dim)
    writer.add_rope_freq_base_swa(config.rope_parameters[make.S]["rope_theta"])
    writer.add_sliding_window_pattern(is_sliding)
    writer.add_shared_kv_layers(n_shared)
    writer.add_embedding_length_per_layer_input(getattr(config, "hidden_size_per_layer_input", 0))
    if config.final_logit_softcapping:
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    if getattr(config, "enable_moe_block", False):
        writer.add_expert_count(config.num_experts)
        writer.add_expert_used_count(config.top_k_experts)
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)


# ---------------------------------------------------------------------------------------------- main


def make_model(out, family, all_f32):
    folder = out / family
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    model = load_model(family)
    writer = gguf.GGUFWriter(folder / "model.gguf", "gemma3" if family == "gemma3_text" else "gemma4")
    add_metadata(writer, family, model.config)
    tokenizer = tiny_tokenizer.TinyTokenizer(family[:6], model.config.vocab_size)
    tokenizer.add_to(writer)
    kinds = store_weights(writer, family, model, all_f32)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    # The weights are given here, so the search is for a prompt.
    avoid = make.EOS[family[:6]]
    prompt_seed, _, tensors, figures = oracle.search(
        lambda seed: seed,
        lambda seed: oracle.reference(model, make.text_prompt(model.config, seed), avoid, min_distinct=5),
        first_seed=33_000,
    )
    notes = {"prompt_seed": prompt_seed, "types": kinds} | oracle.rounded(figures)
    oracle.save_file(
        {k: v.contiguous() for k, v in tensors.items()},
        folder / "reference.safetensors",
        metadata={"notes": json.dumps(notes)},
    )
    model.config.save_pretrained(folder)
    (folder / "tokens.json").write_text(tokenizer.samples_json())
    for file in folder.iterdir():
        file.chmod(0o644)
    print(f"{family}: {oracle.size_of(folder) / 1e3:.0f} kB, {notes}", flush=True)


if __name__ == "__main__":
    arguments = [a for a in sys.argv[1:] if a != "--f32"]
    out = Path(arguments[0]) if arguments else HERE
    out.mkdir(parents=True, exist_ok=True)
    write_dequant(out / "dequant.safetensors")
    for family in LAYER_TYPES:
        make_model(out, family, "--f32" in sys.argv)
