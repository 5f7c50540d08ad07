"""A lean Gemma 4 (E-style, with vision tower) for training.

Parameters carry the names of transformers' Gemma4ForConditionalGeneration, so a checkpoint is its state dict.
`check.py` shows that both give the same logits.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Config = dict


def rms(x: Tensor, weight: Tensor | None = None) -> Tensor:
    """RMS norm in f32, with or without scale."""
    y = x.float()
    y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + 1e-6)
    return y if weight is None else y * weight


class Norm(nn.Module):
    """RMS norm with a learnt scale."""

    def __init__(self, size: int, start: float = 1.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((size,), start))

    def forward(self, x: Tensor) -> Tensor:
        return rms(x, self.weight)


class Linear(nn.Module):
    """A linear map without bias whose outputs keep the size of its inputs. It works in the type of its input."""

    def __init__(self, i: int, o: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(o, i) * i**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight.to(x.dtype))


class Clippable(nn.Module):
    """The vision tower keeps its weights one level deeper."""

    def __init__(self, i: int, o: int) -> None:
        super().__init__()
        self.linear = Linear(i, o)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x)


Angles = tuple[Tensor, Tensor]  # cos and sin, [batch, time, 1, parts, half]


def rotate(x: Tensor, angles: Angles) -> Tensor:
    """Half-split rotation in f32 of each of `parts` equal parts: one for text, two (x and y) for vision."""
    cos, sin = angles
    a, b = x.float().unflatten(-1, (cos.shape[-2], -1)).chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2)


class Mlp(nn.Module):
    def __init__(self, hidden: int, inner: int, make) -> None:
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = make(hidden, inner), make(hidden, inner), make(inner, hidden)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.gelu(self.gate_proj(x), approximate="tanh") * self.up_proj(x))


class Attention(nn.Module):
    """Normed queries, keys and values, scale 1. A sharing layer owns neither keys nor values."""

    def __init__(self, hidden: int, heads: int, kv_heads: int, head: int, shares: bool, make) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head, self.shares = heads, kv_heads, head, shares
        self.q_proj, self.o_proj = make(hidden, heads * head), make(heads * head, hidden)
        self.q_norm = Norm(head, head**-0.25)
        if not shares:
            self.k_proj, self.v_proj = make(hidden, kv_heads * head), make(hidden, kv_heads * head)
            self.k_norm = Norm(head, head**-0.25)

    def keys_values(self, x: Tensor, angles: Angles) -> tuple[Tensor, Tensor]:
        """Keys and values, with KV heads repeated for the query heads."""
        shape = (*x.shape[:2], self.kv_heads, self.head)
        k = rotate(self.k_norm(self.k_proj(x).view(shape)), angles)
        v = rms(self.v_proj(x).view(shape))
        group = self.heads // self.kv_heads
        return tuple(t.to(x.dtype).repeat_interleave(group, 2).transpose(1, 2) for t in (k, v))

    def forward(self, x: Tensor, angles: Angles, mask: Tensor, kv: tuple[Tensor, Tensor]) -> Tensor:
        q = self.q_norm(self.q_proj(x).view(*x.shape[:2], self.heads, self.head))
        q = rotate(q, angles).to(x.dtype).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, *kv, attn_mask=mask, scale=1.0)
        return self.o_proj(y.transpose(1, 2).reshape(*x.shape[:2], -1))


class TextLayer(nn.Module):
    def __init__(self, c: Config, i: int) -> None:
        super().__init__()
        h, ple = c["hidden_size"], c["hidden_size_per_layer_input"]
        self.full = c["layer_types"][i] == "full_attention"
        shares = i >= c["num_hidden_layers"] - c["num_kv_shared_layers"]
        head = c["global_head_dim"] if self.full else c["head_dim"]
        self.self_attn = Attention(h, c["num_attention_heads"], c["num_key_value_heads"], head, shares, Linear)
        self.mlp = Mlp(h, c["intermediate_size"], Linear)
        self.input_layernorm, self.pre_feedforward_layernorm = Norm(h), Norm(h)
        small = (3 * c["num_hidden_layers"]) ** -0.5
        self.post_attention_layernorm, self.post_feedforward_layernorm, self.post_per_layer_input_norm = (Norm(h, small) for _ in range(3))
        self.per_layer_input_gate, self.per_layer_projection = Linear(h, ple), Linear(ple, h)
        self.register_buffer("layer_scalar", torch.ones(1))  # stays 1: the norms after each block already scale

    def forward(self, x: Tensor, ple: Tensor, angles: Angles, mask: Tensor, kv: tuple[Tensor, Tensor] | None) -> tuple:
        """The new residual stream, and the keys and values that were used."""
        h = self.input_layernorm(x).to(ple.dtype)
        if not self.self_attn.shares:
            kv = self.self_attn.keys_values(h, angles)
        x = x + self.post_attention_layernorm(self.self_attn(h, angles, mask, kv))
        x = x + self.post_feedforward_layernorm(self.mlp(self.pre_feedforward_layernorm(x).to(ple.dtype)))
        gate = F.gelu(self.per_layer_input_gate(x.to(ple.dtype)), approximate="tanh")
        return x + self.post_per_layer_input_norm(self.per_layer_projection(gate * ple)), kv


class TextModel(nn.Module):
    def __init__(self, c: Config) -> None:
        super().__init__()
        self.c, h, n, p = c, c["hidden_size"], c["num_hidden_layers"], c["hidden_size_per_layer_input"]
        self.embed_tokens = nn.Embedding(c["vocab_size"], h)
        self.embed_tokens_per_layer = nn.Embedding(c["vocab_size_per_layer_input"], n * p)
        nn.init.normal_(self.embed_tokens.weight, std=h**-0.5)
        nn.init.normal_(self.embed_tokens_per_layer.weight, std=p**-0.5)
        self.per_layer_model_projection, self.per_layer_projection_norm = Linear(h, n * p), Norm(p)
        self.layers = nn.ModuleList(TextLayer(c, i) for i in range(n))
        self.norm = Norm(h)

    def angles(self, length: int, device: torch.device) -> dict[bool, tuple[Tensor, Tensor]]:
        """cos and sin for sliding (False) and full (True) layers, shaped for [batch, time, head, half]."""
        out, t = {}, torch.arange(length, device=device).float()
        for full, head in ((False, self.c["head_dim"]), (True, self.c["global_head_dim"])):
            r = self.c["rope_parameters"]["full_attention" if full else "sliding_attention"]
            inv = r["rope_theta"] ** -(torch.arange(0, head, 2, device=device).float() / head)
            turning = int(r.get("partial_rotary_factor", 1.0) * head // 2)
            inv = torch.where(torch.arange(head // 2, device=device) < turning, inv, 0.0)
            a = t[:, None] * inv
            out[full] = (a.cos()[None, :, None, None], a.sin()[None, :, None, None])
        return out

    def masks(self, doc: Tensor, dtype: torch.dtype) -> dict[bool, Tensor]:
        """Causal within one document; sliding layers also forget what is a window away."""
        t = torch.arange(doc.shape[1], device=doc.device)
        seen = (t[:, None] >= t[None, :]) & (doc[:, :, None] == doc[:, None, :])
        near = seen & (t[:, None] - t[None, :] < self.c["sliding_window"])
        zero = torch.zeros((), dtype=dtype, device=doc.device)
        return {full: torch.where(m, zero, float("-inf"))[:, None] for full, m in ((True, seen), (False, near))}

    def start(self, ids: Tensor, soft: Tensor | None, soft_at: Tensor | None, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Input embeddings and per-layer inputs. `soft` [rows, n, hidden] goes where `soft_at` (index or -1) says, in the last rows."""
        h, n, p = self.c["hidden_size"], self.c["num_hidden_layers"], self.c["hidden_size_per_layer_input"]
        x = self.embed_tokens(ids) * h**0.5
        if soft is not None:
            text, rows = x[: -len(soft)], x[-len(soft):]
            picked = soft.gather(1, soft_at.clamp(min=0)[..., None].expand(-1, -1, h))
            x = torch.cat((text, torch.where((soft_at >= 0)[..., None], picked.to(x.dtype), rows)))
        context = self.per_layer_model_projection(x.to(dtype)) * h**-0.5
        context = self.per_layer_projection_norm(context.view(*ids.shape, n, p))
        table = self.embed_tokens_per_layer(ids).view(*ids.shape, n, p) * p**0.5
        return x, ((context + table) * 2**-0.5).to(dtype)

    def forward(self, ids: Tensor, doc: Tensor, soft: Tensor | None, soft_at: Tensor | None, dtype: torch.dtype) -> Tensor:
        """Hidden states before the head."""
        x, ple = self.start(ids, soft, soft_at, dtype)
        angles, masks, shared = self.angles(ids.shape[1], ids.device), self.masks(doc, dtype), {}
        for layer, inputs in zip(self.layers, ple.unbind(2)):
            full = layer.full
            kv = shared[full] if layer.self_attn.shares else None
            x, shared[full] = layer(x, inputs, angles[full], masks[full], kv)
        return self.norm(x)


