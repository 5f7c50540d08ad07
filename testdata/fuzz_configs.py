#!/usr/bin/env python3
"""Write random text checkpoints with references, for wider differential testing than the committed ones.

    python fuzz_configs.py OUTDIR COUNT SEED

OUTDIR/<i>/ has the layout of tiny/<family>/, but with one config only: config.json, in the published spelling or in
that of transformers, at random. Checkpoint i depends on SEED and i alone.
"""
import json
import random
import sys
from pathlib import Path

import oracle  # first: it pins the instruction set that torch may use
import make
import torch
import transformers as tf
from make import F, S
from oracle import Prompt, random_ids, reference, search

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def divisors(n):
    return [d for d in range(1, n + 1) if n % d == 0]


def common(rng):
    """Keys that Gemma 3 and Gemma 4 share."""
    heads = rng.choice([1, 2, 3, 4, 6, 8])
    return dict(
        vocab_size=rng.randint(130, 420),
        hidden_size=heads * rng.choice([8, 12, 16, 20]) if heads > 1 else rng.choice([24, 40, 64]),
        intermediate_size=rng.randint(3, 20) * 8,
        num_attention_heads=heads,
        num_key_value_heads=rng.choice(divisors(heads)),
        head_dim=rng.choice([8, 12, 16, 20, 24, 32, 40, 48, 64]),
        sliding_window=rng.randint(2, 17),
        rms_norm_eps=rng.choice([1e-6, 1e-6, 1e-5]),
    )


def gemma3(rng):
    keys = common(rng)
    return make.gemma3_text(
        period=rng.randint(2, 7),
        factor=rng.choice([None, 2.0, 8.0]),
        layers=rng.randint(2, 9),
        query_pre_attn_scalar=rng.choice([keys["head_dim"], keys["hidden_size"] // keys["num_attention_heads"], 10]),
        **keys,
    )


def layer_pattern(rng, n_layers):
    """At least one sliding layer; the last layer is full, as Gemma 4 demands."""
    middle = [rng.choice("ssf") for _ in range(n_layers - 2)]
    return "".join(["s", *middle, "f"])


def gemma4(rng, kind):
    keys = common(rng)
    global_head_dim = rng.choice([8, 16, 24, 32, 48, 64])
    rotary = rng.choice([p for p in (0.25, 0.3, 0.5, 0.75, 1.0) if p * global_head_dim >= 2])
    pattern = layer_pattern(rng, rng.randint(2, 8))
    keys |= dict(global_head_dim=global_head_dim, final_logit_softcapping=rng.choice([None, 4.0, 15.0, 30.0]))
    if kind in ("dense", "moe"):
        keys |= dict(attention_k_eq_v=True, use_bidirectional_attention="vision")
        keys |= dict(num_global_key_value_heads=rng.choice(divisors(keys["num_attention_heads"])))
    if kind == "e":
        pattern, n_shared = shared_pattern(rng)
        keys |= dict(hidden_size_per_layer_input=rng.choice([4, 6, 8, 16, 20]), num_kv_shared_layers=n_shared)
        keys |= dict(use_double_wide_mlp=rng.random() < 0.5)
    if kind == "moe":
        n_experts = rng.randint(3, 12)
        keys |= dict(enable_moe_block=True, num_experts=n_experts, top_k_experts=rng.randint(1, min(4, n_experts - 1)))
        keys |= dict(moe_intermediate_size=rng.randint(1, 6) * 8)
    return make.gemma4_text(pattern, rotary=rotary, **keys)


def shared_pattern(rng):
    """Own layers hold both types, so that every shared layer finds a source."""
    own = layer_pattern(rng, rng.randint(2, 5))
    shared = "".join(rng.choice("ssf") for _ in range(rng.randint(0, 4)))
    return (own + shared + "f", len(shared) + 1) if shared else (own, 0)


KINDS = {
    "gemma3": gemma3,
    "plain": lambda rng: gemma4(rng, "plain"),
    "dense": lambda rng: gemma4(rng, "dense"),
    "e": lambda rng: gemma4(rng, "e"),
    "moe": lambda rng: gemma4(rng, "moe"),
}


def choose_spelling(folder, rng):
    """Leave one config.json. Published Gemma 4 files may name global KV heads that do not count without K = V."""
    hub = folder / "config_hub_style.json"
    if rng.random() < 0.5:
        hub.unlink()
        return "transformers"
    config = json.loads(hub.read_text())
    if config.get("attention_k_eq_v") is False and rng.random() < 0.5:
        config["num_global_key_value_heads"] = 1
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    hub.unlink()
    return "published"


def make_one(folder, rng):
    kind = rng.choice(list(KINDS))
    config = KINDS[kind](rng)
    dtype = rng.choice(list(DTYPES))
    sharded = rng.random() < 0.4
    cls = tf.Gemma3ForCausalLM if kind == "gemma3" else tf.Gemma4ForCausalLM
    n = rng.randint(3, 4 * config.sliding_window + 8)
    prompt = Prompt(random_ids(n, config.vocab_size, rng.randrange(1 << 30), reserved=10))
    avoid = make.EOS["gemma3" if kind == "gemma3" else "gemma4"]

    seed, model, tensors, figures = search(
        lambda seed: oracle.at_dtype(oracle.randomise(cls(config), seed), DTYPES[dtype]),
        lambda model: reference(model, prompt, avoid, min_distinct=2),
        first_seed=rng.randrange(1 << 30),
    )
    model.generation_config = tf.GenerationConfig(**make.SAMPLING, eos_token_id=avoid)
    notes = {"kind": kind, "seed": seed} | oracle.rounded(figures)
    oracle.save(folder, model, tensors, notes, DTYPES[dtype], "64KB" if sharded else None)
    spelling = choose_spelling(folder, rng)
    again = cls.from_pretrained(folder, dtype=DTYPES[dtype]).float().eval()
    assert torch.equal(again(**prompt.arguments(again)).logits, tensors["logits"]), folder
    layers = "".join({S: "s", F: "f"}[t] for t in config.layer_types)
    shards = len(list(folder.glob("model*.safetensors")))
    print(
        f"{folder.name}: {kind} {layers} hidden {config.hidden_size} heads {config.num_attention_heads} n {n} "
        f"window {config.sliding_window} {dtype} {shards} file(s) {spelling} config; noise {figures['noise']:.1e} "
        f"margin {figures['margin']:.3f}",
        flush=True,
    )


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    out, count, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    for i in range(count):
        make_one(out / str(i), random.Random(f"{seed}/{i}"))
