"""Trains pebble by the clock and writes a Hugging Face folder. README.md has the commands.

The schedule is by elapsed time: warm-up, constant, then linear decay to zero. A second stage (--resume) goes on from the
state of the first with a lower peak.
"""

import argparse
import json
import math
import os
import shutil
import tarfile
import time
from pathlib import Path

import torch

import hf_folder
from corpus import digest
from feed import Feed
from mixture import TASKS, WEIGHTS
from model import Pebble, TextLayer, TextModel, VisionLayer
from optim import Muon, split
from probe import perplexity, score
from sequences import LENGTH, Encoder

ROOT = Path(__file__).resolve().parent


def arguments() -> argparse.Namespace:
    p = argparse.ArgumentParser()
    p.add_argument("--minutes", type=float, default=9.0, help="wall clock of the whole command")
    p.add_argument("--reserve", type=float, default=45.0, help="seconds kept for scoring and saving")
    p.add_argument("--resume", action="store_true", help="go on from out/state.pt, or from the weights in --init")
    p.add_argument("--init", type=Path, help="Hugging Face folder to start from when there is no state")
    p.add_argument("--config", type=Path, default=ROOT / "folder/config.json")
    p.add_argument("--out", type=Path, default=ROOT / "out")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--books", type=int, default=30, help="rows of plain text per step")
    p.add_argument("--chats", type=int, default=42, help="rows of chats per step")
    p.add_argument("--pictures", type=int, default=24, help="rows of pictures per step, four pictures each")
    p.add_argument("--lr", type=float, default=5e-3, help="peak rate of Muon")
    p.add_argument("--adam-lr", type=float, default=2e-3, help="peak rate of Adam")
    p.add_argument("--chat-workers", type=int, default=2)
    p.add_argument("--picture-workers", type=int, default=12)
    p.add_argument("--n-books", type=int, default=1000, help="books per data worker")
    p.add_argument("--tiny", action="store_true", help="a toy size, for trying the script out")
    p.add_argument("--picture-pool", type=int, default=16000, help="picture rows kept on the device (2 MB each)")
    p.add_argument("--max-steps", type=int, default=10**9)
    p.add_argument("--no-compile", action="store_true")
    p.add_argument("--probe-limit", type=int, default=None, help="held-out items per set in the last scoring")
    return p.parse_args()


def tiny(config: dict) -> dict:
    """The same architecture at toy size."""
    text, vision = config["text_config"], config["vision_config"]
    text |= {"hidden_size": 64, "intermediate_size": 128, "head_dim": 32, "global_head_dim": 64}
    vision |= {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 32, "num_hidden_layers": 2}
    return config


def rate(done: float) -> float:
    """Share of the peak rate when this share of the time is over."""
    return min(1.0, done / 0.02, max(0.0, (1.0 - done) / 0.45))


def token_losses(model: Pebble, batch: dict) -> torch.Tensor:
    """Cross entropy of every next token."""
    x = model.hidden(batch["ids"], batch["doc"], batch["soft_at"], batch["patches"], batch["xy"])
    return model.losses(x[:, :-1], batch["ids"][:, 1:])


PARTS = ((TextLayer, "forward"), (VisionLayer, "forward"), (TextModel, "start"), (Pebble, "losses"))
PLAIN = [getattr(c, name) for c, name in PARTS]


def compile_parts() -> None:
    """Compiles each kind of layer once; whole-model compilation takes minutes."""
    torch._dynamo.config.recompile_limit = 64
    for (c, name), plain in zip(PARTS, PLAIN):
        setattr(c, name, torch.compile(plain, dynamic=False))


def plain_parts() -> None:
    """Undoes it. Scoring has many shapes and runs so."""
    for (c, name), plain in zip(PARTS, PLAIN):
        setattr(c, name, plain)


class Log:
    """JSON lines on disk and on the terminal."""

    def __init__(self, path: Path, fresh: bool) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        if fresh:
            path.unlink(missing_ok=True)

    def write(self, **fields: object) -> None:
        line = json.dumps(fields)
        print(line, flush=True)
        with open(self.path, "a", encoding="utf-8") as f:
            f.write(line + "\n")


def by_task(losses: torch.Tensor, task: torch.Tensor) -> dict[str, float]:
    """Mean loss of each task in one batch."""
    out = {}
    for i, name in enumerate(TASKS[1:], 1):
        hit = task == i
        if hit.any():
            out[name] = round(losses[hit].mean().item(), 3)
    return out


def ship(folder: Path, log: Path) -> None:
    """Copies the result to $OUT, where it is set, in parts of at most 15 MiB."""
    if not os.environ.get("OUT"):
        return
    out, tar = Path(os.environ["OUT"]), folder.with_suffix(".tar")
    with tarfile.open(tar, "w") as t:
        t.add(folder, arcname="pebble")
    data, size = tar.read_bytes(), 15 * 2**20
    for i in range(0, len(data), size):
        (out / f"pebble.tar.part{i // size}").write_bytes(data[i : i + size])
    shutil.copyfile(log, out / "log.jsonl")


