"""Muon for matrices, Adam for everything else."""

from collections import defaultdict

import torch
from torch import Tensor, nn


def orthogonal(g: Tensor) -> Tensor:
    """The nearest semi-orthogonal matrices to a stack, roughly, by five Newton-Schulz steps."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = g.to(torch.bfloat16 if g.is_cuda else g.dtype)
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        s = x @ x.mT
        x = a * x + (b * s + c * s @ s) @ x
    return x.mT if tall else x


class Muon:
    """Momentum, orthogonalised, one stack per shape. An update has the entry size that Adam's would have."""

    def __init__(self, params: list[nn.Parameter], momentum: float = 0.95, decay: float = 0.1) -> None:
        groups = defaultdict(list)
        for p in params:
            groups[p.shape].append(p)
        self.groups = list(groups.values())
        self.buffers = [torch.zeros(len(g), *g[0].shape, device=g[0].device) for g in self.groups]
        self.momentum, self.decay = momentum, decay

    @torch.no_grad()
    def step(self, lr: float) -> None:
        """One update of every matrix."""
        for params, buffer in zip(self.groups, self.buffers):
            grad = torch.stack([p.grad for p in params])
            buffer.lerp_(grad, 1 - self.momentum)
            update = orthogonal(grad.lerp(buffer, self.momentum)).float() * (0.2 * max(params[0].shape) ** 0.5)
            torch._foreach_mul_(params, 1 - lr * self.decay)
            torch._foreach_add_(params, list(update.unbind()), alpha=-lr)

    def state_dict(self) -> dict:
        return {"buffers": self.buffers}

    def load_state_dict(self, state: dict) -> None:
        for mine, saved in zip(self.buffers, state["buffers"]):
            mine.copy_(saved)


def split(model: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Matrices that map states to states, and the rest (embeddings, position table, norms)."""
    matrices, rest = [], []
    for name, p in model.named_parameters():
        (matrices if p.ndim == 2 and "embed_tokens" not in name else rest).append(p)
    return matrices, rest