class VisionLayer(nn.Module):
    def __init__(self, v: Config) -> None:
        super().__init__()
        h = v["hidden_size"]
        self.self_attn = Attention(h, v["num_attention_heads"], v["num_key_value_heads"], v["head_dim"], False, Clippable)
        self.mlp = Mlp(h, v["intermediate_size"], Clippable)
        self.input_layernorm, self.pre_feedforward_layernorm = Norm(h), Norm(h)
        small = (2 * v["num_hidden_layers"]) ** -0.5
        self.post_attention_layernorm, self.post_feedforward_layernorm = Norm(h, small), Norm(h, small)

    def forward(self, x: Tensor, angles: Angles, mask: Tensor) -> Tensor:
        h = self.input_layernorm(x).to(mask.dtype)
        x = x + self.post_attention_layernorm(self.self_attn(h, angles, mask, self.self_attn.keys_values(h, angles)))
        return x + self.post_feedforward_layernorm(self.mlp(self.pre_feedforward_layernorm(x).to(mask.dtype)))


class PatchEmbedder(nn.Module):
    def __init__(self, v: Config) -> None:
        super().__init__()
        self.input_proj = Linear(3 * v["patch_size"] ** 2, v["hidden_size"])
        self.position_embedding_table = nn.Parameter(torch.randn(2, v["position_embedding_size"], v["hidden_size"]) * 0.3)


