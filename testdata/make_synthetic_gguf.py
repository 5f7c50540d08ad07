#!/usr/bin/env python3
"""Write GGUF files of the true shape of released Gemma models, with random weights, for measuring speed.

    python make_synthetic_gguf.py OUT [gemma-3-1b] [gemma-3-4b] [gemma-4-e2b] [--spm GGUF] [--bpe TOKENIZER_JSON]

  OUT/gemma-3-1b-q4_0.gguf    (and 4b) matrices Q4_0, embedding (which is the head as well) Q8_0
  OUT/gemma-4-e2b-q4_0.gguf   matrices Q4_0, embedding/head and the per-layer table Q6_K, per_layer_model_proj BF16

These are the types that llama-quantize chooses for `Q4_0` (with `--token-embedding-type q8_0` for Gemma 3).
The blocks are random bits with scales that give the weights a standard deviation of 1/sqrt(columns), so that nothing
overflows and a decoder does the same work as with trained weights; what such a model says means nothing.
The vocabularies are the real ones: `--spm` is a GGUF of any Gemma 3 (default ../weights/gemma-3-270m.gguf),
`--bpe` Gemma 4's tokenizer.json, packed with gzip or not (default ../../shared/data/gemma4-it-tokenizer.json.gz).
"""
import argparse
import gzip
import json
import math
import os
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Q

HERE = Path(__file__).resolve().parent
RELEASED = HERE.parent / "crates" / "gemma" / "released"
NORMAL, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 3, 4, 5, 6
# What released configs of Gemma 3 leave to transformers' class.
GEMMA3_DEFAULTS = {
    "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 262_208,
    "max_position_embeddings": 131_072, "rms_norm_eps": 1e-6, "rope_theta": 1_000_000,
}  # fmt: skip
# Rows are made in pieces of about this many bytes.
PIECE_BYTES = 64 << 20


# ---------------------------------------------------------------------------------------------- tensors


