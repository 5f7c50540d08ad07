"""What the fixture scripts share: random weights, reference runs with transformers, and writing a checkpoint folder.

Import this module before torch: it pins the instruction set that torch may use (see below).
"""
import os

# torch's bf16 kernels pick AMX when the CPU advertises it. Some virtual machines advertise AMX and then trap
# ("Illegal instruction") when it is used. AVX2 is enough for tiny models and makes the last bits of the
# references less dependent on the machine. Both must be set before torch is imported.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX2")
os.environ.setdefault("ATEN_CPU_CAPABILITY", "avx2")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import copy
import json
import math
import re
import shutil
import tempfile
from pathlib import Path

import torch
import transformers as tf
from safetensors.torch import load_file, save_file

torch.set_num_threads(1)
torch.set_grad_enabled(False)
tf.utils.logging.disable_progress_bar()

NEW_TOKENS = 14  # length of every greedy continuation
MAX_NOISE = 2e-5  # eager, sdpa and cached logits must agree this well
MIN_MARGIN = 4e-3  # between the best and the second-best logit at every greedy step
MIN_ROUTER_GAP = 1e-2  # between the last expert chosen and the first one left out, at every token
MIN_DISTINCT = 6  # different ids in a greedy continuation: a constant one would test nothing


# ---------------------------------------------------------------------------------------------- random weights

# First full match of the tensor name wins. `normal`: mean 0, the given deviation. `uniform`: between the bounds.
# A fresh transformers model has norm scales, scalars, clips and biases that do nothing; a wrong implementation
# passes with those. So every stored tensor is drawn here.
GEMMA4_RULES = [
    (r".*\.layer_scalar", "uniform", 0.6, 1.1),
    (r".*\.(input|output)_min", "uniform", -1.7, -0.9),
    (r".*\.(input|output)_max", "uniform", 0.9, 1.7),
    (r".*\.std_bias", "normal", 0.5),
    (r".*\.(std_scale|per_expert_scale|router\.scale)", "uniform", 0.5, 1.5),
    (r".*\.per_dim_scale", "normal", 0.5),
    (r".*\.(position_embedding_table|pos_embedding)", "normal", 0.3),
    (r".*\.bias", "normal", 0.1),
    # Attention is not scaled by 1/sqrt(head_dim) in Gemma 4: small q/k norms keep the softmax soft.
    (r".*\.[qk]_norm\.weight", "uniform", 0.3, 0.7),
    (r".*(norm|norm_1|norm_2|norm_out|ln1|ln2|norm_pre_attn|norm_post_attn)\.weight", "uniform", 0.6, 1.4),
    (r".*\.embed_tokens_per_layer\.weight", "normal", 0.2),
    (r".*\.embed_tokens\.weight", "normal", 0.09),
    (r".*\.router\.proj\.weight", "normal", 3.0),  # decisive routing: no near-ties between experts
]
GEMMA3_RULES = [
    (r".*vision_tower.*(layernorm|layer_norm\d)\.weight", "uniform", 0.6, 1.4),  # LayerNorm: scale is w
    (r".*norm\.weight", "normal", 0.2),  # RMSNorm: scale is 1 + w
    (r".*position_embedding\.weight", "normal", 0.3),
    (r".*\.embed_tokens\.weight", "normal", 0.09),
    (r".*\.bias", "normal", 0.1),
]
GAIN = 1.4  # of every other matrix, over sqrt(fan-in)


