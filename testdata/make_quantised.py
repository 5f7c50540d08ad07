#!/usr/bin/env python3
"""Write tiny folders that MLX and torchao quantised, with what they mean, into quantised/<folder>/.

    python make_quantised.py             all, beside this script
    python make_quantised.py OUT         all, into OUT

The environment: README.md, requirements.txt and requirements-quantised.txt. The folders are written by mlx-lm's and
transformers' own code. `reference.safetensors` holds `input_ids`, `logits` and `greedy` of transformers in float32
with the dequantised weights, and `dequantised.<name>`: the last row of each quantised weight (of each expert)
in float32, under its Hugging Face name. mlx-lm in float32 must agree with the logits.
"""
import contextlib
import copy
import io
import json
import shutil
import sys
import tempfile
from pathlib import Path

import make  # first: it imports oracle, which pins the instruction set that torch may use
import mlx.core as mx
import mlx_lm.utils as mlx_lm
import numpy as np
import oracle
import torch
import transformers as tf
from mlx.utils import tree_flatten, tree_map
from safetensors.torch import load_file, save_file
from torchao.quantization import Int4TilePackedTo4dTensor, Int8Tensor, IntxUnpackedToInt8Tensor, MappingType
from torchao.quantization import Int4Tensor, IntxWeightOnlyConfig
from torchao.quantization.granularity import PerAxis, PerGroup, PerRow, PerTensor
from torchao.quantization.quant_api import FqnToConfig, Int8DynamicActivationIntxWeightConfig
from torchao.quantization.quant_primitives import _dequantize_affine_tinygemm, dequantize_affine

HERE = Path(__file__).resolve().parent
MAX_MLX_DIFFERENCE = 5e-5  # between transformers' and mlx-lm's logits, both float32 on the same numbers
MIN_DISTINCT = 2  # such small models like to repeat themselves
VOCAB = 64


# ---------------------------------------------------------------------------------------------- MLX


# fmt: off
def gemma3_128():
    """Rows of 128, so that every group fits; 15 projections of them."""
    return make.gemma3_text(
        period=3, layers=3, vocab_size=VOCAB, hidden_size=128, intermediate_size=32, num_attention_heads=1,
        num_key_value_heads=1, head_dim=32, query_pre_attn_scalar=32, sliding_window=4)


def gemma4_experts():
    """Experts, per-layer embeddings, a soft-cap."""
    return make.gemma4_text(
        "sf", vocab_size=VOCAB, hidden_size=64, intermediate_size=32, num_attention_heads=1, num_key_value_heads=1,
        head_dim=32, global_head_dim=32, sliding_window=4, final_logit_softcapping=20.0, enable_moe_block=True,
        num_experts=3, top_k_experts=2, moe_intermediate_size=32, hidden_size_per_layer_input=32)
# fmt: on


# Every pair of bits and group, but for three that the rows of 64 of the other folder have.
PAIRS = [(b, g) for b in (2, 3, 4, 5, 6, 8) for g in (32, 64, 128) if (b, g) not in ((2, 64), (5, 64), (8, 64))]


def every_pair():
    """Gives the projections of 128 columns one pair after another, and leaves one of the others alone."""
    left = iter(PAIRS)

    def predicate(path, module):
        if path == "model.layers.2.self_attn.o_proj":
            return False
        if module.weight.shape[-1] == 128 and "layers" in path:
            bits, group = next(left)
            return {"group_size": group, "bits": bits}
        return True

    return predicate


def mixed_experts(path, _module):
    """As mlx-lm chooses for Gemma 4, with some widths of our own. Gate and up of the experts are alike."""
    if path.endswith("router.proj"):
        return {"group_size": 64, "bits": 8}
    if path.endswith("per_layer_model_projection"):
        return {"group_size": 64, "bits": 2}
    if path.endswith(("layers.0.self_attn.q_proj", "layers.1.mlp.gate_proj")):
        return {"group_size": 64, "bits": 5}
    if path.endswith(("layers.0.mlp.up_proj", "1.experts.switch_glu.gate_proj", "1.experts.switch_glu.up_proj")):
        return {"group_size": 32, "bits": 4, "mode": "mxfp4"}
    if path.endswith(("layers.0.self_attn.o_proj", "layers.1.mlp.up_proj")):
        return {"group_size": 16, "bits": 4, "mode": "nvfp4"}
    if "down_proj" in path or path.endswith("embed_tokens_per_layer"):
        return {"group_size": 32, "bits": 6}
    return True


