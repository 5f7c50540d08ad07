"""What pebble itself writes, with everything that a drafter learns from. Run: python drafted_text.py OUT [--seed N]

Prompts are those of the training mixture, half of them for stories; answers are drawn by the embedded model, greedy and
at several temperatures. Each shard is one batch: tokens, states, keys and values, and the likeliest next tokens.
"""

import argparse
import os
import time
from pathlib import Path
from random import Random

import torch

from chat import prompt
from mixture import chat_sample
from sample import Sample
from sequences import Encoder
from stories import story
from target import Target, Writer
from words import reserved

ROWS, LENGTH = 64, 256
BEST = 16                            # next tokens that are kept of each distribution
TEMPERATURES = (0.0, 0.5, 0.5, 0.9)  # of answers; most users' is 0.5
STORIES = 0.55                       # share of the prompts
STOPS = (1, 9, 16)                   # <eos>, <|tool_response>, <turn|>


def draw(rng: Random) -> Sample:
    """A sample that no held-out set may contain."""
    if rng.random() > STORIES:
        return chat_sample(rng)
    while True:
        s = story(rng)
        if not reserved(s.key):
            return s


def prompts(rng: Random, encoder: Encoder, batches: int) -> list[list[list[int]]]:
    """Prompts of about as long conversations in each batch."""
    found = []
    while len(found) < batches * ROWS:
        s = draw(rng)
        answers = [i for i, m in enumerate(s.messages) if m["role"] == "assistant" and i]
        until = s.messages[: rng.choice(answers)] if answers else []
        if not until or until[-1]["role"] == "tool":
            continue
        ids = encoder.ids(prompt(until, s.tools or None))
        if len(ids) <= LENGTH // 2:
            found.append((len(encoder.encode(s)[0]), ids))
    found.sort(key=lambda pair: pair[0])
    rows = [ids for _, ids in found]
    return [rows[i : i + ROWS] for i in range(0, len(rows), ROWS)]


@torch.no_grad()
def write(target: Target, rows: list[list[int]], rng: torch.Generator) -> dict:
    """Answers to one batch of prompts."""
    writer = Writer(target, ROWS, LENGTH)
    ids = torch.zeros(ROWS, LENGTH, dtype=torch.long)
    starts = torch.tensor([len(r) for r in rows])
    for row, r in zip(ids, rows):
        row[: len(r)] = torch.tensor(r)
    ends = torch.full((ROWS,), LENGTH)
    temperature = torch.tensor([TEMPERATURES[i % len(TEMPERATURES)] for i in range(ROWS)])
    best = torch.zeros(ROWS, LENGTH, BEST, dtype=torch.int16)
    logits = torch.zeros(ROWS, LENGTH, BEST, dtype=torch.float16)
    stops, t = torch.tensor(STOPS), 0
    # A few long answers are cut, so that the others need not wait for them.
    while t + 1 < LENGTH and (ends > t).float().mean() > 0.1:
        top = target.logits(writer.step(ids[:, t])).topk(BEST)
        best[:, t], logits[:, t] = top.indices.to(torch.int16), top.values.half()
        noise = -torch.log(-torch.log(torch.rand(ROWS, BEST, generator=rng).clamp(1e-9, 1 - 1e-7)))
        token = top.indices.gather(1, (top.values + noise * temperature[:, None]).argmax(1, True))[:, 0]
        ids[:, t + 1] = torch.where(starts > t + 1, ids[:, t + 1], token)
        ended = (starts <= t + 1) & torch.isin(token, stops) & (ends == LENGTH)
        ends[ended] = t + 2
        t += 1
    n = writer.at
    kv = {full: tuple(x.half() for x in pair) for full, pair in writer.shared().items()}
    return {"ids": ids[:, :n].short(), "hidden": writer.hidden[:, :n].clone(), "kv": kv, "best": best[:, :n].clone(),
            "logits": logits[:, :n].clone(), "starts": starts, "ends": ends.clamp(max=n)}


def main() -> None:
    p = argparse.ArgumentParser()
    p.add_argument("out", type=Path)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--minutes", type=float, default=10)
    args = p.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    rng, torch_rng = Random(args.seed), torch.Generator().manual_seed(args.seed)
    args.out.mkdir(parents=True, exist_ok=True)
    target, encoder = Target(torch.bfloat16), Encoder()
    began, n, tokens = time.time(), 0, 0
    while True:
        batches = prompts(rng, encoder, 8)
        rng.shuffle(batches)
        for rows in batches:
            if time.time() - began > args.minutes * 60:
                return
            shard = write(target, rows, torch_rng)
            tokens += int((shard["ends"] - shard["starts"]).sum())
            part = args.out / f"{args.seed}-{n:04d}.pt.part"
            torch.save(shard, part)
            part.rename(part.with_suffix(""))
            n += 1
            print(f"{n} batches, {tokens} tokens of answers, {tokens / (time.time() - began):.0f} a second", flush=True)


if __name__ == "__main__":
    main()