def randomise(model, seed):
    """Draw every tensor that the checkpoint will hold, in name order, from one seeded generator."""
    rng = torch.Generator().manual_seed(seed)
    rules = GEMMA3_RULES if model.config.model_type.startswith("gemma3") else GEMMA4_RULES
    tensors = dict(model.named_parameters()) | dict(model.named_buffers())
    for name in sorted(set(tensors) & set(model.state_dict())):
        tensor = tensors[name]
        if name.endswith("token_ordering"):
            tensor.copy_(torch.randperm(tensor.numel(), generator=rng))
            continue
        kind, *args = next((rule for pattern, *rule in rules if re.fullmatch(pattern, name)), ("matrix",))
        if kind == "uniform":
            low, high = args
            tensor.copy_(torch.rand(tensor.shape, generator=rng) * (high - low) + low)
            continue
        if kind == "matrix" and tensor.dim() < 2:
            raise ValueError(f"no rule for {name} {list(tensor.shape)}")
        stacked = tensor.dim() == 3 and ".experts." in name
        fan_in = tensor.shape[-1] if stacked else math.prod(tensor.shape[1:])
        deviation = args[0] if kind == "normal" else GAIN / math.sqrt(fan_in)
        tensor.copy_(torch.randn(tensor.shape, generator=rng) * deviation)
    model.tie_weights()
    return model.eval()


def at_dtype(model, dtype):
    """The model as a loader would see it after it was stored in `dtype`, but computing in float32.

    Weights are rounded to `dtype` and widened again. transformers also rounds the embedding scale sqrt(hidden)
    to the weight dtype; `from_pretrained` does that to the `embed_scale` buffers, and widening keeps the rounded
    value. The other constants that are not stored are put back to their float32 values: transformers keeps the rotary
    frequencies in float32 anyway, but rounds the `inv_timescales` of the audio tower.
    """
    if dtype == torch.float32:
        return model
    constants = {name: tensor.clone() for name, tensor in model.named_buffers()}
    with tempfile.TemporaryDirectory() as folder:
        model.to(dtype).save_pretrained(folder)
        model = type(model).from_pretrained(folder, dtype=dtype).float().eval()
    for name, tensor in model.named_buffers():
        if name.endswith("embed_scale"):
            assert torch.equal(tensor, constants[name].to(dtype).float()), name
        elif name not in model.state_dict():
            tensor.copy_(constants[name])
    return model


# ---------------------------------------------------------------------------------------------- inputs


def random_ids(n, vocab_size, seed, low=10, reserved=0):
    """BOS, then n-1 ordinary ids; the top `reserved` ids of the vocabulary are left for special tokens."""
    rng = torch.Generator().manual_seed(seed)
    ids = torch.randint(low, vocab_size - reserved, (1, n), generator=rng)
    ids[:, 0] = 2
    return ids


# ---------------------------------------------------------------------------------------------- reference runs


class Prompt:
    """Token ids plus whatever media tensors go with them, and the mask rule of the model."""

    def __init__(self, input_ids, token_types=None, media=None, masks=None):
        self.input_ids = input_ids
        self.token_types = token_types or {}  # per-token tensors, extended with 0 for generated tokens
        self.media = media or {}
        self.masks = masks  # (model, ids, token types) -> attention masks, where forward() has the wrong ones

    def arguments(self, model, new_ids=()):
        """Keyword arguments of a full forward pass over the prompt and `new_ids`."""
        n_new = len(new_ids)
        ids = torch.cat([self.input_ids, torch.tensor([list(new_ids)], dtype=torch.long)], 1)
        types = {k: torch.nn.functional.pad(v, (0, n_new)) for k, v in self.token_types.items()}
        out = {"input_ids": ids, "use_cache": False} | types | self.media
        if self.masks:
            out["attention_mask"] = self.masks(model, ids, types)
        return out


def set_attention(model, name):
    """Switch the attention code of the parts that have a choice (the audio tower has only the eager one)."""
    unified = model.config.model_type == "gemma4_unified"
    parts = ["text_config"] if unified else ["text_config", "vision_config"]
    parts = [p for p in parts if getattr(model.config, p, None) is not None]
    model.set_attn_implementation({p: name for p in parts} if parts else name)


def cached_logits(model, ids):
    """Logits of the same ids, first half in one chunk, then one token at a time."""
    cache = tf.DynamicCache(config=model.config.get_text_config())
    half = ids.shape[1] // 2
    chunks = [ids[:, :half]] + [ids[:, i : i + 1] for i in range(half, ids.shape[1])]
    return torch.cat([model(input_ids=c, past_key_values=cache, use_cache=True).logits for c in chunks], 1)