class VisionModel(nn.Module):
    """Bytes of patches, cell by cell, to pooled rows (one per cell)."""

    def __init__(self, v: Config) -> None:
        super().__init__()
        self.v = v
        self.patch_embedder = PatchEmbedder(v)
        self.encoder = nn.Module()
        self.encoder.layers = nn.ModuleList(VisionLayer(v) for _ in range(v["num_hidden_layers"]))

    def forward(self, patches: Tensor, xy: Tensor, dtype: torch.dtype) -> Tensor:
        """patches uint8 [n, 9·cells, 768]; xy [n, 9·cells, 2], -1 where there is none. Gives [n, cells, hidden]."""
        n, length, _ = patches.shape
        pad = -length % 8  # keeps the attention kernel's mask aligned
        x = self.patch_embedder.input_proj((patches.to(dtype) / 255 - 0.5) * 2).float()
        at, table = xy.long().clamp(min=0), self.patch_embedder.position_embedding_table
        x = F.pad(x + F.embedding(at[..., 0], table[0]) + F.embedding(at[..., 1], table[1]), (0, 0, 0, pad))
        real = F.pad(xy[..., 0] >= 0, (0, pad))
        mask = torch.where(real, 0.0, float("-inf")).to(dtype)[:, None, None]
        half = self.v["head_dim"] // 2
        inv = self.v["rope_parameters"]["rope_theta"] ** -(torch.arange(0, half, 2, device=x.device).float() / half)
        angle = F.pad(at, (0, 0, 0, pad)).float()[:, :, None, :, None] * inv
        for layer in self.encoder.layers:
            x = layer(x, (angle.cos(), angle.sin()), mask)
        return x[:, :length].view(n, length // 9, 9, -1).mean(2) * self.v["hidden_size"] ** 0.5


class Inner(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.language_model = TextModel(config["text_config"])
        self.vision_tower = VisionModel(config["vision_config"])
        self.embed_vision = nn.Module()
        self.embed_vision.embedding_projection = Linear(config["vision_config"]["hidden_size"], config["text_config"]["hidden_size"])


class Pebble(nn.Module):
    """The whole model. `dtype` is that of the matrix products; norms, sums and the residual stream are f32."""

    def __init__(self, config: Config, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.config, self.dtype = config, dtype
        self.model = Inner(config)

    def see(self, patches: Tensor, xy: Tensor) -> Tensor:
        """Soft rows [pictures, cells, hidden]."""
        return self.model.embed_vision.embedding_projection(rms(self.model.vision_tower(patches, xy, self.dtype)).to(self.dtype))

    def hidden(self, ids: Tensor, doc: Tensor, soft_at: Tensor | None = None, patches: Tensor | None = None, xy: Tensor | None = None) -> Tensor:
        """States before the head. Pictures, if any, belong to the last rows: patches [rows, pictures, ...], `soft_at` [rows, time] into their cells."""
        soft = None
        if patches is not None:
            soft = self.see(patches.flatten(0, 1), xy.flatten(0, 1)).view(len(patches), -1, self.config["text_config"]["hidden_size"])
        plain = torch.where(ids == self.config["image_token_id"], 0, ids)
        return self.model.language_model(plain, doc, soft, soft_at, self.dtype)

    def head(self, x: Tensor) -> Tensor:
        """Soft-capped logits in f32."""
        logits = F.linear(x.to(self.dtype), self.model.language_model.embed_tokens.weight.to(self.dtype)).float()
        cap = self.config["text_config"]["final_logit_softcapping"]
        return torch.tanh(logits / cap) * cap

    def forward(self, *inputs: Tensor) -> Tensor:
        """Logits of every position; arguments as for `hidden`."""
        return self.head(self.hidden(*inputs))

    def losses(self, x: Tensor, target: Tensor) -> Tensor:
        """Cross entropy of each target under the state before it."""
        return F.cross_entropy(self.head(x).flatten(0, 1), target.flatten(), reduction="none").view(target.shape)
