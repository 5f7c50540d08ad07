"""Quantises a trained drafter into the GGUF file that is embedded. Run: python draft_gguf.py FOLDER FILE

The output head is most of it and is kept in Q4_0, everything else in Q8_0. Needs the PyPI package `gguf`.
"""

import json
import sys
from pathlib import Path

import gguf
import numpy as np
from safetensors.torch import load_file

NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "pre_projection.weight": "nextn.pre_projection.weight",
    "post_projection.weight": "nextn.post_projection.weight",
}
LAYER = {
    "input_layernorm.weight": "attn_norm.weight",
    "post_attention_layernorm.weight": "post_attention_norm.weight",
    "pre_feedforward_layernorm.weight": "ffn_norm.weight",
    "post_feedforward_layernorm.weight": "post_ffw_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "self_attn.q_norm.weight": "attn_q_norm.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
    "layer_scalar": "layer_output_scale.weight",
}
MOST = 1 << 20  # bytes that an embedded drafter may take


def gguf_name(name: str) -> str:
    """llama.cpp's name of a weight."""
    if name in NAMES:
        return NAMES[name]
    _, _, i, rest = name.split(".", 3)
    return f"blk.{i}.{LAYER[rest]}"


def metadata(writer: gguf.GGUFWriter, config: dict) -> None:
    c = config["text_config"]
    rope = c["rope_parameters"]
    writer.add_type("model")
    writer.add_name("pebble-assistant")
    writer.add_context_length(c["max_position_embeddings"])
    writer.add_embedding_length(c["hidden_size"])
    writer.add_uint32("gemma4-assistant.embedding_length_out", config["backbone_hidden_size"])
    writer.add_uint32("gemma4-assistant.nextn_predict_layers", c["num_hidden_layers"])
    writer.add_block_count(c["num_hidden_layers"])
    writer.add_feed_forward_length(c["intermediate_size"])
    writer.add_head_count(c["num_attention_heads"])
    writer.add_head_count_kv(c["num_key_value_heads"])
    writer.add_key_length(c["global_head_dim"])
    writer.add_value_length(c["global_head_dim"])
    writer.add_key_length_swa(c["head_dim"])
    writer.add_value_length_swa(c["head_dim"])
    writer.add_layer_norm_rms_eps(c["rms_norm_eps"])
    writer.add_sliding_window(c["sliding_window"])
    writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in c["layer_types"]])
    writer.add_shared_kv_layers(c["num_kv_shared_layers"])
    writer.add_rope_freq_base(rope["full_attention"]["rope_theta"])
    writer.add_rope_freq_base_swa(rope["sliding_attention"]["rope_theta"])
    writer.add_rope_dimension_count(c["global_head_dim"])
    writer.add_rope_dimension_count_swa(c["head_dim"])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    pairs = c["global_head_dim"] // 2
    turning = int(rope["full_attention"]["partial_rotary_factor"] * pairs)
    # Divisors of the angles on full layers: 1 where a pair turns, huge where it does not.
    writer.add_tensor("rope_freqs.weight", np.array([1.0] * turning + [1e30] * (pairs - turning), dtype=np.float32))


def main() -> None:
    folder, out = Path(sys.argv[1]), Path(sys.argv[2])
    writer = gguf.GGUFWriter(out, "gemma4-assistant")
    metadata(writer, json.loads((folder / "config.json").read_text()))
    kinds = gguf.GGMLQuantizationType
    for name, tensor in sorted(load_file(folder / "model.safetensors").items()):
        values = tensor.float().numpy()
        kind = kinds.F32 if values.ndim == 1 else kinds.Q4_0 if "embed_tokens" in name else kinds.Q8_0
        writer.add_tensor(gguf_name(name), gguf.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    size = out.stat().st_size
    print(f"{out}: {size} bytes")
    assert size <= MOST, f"more than {MOST} bytes"


if __name__ == "__main__":
    main()