def greedy(model, prompt, avoid=(), n_new=NEW_TOKENS):
    """Greedy continuation by recomputing everything at each step; (new ids, smallest margin), or none if it meets
    an id of `avoid`."""
    new_ids, margin = [], math.inf
    for _ in range(n_new):
        top = model(**prompt.arguments(model, new_ids)).logits[0, -1].topk(2)
        margin = min(margin, (top.values[0] - top.values[1]).item())
        new_ids.append(int(top.indices[0]))
        if new_ids[-1] in avoid:
            return None, 0.0
    return new_ids, margin


def generate(model, prompt, n_new=NEW_TOKENS, **kwargs):
    """New ids from transformers' own generate() (dynamic cache), without an end token."""
    saved, model.generation_config = model.generation_config, tf.GenerationConfig(pad_token_id=0)
    arguments = prompt.media | prompt.token_types
    out = model.generate(prompt.input_ids, max_new_tokens=n_new, do_sample=False, **arguments, **kwargs)
    model.generation_config = saved
    return out[0, prompt.input_ids.shape[1] :].tolist()


def router_gap(model, prompt):
    """Smallest distance between router logits on either side of the top-k cut; infinite without experts."""
    gaps, hooks = [float("inf")], []
    k = getattr(model.config.get_text_config(), "top_k_experts", None)

    def measure(_module, _inputs, logits):
        ordered = logits.sort(-1, descending=True).values
        gaps.append((ordered[..., k - 1] - ordered[..., k]).min().item())

    for name, module in model.named_modules():
        if name.endswith("router.proj"):
            hooks.append(module.register_forward_hook(measure))
    model(**prompt.arguments(model))
    for hook in hooks:
        hook.remove()
    return min(gaps)


def reference(model, prompt, avoid=(), min_distinct=MIN_DISTINCT):
    """(tensors, figures): logits and greedy ids of one prompt, with the checks that make them trustworthy.

    `avoid` holds ids that the continuation must not contain: end tokens and suppressed tokens, so that a runtime that
    honours generation_config.json sees the same continuation, and media tokens, which would ask for more media.
    """
    logits = model(**prompt.arguments(model)).logits
    set_attention(model, "eager")
    eager = model(**prompt.arguments(model)).logits
    set_attention(model, "sdpa")
    noise = (eager - logits).abs().max().item()
    if not prompt.media:
        noise = max(noise, (cached_logits(model, prompt.input_ids) - logits).abs().max().item())
    new_ids, margin = greedy(model, prompt, avoid)
    if new_ids is None:
        return None, {"noise": noise, "good": False}
    figures = {
        "noise": noise,
        "margin": margin,
        "distinct": len(set(new_ids)),
        "absmax": logits.abs().max().item(),
        "good": noise < MAX_NOISE
        and router_gap(model, prompt) > MIN_ROUTER_GAP
        and margin > MIN_MARGIN
        and len(set(new_ids)) >= min_distinct
        and generate(model, prompt) == new_ids,
    }
    tensors = {"input_ids": prompt.input_ids, "logits": logits, "greedy": torch.tensor(new_ids)}
    return tensors, figures


def search(build, run, first_seed, tries=200):
    """The first seed whose random model passes every check of `run`; (seed, model, tensors, figures)."""
    for seed in range(first_seed, first_seed + tries):
        model = build(seed)
        tensors, figures = run(model)
        if figures["good"]:
            return seed, model, tensors, figures
    raise RuntimeError(f"no good seed in {first_seed}..{first_seed + tries}; last: {figures}")


# ---------------------------------------------------------------------------------------------- configs


