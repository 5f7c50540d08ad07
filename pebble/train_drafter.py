"""Trains pebble's drafter on what pebble wrote (drafted_text.py), by the clock, and writes its Hugging Face folder.

Every position of an answer is a burst of guesses: the first goes on from the target's state, each later one from the
drafter's own, all with the keys that the target has at that position, as at inference. What is learned at each is the
target's distribution after the token that really came.
"""

import argparse
import json
import math
import os
import shutil
import time
from pathlib import Path
from random import Random

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor

from draft_model import Drafter
from optim import Muon, split
from target import Target

ROOT = Path(__file__).resolve().parent
TEMPERATURE = 0.7   # at which the distributions are compared: more weight for what will be chosen
FALLOFF = 0.8       # weight of each guess beside the one before it, which has to be right as well


def start_from(drafter: Drafter, target: Target) -> None:
    """The head begins as the target's, seen in the directions in which its rows differ most."""
    table = target.model.embed_tokens.weight.float()
    width = drafter.c["hidden_size"]
    directions = torch.linalg.svd(table, full_matrices=False).Vh[:width]
    with torch.no_grad():
        drafter.model.embed_tokens.weight.copy_(table @ directions.T)
        wide = table.shape[1]
        drafter.pre_projection.weight[:, wide:].copy_(directions)
        drafter.pre_projection.weight[:, :wide].copy_(0.3 * directions / wide**0.5)
        drafter.post_projection.weight.copy_(directions.T)


def bursts(drafter: Drafter, target: Target, shard: dict, guesses: int, columns: Tensor | None) -> tuple[list, list]:
    """For each guess of a burst, the losses where there is something to guess, and at every position whether the likeliest
    token is the target's and whether there is something. Position `p` stands for the burst that begins at token `p`."""
    ids = shard["ids"].long()
    n, length = ids.shape
    around = (drafter.angles(length), drafter.masks(length), drafter.per_query_head(shard["kv"]))
    embedded = target.embed(ids)
    at = torch.arange(length)
    hidden = F.pad(shard["hidden"].float(), (0, 0, 1, 0))[:, :-1]  # of the position that the last token came from
    best, logits = shard["best"].long(), shard["logits"].float()
    losses, rights = [], []
    for s in range(guesses):
        y, hidden = drafter.step(torch.roll(embedded, -s, 1), hidden, around)
        live = (at >= shard["starts"][:, None]) & (at + s + 1 < shard["ends"][:, None])
        bi, pi = live.nonzero(as_tuple=True)
        ours = drafter.head(y[bi, pi])
        choices, z = best[bi, pi + s], logits[bi, pi + s]
        aim = F.softmax(z / TEMPERATURE, -1)
        all_of_them = ours if columns is None else ours[:, columns]
        loss = torch.logsumexp(all_of_them / TEMPERATURE, -1)
        loss = loss - (aim * ours.gather(1, choices)).sum(-1) / TEMPERATURE
        loss = loss + (aim * aim.clamp(min=1e-9).log()).sum(-1)
        losses.append(loss)
        with torch.no_grad():
            right = torch.zeros(n, length, dtype=torch.bool)
            right[bi, pi] = ours.argmax(-1) == choices[:, 0]
            rights.append((right, live))
    return losses, rights


def accepted(rights: list[tuple[Tensor, Tensor]]) -> tuple[float, list[float]]:
    """Guesses of a burst that are right up to the first wrong one, and the share of each that is, given those before."""
    so_far, total, shares = rights[0][1], 0.0, []
    begun = so_far.sum().item()
    for right, live in rights:
        tried = so_far & live
        so_far = tried & right
        shares.append(round(so_far.sum().item() / max(1, tried.sum().item()), 3))
        total += so_far.sum().item()
    return total / max(1, begun), shares


class Shards:
    """Batches from a folder that may still grow. The first few are kept for measuring."""

    KEPT = 2

    def __init__(self, folder: Path, rng: Random) -> None:
        self.folder, self.rng, self.known, self.queue = folder, rng, [], []

    def refresh(self) -> None:
        """Looks for new ones."""
        names = sorted(self.folder.glob("*.pt"))
        self.measured, self.known = names[: self.KEPT], names[self.KEPT :]

    def next(self) -> dict:
        """The next of a random order."""
        if not self.queue:
            self.refresh()
            self.queue = self.rng.sample(self.known, len(self.known))
        return torch.load(self.queue.pop())

    def part(self, shard: dict, rows: int) -> dict:
        """Some rows of a batch."""
        pick = torch.tensor(self.rng.sample(range(len(shard["ids"])), rows))
        out = {k: v[pick] for k, v in shard.items() if k != "kv"}
        length = int(out["ends"].max())
        out = {k: v[:, :length] if v.dim() > 1 else v for k, v in out.items()}
        return out | {"kv": {full: tuple(x[pick, :, :length] for x in pair) for full, pair in shard["kv"].items()}}


