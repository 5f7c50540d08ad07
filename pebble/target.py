"""The embedded pebble as a lean model: what a drafter is trained against. Text only."""

import json
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load
from torch import Tensor, nn

from model import Angles, Config, TextModel, rotate

ROOT = Path(__file__).resolve().parent
Kv = tuple[Tensor, Tensor]


def file_bytes() -> bytes:
    """`pebble.lap`, whose halves are tracked."""
    return b"".join((ROOT / f"halves/{n}/pebble.lap.{n}").read_bytes() for n in (1, 2))


def plain(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Weights of a `.lap` by their names, those in int8 with a scale per group of a row dequantised."""
    out = {}
    for name, t in tensors.items():
        if name.startswith("lapidary/") or name.endswith(":scale"):
            continue
        base, _, part = name.partition(":")
        if part:
            scale = tensors[base + ":scale"].float()
            t = ((t.float() - 128).view(*scale.shape, -1) * scale[..., None]).flatten(1)
        out[base] = t.float()
    return out


class Target(nn.Module):
    """Pebble's text side. `dtype` is that of the weights and matrix products."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.config: Config = json.loads((ROOT / "folder/config.json").read_text())["text_config"]
        self.dtype, self.model = dtype, TextModel(self.config)
        weights = plain(load(file_bytes()))
        prefix = "model.language_model." if any(".language_model." in k for k in weights) else "model."
        names = {k: weights[prefix + k] for k in self.model.state_dict()}
        self.model.load_state_dict(names)
        self.model.to(dtype).requires_grad_(False)

    def logits(self, hidden: Tensor) -> Tensor:
        """Soft-capped logits of normed states, in f32."""
        cap = self.config["final_logit_softcapping"]
        logits = F.linear(hidden.to(self.dtype), self.model.embed_tokens.weight).float()
        return torch.tanh(logits / cap) * cap

    def embed(self, ids: Tensor) -> Tensor:
        """What a drafter sees of tokens: the scaled embedding."""
        return self.model.embed_tokens(ids).float() * self.config["hidden_size"] ** 0.5


class Writer:
    """Feeds rows of one batch token by token and keeps states, keys and values."""

    def __init__(self, target: Target, rows: int, length: int) -> None:
        c, self.target = target.config, target
        self.angles = target.model.angles(length, torch.device("cpu"))
        n_owners = c["num_hidden_layers"] - c["num_kv_shared_layers"]
        head = {True: c["global_head_dim"], False: c["head_dim"]}
        shape = {full: (rows, c["num_key_value_heads"], length, head[full]) for full in head}
        self.full = [layer.full for layer in target.model.layers]
        self.cache = [tuple(torch.zeros(shape[self.full[i]], dtype=target.dtype) for _ in "kv") for i in range(n_owners)]
        self.owner = {full: max(i for i in range(n_owners) if self.full[i] == full) for full in head}
        self.hidden = torch.zeros(rows, length, c["hidden_size"], dtype=torch.float16)
        self.at, self.heads = 0, c["num_attention_heads"]

    def attend(self, layer: nn.Module, h: Tensor, i: int) -> Tensor:
        """Attention of one layer for the newest position of every row."""
        a, full, t = layer.self_attn, layer.full, self.at
        angles: Angles = tuple(x[:, t : t + 1] for x in self.angles[full])
        source = i if not a.shares else self.owner[full]
        if not a.shares:
            k, v = a.keys_values(h, angles)  # repeated for the query heads
            group = self.heads // a.kv_heads
            for kept, new in zip(self.cache[i], (k, v)):
                kept[:, :, t] = new[:, ::group, 0]
        start = 0 if full else max(0, t + 1 - self.target.config["sliding_window"])
        k, v = (x[:, :, start : t + 1] for x in self.cache[source])
        q = rotate(a.q_norm(a.q_proj(h).view(*h.shape[:2], a.heads, a.head)), angles).to(h.dtype)
        q = q.view(len(h), a.kv_heads, -1, a.head)  # the queries of a group stand where its time would
        y = F.scaled_dot_product_attention(q, k, v, scale=1.0)
        return a.o_proj(y.reshape(len(h), 1, -1))

    def step(self, ids: Tensor) -> Tensor:
        """One token of every row; the normed states after it."""
        m, dtype = self.target.model, self.target.dtype
        x, ple = m.start(ids[:, None], None, None, dtype)
        x = x.float()
        for i, (layer, inputs) in enumerate(zip(m.layers, ple.unbind(2))):
            x = x + layer.post_attention_layernorm(self.attend(layer, layer.input_layernorm(x).to(dtype), i))
            x = x + layer.post_feedforward_layernorm(layer.mlp(layer.pre_feedforward_layernorm(x).to(dtype)))
            gate = F.gelu(layer.per_layer_input_gate(x.to(dtype)), approximate="tanh")
            x = x + layer.post_per_layer_input_norm(layer.per_layer_projection(gate * inputs))
        x = m.norm(x)[:, 0]
        self.hidden[:, self.at] = x.half()
        self.at += 1
        return x

    def shared(self) -> dict[bool, Kv]:
        """Keys and values that a drafter reads, for sliding (False) and full (True) layers."""
        return {full: tuple(x[:, :, : self.at] for x in self.cache[i]) for full, i in self.owner.items()}