def quantise_mlx(source, folder, dtype, predicate):
    """What mlx_lm.convert does, without a tokenizer: 4 bits in groups of 32, unless `predicate` says otherwise."""
    with contextlib.redirect_stdout(io.StringIO()):
        model, config = mlx_lm.load_model(source, lazy=True)
        model.update(tree_map(lambda x: x.astype(dtype), model.parameters()))
        model, config = mlx_lm.quantize_model(model, config, 32, 4, quant_predicate=predicate)
        mlx_lm.save_model(folder, model)
        mlx_lm.save_config(config, config_path=folder / "config.json")
    (folder / "model.safetensors.index.json").unlink()  # beside one file it says nothing


def float_mlx(folder):
    """The folder's model with its scales, biases and other floats widened."""
    model, _ = mlx_lm.load_model(folder)
    widen = lambda x: x.astype(mx.float32) if mx.issubdtype(x.dtype, mx.floating) else x
    model.update(tree_map(widen, model.parameters()))
    return model


def dequantised_mlx(model):
    """{name of transformers: float32 array}, and the names of those that were quantised."""
    values = dict(tree_flatten(model.parameters()))
    modules = dict(model.named_modules())
    out, quantised = {}, set()
    for name, value in values.items():
        stem, _, leaf = name.rpartition(".")
        if leaf in ("scales", "biases"):
            continue
        if f"{stem}.scales" in values:
            m = modules[stem]
            parts = (value, values[f"{stem}.scales"], values.get(f"{stem}.biases"))
            value = mx.dequantize(*parts, m.group_size, m.bits, m.mode, dtype=mx.float32)
            quantised.add(name)
        out[name] = torch.from_numpy(np.array(value))
    for name in [n for n in out if n.endswith("switch_glu.gate_proj.weight")]:
        stem = name.removesuffix("gate_proj.weight")
        both = [out.pop(stem + half) for half in ("gate_proj.weight", "up_proj.weight")]
        quantised -= {stem + "gate_proj.weight", stem + "up_proj.weight"}
        out[stem + "gate_up_proj"] = torch.cat(both, 1)
        out[stem + "down_proj"] = out.pop(stem + "down_proj.weight")
        quantised = quantised - {stem + "down_proj.weight"} | {stem + "gate_up_proj", stem + "down_proj"}
    rename = lambda n: n.removeprefix("language_model.").replace(".switch_glu.", ".")
    return {rename(n): v for n, v in out.items()}, {rename(n) for n in quantised}


def make_mlx(name, config, cls, dtypes, predicate, first_seed):
    folder = OUT / name
    torch_dtype, dtype = dtypes

    def build(seed):
        model = oracle.at_dtype(oracle.randomise(cls(config()), seed), torch_dtype)
        with tempfile.TemporaryDirectory() as temporary:
            source = Path(temporary)
            save_source(model, source, prefixed=name.endswith("gemma4"))
            shutil.rmtree(folder, ignore_errors=True)
            quantise_mlx(source, folder, dtype, predicate())
        values, model.quantised = dequantised_mlx(float_mlx(folder))
        missing = model.load_state_dict(values, strict=False)
        assert not missing.unexpected_keys and missing.missing_keys == ["lm_head.weight"], missing
        model.tie_weights()
        return model

    def run(model):
        tensors, figures = run_reference(model)
        if figures["good"]:
            mine = float_mlx(folder)
            if hasattr(mine, "language_model"):
                mine = mine.language_model
            round_embed_scales(mine, model)
            logits = torch.from_numpy(np.array(mine(mx.array(tensors["input_ids"].numpy()))))
            figures["mlx"] = (logits - tensors["logits"]).abs().max().item()
            assert figures["mlx"] < MAX_MLX_DIFFERENCE, figures
        return tensors, figures

    seed, model, tensors, figures = oracle.search(build, run, first_seed)
    finish(folder, model, tensors, {"seed": seed} | figures)


def save_source(model, folder, prefixed):
    """The folder that mlx-lm converts: published spelling, and for a multimodal one its names."""
    model.save_pretrained(folder)
    config = oracle.hub_style(json.loads((folder / "config.json").read_text()))
    if config["model_type"] == "gemma3_text":
        # mlx-lm's own defaults are those of the 1B model, so the keys that a published file leaves out are written.
        keys = "num_attention_heads num_key_value_heads query_pre_attn_scalar rms_norm_eps sliding_window vocab_size"
        config = {k: getattr(model.config, k) for k in keys.split()} | config
    if prefixed:
        config = {"model_type": "gemma4", "vocab_size": config["vocab_size"], "text_config": config}
        weights = load_file(folder / "model.safetensors")
        weights = {n.replace("model.", "model.language_model.", 1): w for n, w in weights.items()}
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))


