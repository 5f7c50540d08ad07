"""Greedy answers of the training model on the held-out sets, many at a time. eval.py does the same through transformers."""

import json
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from chat import prompt
from checks import passes
from model import Pebble
from pictures import MAX_CELLS, patches
from sequences import Encoder

HELDOUT = Path(__file__).resolve().parent / "heldout"
STOPS = (1, 16, 9)


def load(name: str, limit: int | None = None) -> list[dict]:
    """The records of one held-out set."""
    with open(HELDOUT / f"{name}.jsonl", encoding="utf-8") as f:
        return [json.loads(line) for line in f][:limit]


def inputs(encoder: Encoder, items: list[dict], new: int, device: torch.device) -> tuple[dict, torch.Tensor]:
    """Right-padded prompts with room for `new` tokens, their pictures, and the prompt lengths."""
    with_picture = "image" in items[0]
    seen = [patches(Image.open(HELDOUT / i["image"]).convert("RGB")) for i in items] if with_picture else [None] * len(items)
    texts = [prompt(i["messages"], i.get("tools"), "<|image>" + "<|image|>" * (len(s[0]) // 9 if s else 0) + "<image|>") for i, s in zip(items, seen)]
    tokens = [encoder.ids(t) for t in texts]
    ids = torch.zeros(len(items), max(map(len, tokens)) + new, dtype=torch.long)
    for row, t in zip(ids, tokens):
        row[: len(t)] = torch.tensor(t)
    out = {"ids": ids, "doc": torch.zeros_like(ids)}
    if with_picture:
        out["soft_at"] = torch.full_like(ids, -1)
        out["patches"] = torch.zeros(len(items), 1, MAX_CELLS * 9, 768, dtype=torch.uint8)
        out["xy"] = torch.full((len(items), 1, MAX_CELLS * 9, 2), -1, dtype=torch.int16)
        for i, (data, xy) in enumerate(seen):
            out["patches"][i, 0, : len(data)], out["xy"][i, 0, : len(xy)] = torch.from_numpy(data.copy()), torch.from_numpy(xy.astype(np.int16))
            out["soft_at"][i, ids[i] == encoder.image] = torch.arange(len(data) // 9)
    return {k: v.to(device) for k, v in out.items()}, torch.tensor([len(t) for t in tokens], device=device)


@torch.no_grad()
def replies(model: Pebble, encoder: Encoder, items: list[dict], new: int, device: torch.device) -> list[str]:
    """One reply per item, greedily, without a cache."""
    batch, length = inputs(encoder, items, new, device)
    rows, start = torch.arange(len(items), device=device), length.clone()
    open_rows = torch.ones(len(items), dtype=torch.bool, device=device)
    for _ in range(new):
        best = model.head(model.hidden(*batch.values())[rows, length - 1]).argmax(-1)
        batch["ids"][rows, length] = torch.where(open_rows, best, batch["ids"][rows, length])
        open_rows &= (best[:, None] != torch.tensor(STOPS, device=device)).all(-1)
        length += open_rows
        if not open_rows.any():
            break
    return [encoder.tok.decode(row[a:b].tolist(), skip_special_tokens=False) for row, a, b in zip(batch["ids"].cpu(), start.cpu(), length.cpu())]


def score(model: Pebble, encoder: Encoder, name: str, device: torch.device, limit: int | None = None, new: int = 48) -> dict:
    """Share of right answers of one set, whole and by kind, with three wrong replies."""
    items = [i for i in load(name, limit) if i.get("check")]
    answers = [r for at in range(0, len(items), 64) for r in replies(model, encoder, items[at : at + 64], new, device)]
    right: dict[str, list[bool]] = {}
    wrong = []
    for item, answer in zip(items, answers):
        ok = passes(item["check"], answer)
        right.setdefault(item["kind"], []).append(ok)
        if not ok and len(wrong) < 3:
            wrong.append({"id": item["id"], "reply": answer, "check": item["check"]})
    every = [ok for oks in right.values() for ok in oks]
    return {"set": name, "right": round(sum(every) / len(every), 4), "n": len(every),
            "kinds": {k: round(sum(v) / len(v), 3) for k, v in sorted(right.items())}, "wrong": wrong}


@torch.no_grad()
def perplexity(model: Pebble, encoder: Encoder, device: torch.device, windows: int = 40) -> float:
    """Of the held-out story text, in windows of 511 tokens after <bos>."""
    ids = encoder.ids((HELDOUT / "story.txt").read_text(encoding="utf-8"))
    rows = torch.tensor([[2] + ids[i : i + 511] for i in range(0, len(ids) - 511, 511)][:windows], device=device)
    loss = 0.0
    for part in rows.split(8):
        logits = model(part, torch.zeros_like(part))[:, :-1]
        loss += torch.nn.functional.cross_entropy(logits.flatten(0, 1), part[:, 1:].flatten(), reduction="sum").item()
    return float(np.exp(loss / (rows.numel() - len(rows))))