def write_folder(drafter: Drafter, out: Path) -> None:
    """The Hugging Face folder, weights in bf16."""
    out.mkdir(parents=True, exist_ok=True)
    for f in sorted((ROOT / "assistant").glob("*.json")):
        shutil.copyfile(f, out / f.name)
    weights = {k: v.detach().to(torch.bfloat16).contiguous() for k, v in drafter.state_dict().items()}
    save_file(weights, out / "model.safetensors", metadata={"format": "pt"})


def rate(done: float) -> float:
    """Share of the peak rate when this share of the time is over."""
    return min(1.0, done / 0.03, max(0.0, (1.0 - done) / 0.5))


def main() -> None:
    p = argparse.ArgumentParser()
    p.add_argument("--text", type=Path, default=ROOT / "out/drafted")
    p.add_argument("--out", type=Path, default=ROOT / "out")
    p.add_argument("--minutes", type=float, default=25)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--rows", type=int, default=8, help="answers per step")
    p.add_argument("--guesses", type=int, default=4, help="guesses per burst; two in the first third")
    p.add_argument("--columns", type=int, default=1024, help="ids outside the batch that a step's softmax runs over")
    p.add_argument("--lr", type=float, default=6e-3, help="peak rate of Muon")
    p.add_argument("--adam-lr", type=float, default=2e-3, help="peak rate of Adam")
    p.add_argument("--resume", type=Path)
    args = p.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "2")))
    torch.manual_seed(args.seed)
    rng, target = Random(args.seed), Target(torch.bfloat16)
    config = json.loads((ROOT / "assistant/config.json").read_text())
    drafter = Drafter(config, torch.bfloat16)
    start_from(drafter, target)
    if args.resume:
        drafter.load_state_dict(torch.load(args.resume))
    matrices, rest = split(drafter)
    muon = Muon(matrices)
    adam = torch.optim.AdamW(rest, lr=1.0, betas=(0.9, 0.98), eps=1e-10, weight_decay=0.0)
    shards, log = Shards(args.text, rng), args.out / "drafter.jsonl"
    shards.refresh()

    def tell(**fields: object) -> None:
        print(json.dumps(fields), flush=True)
        with open(log, "a", encoding="utf-8") as f:
            f.write(json.dumps(fields) + "\n")

    @torch.no_grad()
    def measure() -> dict:
        """What is right on the batches that nothing is learned from, of answers that were chosen greedily or drawn."""
        counts = []
        for name in shards.measured:
            counts.append(accepted(bursts(drafter, target, torch.load(name), 4, None)[1]))
        return {"accepted": [round(a, 3) for a, _ in counts], "shares": [s for _, s in counts]}

    tell(event="start", torch=torch.__version__, parameters=sum(q.numel() for q in drafter.parameters()), seed=args.seed,
         shards=len(shards.known), arguments={k: v for k, v in vars(args).items() if not isinstance(v, Path)})
    began, steps, tokens, losses_seen = time.time(), 0, 0, []
    shard, uses, told, next_measure = None, 0, 0.0, 0.1
    while True:
        done = (time.time() - began) / (args.minutes * 60)
        if done >= 1:
            break
        if uses == 0:
            shard, uses = shards.next(), len(shard["ids"]) // args.rows if shard else 4
        uses -= 1
        part = shards.part(shard, args.rows)
        seen = torch.zeros(config["text_config"]["vocab_size"], dtype=torch.bool)
        seen[part["best"].long().flatten()] = True
        seen[torch.randint(len(seen), (args.columns,))] = True
        losses, rights = bursts(drafter, target, part, 2 if done < 0.33 else args.guesses, seen.nonzero()[:, 0])
        weights = [FALLOFF**s for s in range(len(losses))]
        loss = sum(w * l.sum() for w, l in zip(weights, losses)) / sum(w * len(l) for w, l in zip(weights, losses))
        loss.backward()
        muon.step(args.lr * max(rate(done), 0.01))
        for g in adam.param_groups:
            g["lr"] = args.adam_lr * max(rate(done), 0.01)
        adam.step()
        drafter.zero_grad(set_to_none=True)
        steps, tokens = steps + 1, tokens + len(losses[0])
        losses_seen.append([round(l.mean().item(), 3) for l in losses])
        if steps in (1, 10) or time.time() - told > 60:
            told = time.time()
            if not math.isfinite(loss.item()):
                raise RuntimeError(f"loss is {loss.item()} at step {steps}")
            mean = [round(sum(c) / len(c), 4) for c in zip(*losses_seen[-20:])]
            losses_seen = []
            tell(step=steps, minutes=round((time.time() - began) / 60, 2), rate=round(rate(done), 3), losses=mean, bursts=tokens,
                 accepted=round(accepted(rights)[0], 3), shards=len(shards.known))
            if done > next_measure:
                next_measure = done + 0.12
                tell(event="measured", step=steps, **measure())
                torch.save(drafter.state_dict(), args.out / "drafter.pt")
    torch.save(drafter.state_dict(), args.out / "drafter.pt")
    write_folder(drafter, args.out / "pebble-assistant")
    tell(event="end", steps=steps, bursts=tokens, **measure())


if __name__ == "__main__":
    main()