def round_embed_scales(mine, model):
    """In float32 mlx-lm would not round Gemma 4's factors; in the folder's own type it does."""
    inner = mine.model
    if hasattr(inner, "embed_scale"):
        inner.embed_scale = model.model.embed_tokens.embed_scale.item()
        inner.embed_tokens_per_layer_scale = model.model.embed_tokens_per_layer.embed_scale.item()


# ---------------------------------------------------------------------------------------------- torchao


def gemma3_64():
    return make.gemma3_text(
        period=3, layers=3, vocab_size=VOCAB, hidden_size=64, intermediate_size=32, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16, query_pre_attn_scalar=16, sliding_window=4,
    )  # fmt: skip


def intx(bits, granularity, mapping=MappingType.SYMMETRIC):
    return IntxWeightOnlyConfig(getattr(torch, f"int{bits}"), granularity, mapping)


ASYMMETRIC = MappingType.ASYMMETRIC
# What transformers is asked to do; layers 1 and 2 are replaced in part below.
RECIPE = {
    "model.embed_tokens": intx(8, PerAxis(0)),
    "lm_head": None,
    "model.layers.0.self_attn.q_proj": intx(4, PerGroup(32), ASYMMETRIC),
    "model.layers.0.self_attn.k_proj": intx(2, PerGroup(32)),
    "model.layers.0.self_attn.v_proj": intx(8, PerGroup(64), ASYMMETRIC),
    "model.layers.0.self_attn.o_proj": intx(3, PerGroup(16), ASYMMETRIC),
    "model.layers.0.mlp.gate_proj": intx(6, PerAxis(0)),
    "model.layers.0.mlp.up_proj": intx(5, PerGroup(32), ASYMMETRIC),
    "_default": Int8DynamicActivationIntxWeightConfig(torch.int4, PerGroup(32)),
}


def min_max_int4(w, group):
    """Unsigned codes with scale and zero per group, `w = (q - 8) * scale + zero`, in w's type."""
    groups = w.float().reshape(*w.shape[:-1], -1, group)
    low, high = groups.amin(-1), groups.amax(-1)
    scale = (high - low).clamp(min=1e-6) / 15
    q = ((groups - low[..., None]) / scale[..., None]).round().clamp(0, 15).to(torch.uint8)
    return q.reshape(w.shape), scale.to(w.dtype), (low + 8 * scale).to(w.dtype)


def int4_plain(w, group):
    """Int4Tensor as its from_hp() makes it with the kernel package mslk, which has no CPU build: signed nibbles, low
    first, scale and zero transposed."""
    q, scale, zero = min_max_int4(w, group)
    signed = (q.int() - 8).to(torch.int8)
    packed = (signed[:, ::2] & 0xF) | (signed[:, 1::2] << 4)
    floats = [x.t().contiguous() for x in (scale, zero)]
    return Int4Tensor(packed.contiguous(), *floats, [1, group], w.shape), expected_int4(q, scale, zero, group)


def int4_tiles(w, group):
    """Int4TilePackedTo4dTensor as its from_hp() makes it on a GPU."""
    n, k = w.shape
    wide = torch.nn.functional.pad(w, (0, -k % 1024, 0, -n % 8))
    q, scale, zero = min_max_int4(wide, group)
    params = torch.stack([scale, zero], -1).transpose(0, 1).contiguous()
    tensor = Int4TilePackedTo4dTensor(tile(q), params, [1, group], w.shape)
    return tensor, expected_int4(q, scale, zero, group)[:n, :k].contiguous()