class Tensor:
    """A tensor that is made when it is written. Shapes are outermost first, as in transformers."""

    def __init__(self, name, shape, kind, *, value=None):
        self.name, self.shape, self.kind, self.value = name, shape, kind, value
        block_len, block_bytes = gguf.GGML_QUANT_SIZES[kind]
        assert shape[-1] % block_len == 0, f"{name}: {shape[-1]} columns do not hold blocks of {block_len}"
        self.row_bytes = shape[-1] // block_len * block_bytes
        self.n_rows = math.prod(shape[:-1])

    def pieces(self, rng):
        """The tensor's bytes, a few rows at a time."""
        if self.value is not None:
            values = np.broadcast_to(np.asarray(self.value, np.float32), self.shape)
            yield gguf.quantize(np.ascontiguousarray(values), self.kind)
            return
        rows_at_once = max(1, PIECE_BYTES // self.row_bytes)
        for start in range(0, self.n_rows, rows_at_once):
            n_rows = min(rows_at_once, self.n_rows - start)
            yield random_rows(self.kind, n_rows, self.shape[-1], rng)


def random_rows(kind, n_rows, n_columns, rng):
    """Rows of quantised weights around zero whose standard deviation is 1/sqrt(n_columns)."""
    std = 1 / math.sqrt(n_columns)
    if kind in (Q.F32, Q.F16, Q.BF16):
        return gguf.quantize(rng.normal(0, std, (n_rows, n_columns)).astype(np.float32), kind)
    block_len, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    n_blocks = n_rows * n_columns // block_len
    blocks = np.frombuffer(rng.bytes(n_blocks * block_bytes), np.uint8).reshape(n_blocks, block_bytes).copy()
    # A scale of either sign centres the weights, because the levels of a block are not centred.
    scales = rng.uniform(0.7, 1.3, n_blocks) * rng.choice([-1, 1], n_blocks) * std
    if kind == Q.Q4_0:  # scale, 16 bytes of nibbles in -8..8
        offset, level_std = 0, math.sqrt((16**2 - 1) / 12)
    elif kind == Q.Q8_0:  # scale, 32 bytes in -128..128
        offset, level_std = 0, math.sqrt((256**2 - 1) / 12)
    elif kind == Q.Q6_K:  # 192 bytes of levels in -32..32, 16 sub-scales, scale
        offset, level_std = 208, math.sqrt((64**2 - 1) / 12) * 96
        blocks[:, 192:208] = rng.integers(64, 128, (n_blocks, 16), dtype=np.uint8)
    else:
        raise ValueError(f"no random blocks for {kind.name}")
    blocks[:, offset : offset + 2] = (scales / level_std).astype(np.float16)[:, None].view(np.uint8)
    return blocks.reshape(n_rows, -1)


# ---------------------------------------------------------------------------------------------- models


def gemma3_tensors(c):
    hidden, inner, head = c["hidden_size"], c["intermediate_size"], c["head_dim"]
    queries, keys = c["num_attention_heads"] * head, c["num_key_value_heads"] * head
    yield Tensor("token_embd.weight", (c["vocab_size"], hidden), Q.Q8_0)
    yield Tensor("output_norm.weight", (hidden,), Q.F32, value=1.0)
    for i in range(c["num_hidden_layers"]):
        yield from layer_tensors(f"blk.{i}", hidden, inner, head, queries, keys, head_norm=1.0)


def gemma4_tensors(c):
    hidden, n_layers, ple = c["hidden_size"], c["num_hidden_layers"], c["hidden_size_per_layer_input"]
    first_shared = n_layers - c["num_kv_shared_layers"]
    yield Tensor("token_embd.weight", (c["vocab_size"], hidden), Q.Q6_K)
    yield Tensor("output_norm.weight", (hidden,), Q.F32, value=1.0)
    yield Tensor("per_layer_token_embd.weight", (c["vocab_size_per_layer_input"], n_layers * ple), Q.Q6_K)
    yield Tensor("per_layer_model_proj.weight", (n_layers * ple, hidden), Q.BF16)
    yield Tensor("per_layer_proj_norm.weight", (ple,), Q.F32, value=1.0)
    head = c["global_head_dim"]
    n_rotated = int(c["rope_parameters"]["full_attention"]["partial_rotary_factor"] * head / 2)
    # Divisors of the rotary angles on full layers: 1 where the pair rotates, huge where it does not.
    factors = [1.0] * n_rotated + [1e30] * (head // 2 - n_rotated)
    yield Tensor("rope_freqs.weight", (head // 2,), Q.F32, value=factors)
    for i, kind in enumerate(c["layer_types"]):
        head = c["head_dim"] if kind == "sliding_attention" else c["global_head_dim"]
        queries, keys = c["num_attention_heads"] * head, c["num_key_value_heads"] * head
        inner = c["intermediate_size"] * (2 if c["use_double_wide_mlp"] and i >= first_shared else 1)
        # Gemma 4 does not scale scores, so its head norms do: score deviation = head_norm² · sqrt(head).
        # Layers that share keys and values keep the tensors that they do not use, as the released ones do.
        yield from layer_tensors(f"blk.{i}", hidden, inner, head, queries, keys, head_norm=head**-0.25)
        yield Tensor(f"blk.{i}.inp_gate.weight", (ple, hidden), Q.Q4_0)
        yield Tensor(f"blk.{i}.proj.weight", (hidden, ple), Q.Q4_0)
        yield Tensor(f"blk.{i}.post_norm.weight", (hidden,), Q.F32, value=1.0)
        yield Tensor(f"blk.{i}.layer_output_scale.weight", (1,), Q.F32, value=1.0)


def layer_tensors(at, hidden, inner, head, queries, keys, head_norm):
    matrices = {
        "attn_q": (queries, hidden),
        "attn_k": (keys, hidden),
        "attn_v": (keys, hidden),
        "attn_output": (hidden, queries),
        "ffn_gate": (inner, hidden),
        "ffn_up": (inner, hidden),
        "ffn_down": (hidden, inner),
    }
    for name, shape in matrices.items():
        yield Tensor(f"{at}.{name}.weight", shape, Q.Q4_0)
    for name in ["attn_q_norm", "attn_k_norm"]:
        yield Tensor(f"{at}.{name}.weight", (head,), Q.F32, value=head_norm)
    for name in ["attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"]:
        yield Tensor(f"{at}.{name}.weight", (hidden,), Q.F32, value=1.0)


# ---------------------------------------------------------------------------------------------- metadata


def add_metadata(writer, c):
    writer.add_type("model")
    writer.add_context_length(c["max_position_embeddings"])
    writer.add_embedding_length(c["hidden_size"])
    writer.add_block_count(c["num_hidden_layers"])
    writer.add_head_count(c["num_attention_heads"])
    writer.add_head_count_kv(c["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(c["rms_norm_eps"])
    writer.add_sliding_window(c["sliding_window"])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_0)


def add_gemma3_metadata(writer, c):
    writer.add_feed_forward_length(c["intermediate_size"])
    writer.add_key_length(c["head_dim"])
    writer.add_value_length(c["head_dim"])
    writer.add_rope_freq_base(float(c["rope_theta"]))
    if scaling := c.get("rope_scaling"):
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(scaling["factor"])


def add_gemma4_metadata(writer, c):
    n_layers, n_shared = c["num_hidden_layers"], c["num_kv_shared_layers"]
    wide = 2 if c["use_double_wide_mlp"] else 1
    widths = [c["intermediate_size"]] * (n_layers - n_shared) + [wide * c["intermediate_size"]] * n_shared
    writer.add_feed_forward_length(widths)
    writer.add_key_length(c["global_head_dim"])
    writer.add_value_length(c["global_head_dim"])
    writer.add_key_length_swa(c["head_dim"])
    writer.add_value_length_swa(c["head_dim"])
    writer.add_rope_dimension_count(c["global_head_dim"])
    writer.add_rope_dimension_count_swa(c["head_dim"])
    writer.add_rope_freq_base(c["rope_parameters"]["full_attention"]["rope_theta"])
    writer.add_rope_freq_base_swa(c["rope_parameters"]["sliding_attention"]["rope_theta"])
    writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in c["layer_types"]])
    writer.add_shared_kv_layers(n_shared)
    writer.add_embedding_length_per_layer_input(c["hidden_size_per_layer_input"])
    writer.add_final_logit_softcapping(c["final_logit_softcapping"])


def add_special_ids(writer):
    writer.add_bos_token_id(2)
    writer.add_eos_token_id(1)
    writer.add_unk_token_id(3)
    writer.add_pad_token_id(0)
    writer.add_add_bos_token(True)
    writer.add_add_space_prefix(False)


def add_spm_vocabulary(writer, path, vocab_size):
    """SentencePiece, as another GGUF has it, with as many unused tokens behind as the model has rows."""
    fields = gguf.GGUFReader(path).fields
    field = fields["tokenizer.ggml.tokens"]
    tokens = [bytes(field.parts[i]) for i in field.data]
    more = range(len(tokens), vocab_size)
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens + [f"[PAD{i}]".encode() for i in more])
    writer.add_token_scores(fields["tokenizer.ggml.scores"].contents() + [-1000.0] * len(more))
    writer.add_token_types(fields["tokenizer.ggml.token_type"].contents() + [UNUSED] * len(more))
    writer.add_add_eos_token(False)
    add_special_ids(writer)


def add_bpe_vocabulary(writer, path):
    """Merges, as llama.cpp's converter writes Gemma 4's tokenizer.json."""
    opened = gzip.open(path) if path.suffix == ".gz" else open(path, "rb")
    with opened as file:
        tokenizer = json.load(file)
    vocabulary = tokenizer["model"]["vocab"]
    tokens = sorted(vocabulary, key=vocabulary.get)
    assert [vocabulary[t] for t in tokens] == list(range(len(tokens))), "the ids have gaps"
    special = {a["content"] for a in tokenizer["added_tokens"]}
    is_byte = lambda t: len(t) == 6 and t.startswith("<0x") and t.endswith(">")
    writer.add_tokenizer_model("gemma4")
    writer.add_token_list([t.encode() for t in tokens])
    writer.add_token_scores([-1000.0] * len(tokens))
    writer.add_token_types([CONTROL if t in special else BYTE if is_byte(t) else NORMAL for t in tokens])
    writer.add_token_merges([" ".join(pair) for pair in tokenizer["model"]["merges"]])
    add_special_ids(writer)


# ---------------------------------------------------------------------------------------------- main


def make(name, out, arguments):
    config = json.loads((RELEASED / f"{name}.json").read_text())
    gemma4 = config["model_type"] == "gemma4"
    config = config.get("text_config", config)
    if not gemma4:
        config = GEMMA3_DEFAULTS | config
    path = out / f"{name}-q4_0.gguf"
    partial = path.with_suffix(".partial")
    writer = gguf.GGUFWriter(partial, "gemma4" if gemma4 else "gemma3")
    writer.add_name(f"{name} shape, random weights")
    add_metadata(writer, config)
    if gemma4:
        add_gemma4_metadata(writer, config)
        add_bpe_vocabulary(writer, arguments.bpe)
    else:
        add_gemma3_metadata(writer, config)
        add_spm_vocabulary(writer, arguments.spm, config["vocab_size"])
    tensors = list(gemma4_tensors(config) if gemma4 else gemma3_tensors(config))
    for t in tensors:
        writer.add_tensor_info(
            t.name, t.shape, np.dtype(np.float32), t.n_rows * t.row_bytes, raw_dtype=t.kind,
        )  # fmt: skip
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()

    rng = np.random.default_rng(41)
    with open(partial, "ab") as file:
        pad_to(file, gguf.GGUF_DEFAULT_ALIGNMENT)
        for t in tensors:
            for piece in t.pieces(rng):
                file.write(piece.tobytes())
            pad_to(file, gguf.GGUF_DEFAULT_ALIGNMENT)
    os.replace(partial, path)
    print(f"{path.name}: {path.stat().st_size / 1e6:.0f} MB, {len(tensors)} tensors", flush=True)


def pad_to(file, alignment):
    file.write(bytes(-file.tell() % alignment))


if __name__ == "__main__":
    names = ["gemma-3-1b", "gemma-3-4b", "gemma-4-e2b"]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("names", nargs="*", metavar="name", help=f"of {', '.join(names)}; all if none is given")
    parser.add_argument("--spm", type=Path, default=HERE.parent / "weights" / "gemma-3-270m.gguf")
    parser.add_argument("--bpe", type=Path, default=HERE.parents[1] / "shared/data/gemma4-it-tokenizer.json.gz")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(names):
        parser.error(f"there is no {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name in arguments.names or names:
        make(name, arguments.out, arguments)