def hub_style(config):
    """Rewrite a config saved by transformers 5 with the keys of the published files.

    Gemma 3 (files of 2025): `sliding_window_pattern`, `rope_theta`, `rope_local_base_freq`, `rope_scaling`, and keys
    at their class default are left out, as the published multimodal files do.
    Gemma 4: `global_head_dim` and `num_global_key_value_heads` instead of `per_layer_config`.
    """
    config = copy.deepcopy(config)
    config.pop("transformers_version", None)
    text = config.get("text_config", config)
    if text["model_type"] == "gemma3_text":
        gemma3_hub_style(text)
    else:
        gemma4_hub_style(text)
    vision = config.get("vision_config") or {}
    if vision.get("model_type") == "gemma4_vision":
        vision["rope_parameters"] = {"rope_theta": vision["rope_parameters"]["rope_theta"], "rope_type": "default"}
    return config


def gemma3_hub_style(text):
    rope = text.pop("rope_parameters")
    full, sliding = rope["full_attention"], rope["sliding_attention"]
    text["rope_theta"] = full["rope_theta"]
    text["rope_local_base_freq"] = sliding["rope_theta"]
    linear = full["rope_type"] == "linear"
    text["rope_scaling"] = {"factor": full["factor"], "rope_type": "linear"} if linear else None
    period = (text.pop("layer_types") + ["full_attention"]).index("full_attention") + 1
    text.pop("_sliding_window_pattern", None)
    text["sliding_window_pattern"] = period
    defaults = tf.Gemma3TextConfig().to_dict()
    for key in [k for k, v in text.items() if k != "model_type" and k in defaults and v == defaults[k]]:
        del text[key]


def gemma4_hub_style(text):
    overrides = text.pop("per_layer_config")
    full = next(iter(overrides.values()), {})  # empty when full layers have the same shape as sliding ones
    text["global_head_dim"] = full.get("head_dim", text["head_dim"])
    text["num_global_key_value_heads"] = full.get("num_key_value_heads")


# ---------------------------------------------------------------------------------------------- writing


def save(folder, model, tensors, notes, dtype=torch.float32, max_shard_size=None, extra_weights=None):
    """Write a checkpoint folder and check that both config spellings load to the same logits.

    `notes` goes into the metadata of reference.safetensors as JSON; `extra_weights` are tensors that a loader must
    ignore.
    """
    folder = Path(folder)
    shutil.rmtree(folder, ignore_errors=True)
    stored = model if dtype == torch.float32 else copy.deepcopy(model).to(dtype)
    stored.save_pretrained(folder, max_shard_size=max_shard_size or "1GB")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config_hub_style.json").write_text(json.dumps(hub_style(config), indent=2, sort_keys=True) + "\n")
    if extra_weights:
        weights = load_file(folder / "model.safetensors")
        assert not set(weights) & set(extra_weights)
        save_file(weights | extra_weights, folder / "model.safetensors", metadata={"format": "pt"})
    tensors = {k: v.detach().clone().contiguous() for k, v in tensors.items()}
    save_file(tensors, folder / "reference.safetensors", metadata={"notes": json.dumps(notes)})
    for file in folder.iterdir():
        file.chmod(0o644)
    check_reload(folder, model, dtype)


def check_reload(folder, model, dtype):
    """Load the folder back, once with each config, and compare the weights and one forward pass bit for bit."""
    expected = model.state_dict()
    for spelling in ("config.json", "config_hub_style.json"):
        config = type(model.config).from_dict(json.loads((folder / spelling).read_text()))
        again = type(model).from_pretrained(folder, config=config, dtype=dtype).float().eval()
        got = again.state_dict()
        assert got.keys() == expected.keys() and all(torch.equal(got[k], expected[k]) for k in got), folder
        if "Assistant" in type(model).__name__:  # runs only against a target
            texts = [m.config.get_text_config().to_dict() | {"dtype": None} for m in (again, model)]
            assert texts[0] == texts[1], (folder, spelling)
            continue
        ids = random_ids(24, config.get_text_config().vocab_size, 1, reserved=20)
        assert torch.equal(again(input_ids=ids).logits, model(input_ids=ids).logits), (folder, spelling)


def rounded(figures):
    return {k: float(f"{v:.3g}") if isinstance(v, float) else v for k, v in figures.items()}


def size_of(folder):
    return sum(p.stat().st_size for p in Path(folder).rglob("*") if p.is_file())