def tile(q):
    """aten::_convert_weight_to_int4pack with 8 inner tiles, which only CUDA has; checked against its output below."""
    n, k = q.shape
    # [n / 8, row, k / 128, word, pair of 8, lane, odd] -> [n / 8, k / 128, row, lane, word, odd, pair of 8]
    parts = q.to(torch.int64).reshape(n // 8, 8, k // 128, 4, 4, 4, 2).permute(0, 2, 1, 5, 3, 6, 4)
    shifts = 4 * torch.arange(8).reshape(2, 4)
    words = (parts << shifts).sum((-1, -2)).reshape(n // 8, k // 128, 32, 4)
    return words.to(torch.uint32).view(torch.int32).contiguous()


def expected_int4(q, scale, zero, group):
    arguments = (q.int(), (1, group), scale.float(), zero.float(), torch.int32, 0, 15)
    return _dequantize_affine_tinygemm(*arguments, output_dtype=torch.float32)


def expected_affine(t):
    """`dequantize()` of torchao's classes, but in float32."""
    bits = int(str(getattr(t, "target_dtype", torch.int8)).removeprefix("torch.int"))
    bounds = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    return dequantize_affine(t.qdata, t.block_size, t.scale.float(), t.zero_point, torch.int8, *bounds)


def check_tiles():
    """The packing and the values of a real GPU: `packed` is _convert_weight_to_int4pack of `codes`, `dequantised` is
    _weight_int4pack_mm of the identity, in bf16."""
    real = load_file(HERE / "quantised" / "tiles.safetensors")
    assert torch.equal(tile(real["codes"]), real["packed"])
    scale, zero = real["scale_and_zero"].transpose(0, 1).unbind(-1)
    mine = expected_int4(real["codes"], scale, zero, 32)
    assert torch.equal(mine.to(torch.bfloat16), real["dequantised"])


def make_torchao(name, first_seed):
    check_tiles()
    folder = OUT / name

    def build(seed):
        model = oracle.at_dtype(oracle.randomise(tf.Gemma3ForCausalLM(gemma3_64()), seed), torch.bfloat16)
        config = tf.TorchAoConfig(FqnToConfig(RECIPE), modules_to_not_convert=[], include_input_output_embeddings=True)
        with tempfile.TemporaryDirectory() as source:
            copy.deepcopy(model).to(torch.bfloat16).save_pretrained(source)
            packed = tf.Gemma3ForCausalLM.from_pretrained(source, dtype=torch.bfloat16, quantization_config=config)
        values = replace_some(packed, model)
        for path, module in packed.named_modules():
            if isinstance(getattr(module, "weight", None), (IntxUnpackedToInt8Tensor, Int8Tensor)):
                values[f"{path}.weight"] = expected_affine(module.weight)
        values.pop("lm_head.weight")
        shutil.rmtree(folder, ignore_errors=True)
        packed.save_pretrained(folder)
        missing = model.load_state_dict(values, strict=False)
        assert not missing.unexpected_keys
        model.tie_weights()
        model.quantised = set(values)
        return model

    seed, model, tensors, figures = oracle.search(build, run_reference, first_seed)
    finish(folder, model, tensors, {"seed": seed} | figures)


def replace_some(packed, model):
    """Puts the classes that transformers makes only on a GPU, or from other recipes, into layers 1 and 2."""
    values = {}

    def put(path, made):
        tensor, value = made if isinstance(made, tuple) else (made, expected_affine(made))
        packed.get_submodule(path).weight = torch.nn.Parameter(tensor, requires_grad=False)
        values[f"{path}.weight"] = value

    weight = lambda path: model.get_submodule(path).weight.detach().to(torch.bfloat16)
    for i, group in (("self_attn.q_proj", 32), ("self_attn.v_proj", 64), ("self_attn.o_proj", 16), ("mlp.up_proj", 64)):
        put(f"model.layers.1.{i}", int4_plain(weight(f"model.layers.1.{i}"), group))
    put("model.layers.2.self_attn.k_proj", int4_tiles(weight("model.layers.2.self_attn.k_proj"), 32))
    put("model.layers.2.mlp.gate_proj", Int8Tensor.from_hp(weight("model.layers.2.mlp.gate_proj"), PerRow()))
    put("model.layers.2.mlp.up_proj", Int8Tensor.from_hp(weight("model.layers.2.mlp.up_proj"), PerTensor()))
    return values


# ---------------------------------------------------------------------------------------------- reference and writing


def run_reference(model):
    """Logits and greedy ids of the model with the dequantised weights."""
    avoid = make.EOS[model.config.model_type[:6]]
    return oracle.reference(model, make.text_prompt(model.config, 7), avoid, min_distinct=MIN_DISTINCT)


def sort_notes(path):
    """safetensors writes the notes of a header in any order."""
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + length :])


def finish(folder, model, tensors, notes):
    state = model.state_dict()
    for name in sorted(model.quantised):
        tensors[f"dequantised.{name}"] = state[name][..., -1:, :].float()
    tensors = {k: v.detach().clone().contiguous() for k, v in tensors.items()}
    save_file(tensors, folder / "reference.safetensors", metadata={"notes": json.dumps(notes)})
    sort_notes(folder / "model.safetensors")
    config = folder / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()), separators=(",", ":")) + "\n")  # a third of the bytes
    for file in folder.iterdir():
        file.chmod(0o644)
    print(folder.name, notes, sum(f.stat().st_size for f in folder.iterdir()), "bytes")


if __name__ == "__main__":
    OUT = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "quantised"
    bf16, f16 = (torch.bfloat16, mx.bfloat16), (torch.float16, mx.float16)
    make_mlx("mlx_gemma3_text", gemma3_128, tf.Gemma3ForCausalLM, bf16, every_pair, 51_000)
    make_mlx("mlx_gemma4", gemma4_experts, tf.Gemma4ForCausalLM, f16, lambda: mixed_experts, 52_000)
    make_torchao("torchao_gemma3_text", 53_000)