class Trainer:
    """Model, optimisers and the clock."""

    def __init__(self, args: argparse.Namespace, config: dict, device: torch.device) -> None:
        self.args, self.device = args, device
        self.dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        self.model = Pebble(config, self.dtype).to(device)
        matrices, rest = split(self.model)
        self.muon = Muon(matrices)
        self.adam = torch.optim.AdamW(rest, lr=1.0, betas=(0.9, 0.98), eps=1e-10, weight_decay=0.0, fused=device.type == "cuda")
        self.weights = torch.tensor([WEIGHTS.get(t, 1.0) for t in TASKS], device=device)
        self.steps = 0

    def save(self, path: Path) -> None:
        torch.save({"model": self.model.state_dict(), "muon": self.muon.state_dict(), "adam": self.adam.state_dict(), "steps": self.steps}, path)

    def load(self, path: Path) -> None:
        state = torch.load(path, map_location=self.device)
        self.model.load_state_dict(state["model"])
        self.muon.load_state_dict(state["muon"])
        self.adam.load_state_dict(state["adam"])
        self.steps = state["steps"]

    def step(self, batch: dict, share: float) -> tuple[torch.Tensor, torch.Tensor]:
        """One update at a share of the peak rates. Returns the loss and the token losses."""
        losses = token_losses(self.model, batch)
        w = self.weights[batch["task"][:, 1:]]
        loss = (losses * w).sum() / w.sum()
        loss.backward()
        self.muon.step(self.args.lr * share)
        for g in self.adam.param_groups:
            g["lr"] = self.args.adam_lr * share
        self.adam.step()
        self.model.zero_grad(set_to_none=True)
        self.steps += 1
        return loss.detach(), losses.detach()


def run(args: argparse.Namespace, feed: Feed, log: Log, began: float) -> None:
    """Everything after the workers have started."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    config = json.loads(args.config.read_text())
    config = tiny(config) if args.tiny else config
    trainer, encoder = Trainer(args, config, device), Encoder()
    if args.resume and (args.out / "state.pt").exists():
        trainer.load(args.out / "state.pt")
    elif args.init:
        hf_folder.read(trainer.model, args.init)
    feed.open(device, 400_000, args.picture_pool)
    while feed.chats.made < 256 or feed.pictures.made < 64:
        feed.refill()
        time.sleep(0.05)
    log.write(event="start", device=str(device), torch=torch.__version__, parameters=sum(p.numel() for p in trainer.model.parameters()),
              seed=args.seed, resumed=trainer.steps, book_tokens=len(feed.books), books_sha256=digest("books.jsonl.xz"),
              chitchat_sha256=digest("chitchat.jsonl.xz"), arguments={k: v for k, v in vars(args).items() if not isinstance(v, Path)})
    if device.type == "cuda" and not args.no_compile:
        warm_up(args, feed, log, trainer)
    train(args, feed, log, trainer, began + args.minutes * 60 - args.reserve)
    plain_parts()
    args.out.mkdir(exist_ok=True)
    trainer.save(args.out / "state.pt")
    hf_folder.write(trainer.model, args.out / "pebble", config)
    ship(args.out / "pebble", log.path)
    hf_folder.read(trainer.model, args.out / "pebble")  # score what was saved
    log.write(event="perplexity", story=round(perplexity(trainer.model, encoder, device, 8 if args.probe_limit else 40), 3))
    for name in ("additions", "pictures", "tools", "drawings"):
        log.write(event="score", **score(trainer.model, encoder, name, device, args.probe_limit))
    ship(args.out / "pebble", log.path)


def warm_up(args: argparse.Namespace, feed: Feed, log: Log, trainer: Trainer) -> None:
    """Compiles before the clock of the schedule starts; goes on without if this machine cannot."""
    began = time.time()
    try:
        compile_parts()
        for _ in range(2):
            token_losses(trainer.model, feed.batch(args.books, args.chats, args.pictures)).mean().backward()
        torch.cuda.synchronize()
        log.write(event="compiled", seconds=round(time.time() - began, 1))
    except Exception as e:  # a compiler's error can be anything; training without it is only slower
        plain_parts()
        log.write(event="not compiled", why=repr(e)[:2000])
    trainer.model.zero_grad(set_to_none=True)


def train(args: argparse.Namespace, feed: Feed, log: Log, trainer: Trainer, deadline: float) -> None:
    """Steps until the deadline."""
    start = mark = time.time()
    first, tokens = trainer.steps, (args.books + args.chats + args.pictures) * LENGTH
    while trainer.steps - first < args.max_steps:
        now = time.time()
        done = (now - start) / (deadline - start) if args.max_steps == 10**9 else (trainer.steps - first) / args.max_steps
        if done >= 1:
            break
        feed.refill()
        batch = feed.batch(args.books, args.chats, args.pictures)
        loss, losses = trainer.step(batch, max(rate(done), 0.01))
        n = trainer.steps - first
        if n in (1, 2, 10, 50) or n % 200 == 0:
            value = loss.item()  # waits for the device
            since, mark = time.time() - mark, time.time()
            log.write(step=trainer.steps, minutes=round((mark - start) / 60, 2), done=round(done, 4), loss=round(value, 4), rate=round(rate(done), 3),
                      seconds=round(since, 2), tokens_per_s=int(tokens * (200 if n % 200 == 0 and n > 200 else 1) / since), chat_rows=feed.chats.made,
                      picture_rows=feed.pictures.made, workers=sum(w.is_alive() for w in feed.workers), tasks=by_task(losses, batch["task"][:, 1:]))
            if not math.isfinite(value):
                raise RuntimeError(f"loss is {value} at step {trainer.steps}")


def main() -> None:
    began, args = time.time(), arguments()
    feed = Feed(args.seed + (1000 if args.resume else 0), args.chat_workers, args.picture_workers, args.n_books)
    try:
        run(args, feed, Log(args.out / "log.jsonl", not args.resume), began)
    finally:
        feed.close()


if __name__ == "__main__":
    main()
