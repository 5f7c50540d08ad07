"""A lean Gemma 4 drafter ("assistant"): it reads its target's caches and has none.

Parameters carry the names of transformers' Gemma4AssistantForCausalLM. `check_drafter.py` shows that both give the same
logits.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model import Attention, Angles, Config, Linear, Mlp, Norm, TextModel

Kv = tuple[Tensor, Tensor]


class DraftLayer(nn.Module):
    """A layer whose keys and values are the target's."""

    def __init__(self, c: Config, i: int) -> None:
        super().__init__()
        h = c["hidden_size"]
        self.full = c["layer_types"][i] == "full_attention"
        head = c["global_head_dim"] if self.full else c["head_dim"]
        self.self_attn = Attention(h, c["num_attention_heads"], c["num_key_value_heads"], head, True, Linear)
        self.mlp = Mlp(h, c["intermediate_size"], Linear)
        self.input_layernorm, self.pre_feedforward_layernorm = Norm(h), Norm(h)
        small = (2 * c["num_hidden_layers"]) ** -0.5
        self.post_attention_layernorm, self.post_feedforward_layernorm = Norm(h, small), Norm(h, small)
        self.register_buffer("layer_scalar", torch.ones(1))  # stays 1: the norms after each block already scale

    def forward(self, x: Tensor, angles: Angles, mask: Tensor, kv: Kv, dtype: torch.dtype) -> Tensor:
        x = x + self.post_attention_layernorm(self.self_attn(self.input_layernorm(x).to(dtype), angles, mask, kv))
        return x + self.post_feedforward_layernorm(self.mlp(self.pre_feedforward_layernorm(x).to(dtype)))


class DraftStack(nn.Module):
    def __init__(self, c: Config) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(c["vocab_size"], c["hidden_size"])
        nn.init.normal_(self.embed_tokens.weight, std=c["hidden_size"] ** -0.5)
        self.layers = nn.ModuleList(DraftLayer(c, i) for i in range(c["num_hidden_layers"]))
        self.norm = Norm(c["hidden_size"])


class Drafter(nn.Module):
    """The whole drafter. `dtype` is that of the matrix products; norms, sums and the residual stream are f32."""

    def __init__(self, config: Config, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.config, self.c, self.dtype = config, config["text_config"], dtype
        wide, h = config["backbone_hidden_size"], self.c["hidden_size"]
        self.model = DraftStack(self.c)
        self.pre_projection, self.post_projection = Linear(2 * wide, h), Linear(h, wide)

    def angles(self, length: int) -> dict[bool, Angles]:
        """cos and sin of each position."""
        return TextModel.angles(self, length, self.pre_projection.weight.device)

    def masks(self, length: int) -> dict[bool, Tensor]:
        """What the query at each position sees: keys of earlier positions, of which it has none itself. In sliding layers
        the newest key counts as distance 0, and distances up to the window are seen (transformers' rule)."""
        t = torch.arange(length, device=self.pre_projection.weight.device)
        distance = t[:, None] - 1 - t[None, :]
        seen = distance >= 0
        seen[0, 0] = True  # the first position has nothing to see; nobody asks it
        near = seen & (distance <= self.c["sliding_window"])
        return {full: torch.where(m, 0.0, float("-inf")).to(self.dtype) for full, m in ((True, seen), (False, near))}

    def step(self, embedded: Tensor, hidden: Tensor, around: tuple[dict, dict, dict]) -> tuple[Tensor, Tensor]:
        """One guess at every position: embeddings of the last tokens and the rows before them, to the states before the
        head and the rows that the next guess goes on from. `around`: angles, masks, and keys and values per query head."""
        angles, masks, kv = around
        x = self.pre_projection(torch.cat((embedded, hidden), -1).to(self.dtype)).float()
        for layer in self.model.layers:
            full = layer.full
            x = layer(x, angles[full], masks[full], kv[full], self.dtype)
        y = self.model.norm(x)
        return y, self.post_projection(y.to(self.dtype)).float()

    def per_query_head(self, kv: dict[bool, Kv]) -> dict[bool, Kv]:
        """Keys and values of each head of the target, once for each query head that reads them."""
        group = self.c["num_attention_heads"] // self.c["num_key_value_heads"]
        return {full: tuple(x.to(self.dtype).repeat_interleave(group, 1) for x in pair) for full, pair in kv.items()}

    def head(self, y: Tensor) -> Tensor:
        """Logits in f32."""
        return F.linear(y.to(self.dtype), self.model.embed_tokens.weight.to(self.dtype)).float()
