"""Training data made by many processes while the GPU trains.

Workers write finished rows into shared memory; the trainer copies them into pools on the device and draws batches from
the pools. When the device is faster than the workers, rows are drawn more than once; it never waits.
"""

import mmap
import multiprocessing as mp
import os
import time
from random import Random

import numpy as np
import torch
from torch import Tensor

import corpus
from mixture import TASKS, chat_sample
from pictures import MAX_CELLS, patches
from scenes import picture
from sequences import LENGTH, PART, PICTURES, Encoder, empty_row, pack, picture_part
from words import reserved

CHAT_ROWS, PICTURE_ROWS = 64, 8
PATCHES = MAX_CELLS * 9
ROW = {"ids": ((LENGTH,), np.int16), "task": ((LENGTH,), np.uint8), "doc": ((LENGTH,), np.int16)}
PICTURE_ROW = ROW | {"soft_at": ((LENGTH,), np.int16), "patches": ((PICTURES, PATCHES, 768), np.uint8), "xy": ((PICTURES, PATCHES, 2), np.int16)}
Fields = dict[str, tuple[tuple, type]]


def shared(shape: tuple, dtype: type) -> np.ndarray:
    """Memory that child processes write and this one reads."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return np.frombuffer(mmap.mmap(-1, size), dtype).reshape(shape)


class Ring:
    """Slots that travel between workers (free to ready) and the trainer (ready to free)."""

    def __init__(self, ctx, slots: int, rows: int, fields: Fields) -> None:
        self.rows = rows
        self.arrays = {k: shared((slots, rows, *shape), dtype) for k, (shape, dtype) in fields.items()}
        self.free, self.ready = ctx.SimpleQueue(), ctx.SimpleQueue()
        for i in range(slots):
            self.free.put(i)

    def pin(self) -> None:
        """Page-locks the memory, so that copies to the GPU do not block."""
        for a in self.arrays.values():
            torch.cuda.cudart().cudaHostRegister(a.ctypes.data, a.nbytes, 0)


class Pool:
    """Rows on the device. The newest overwrite the oldest."""

    def __init__(self, ring: Ring, capacity: int, fields: Fields, device: torch.device) -> None:
        self.ring, self.capacity, self.device = ring, capacity // ring.rows * ring.rows, device
        self.data = {k: torch.empty((self.capacity, *shape), dtype=torch.from_numpy(np.empty(0, dtype)).dtype, device=device)
                     for k, (shape, dtype) in fields.items()}
        self.made, self.busy = 0, []

    def take(self, limit: int) -> int:
        """Copies up to `limit` ready slots; gives back the slots whose copies are done."""
        while self.busy and (self.busy[0][0] is None or self.busy[0][0].query()):
            self.ring.free.put(self.busy.pop(0)[1])
        taken = 0
        while taken < limit and not self.ring.ready.empty():
            slot, at = self.ring.ready.get(), self.made % self.capacity
            for k, pool in self.data.items():
                pool[at : at + self.ring.rows].copy_(torch.from_numpy(self.ring.arrays[k][slot]), non_blocking=True)
            event = None
            if self.device.type == "cuda":
                event = torch.cuda.Event()
                event.record()
            self.busy.append((event, slot))
            self.made += self.ring.rows
            taken += 1
        return taken

    def draw(self, n: int) -> dict[str, Tensor]:
        """n random rows."""
        at = torch.randint(min(self.made, self.capacity), (n,), device=self.device)
        return {k: v[at] for k, v in self.data.items()}


def tokenise_books(encoder: Encoder, texts: list[str], out: np.ndarray) -> int:
    """Paragraph by paragraph; <bos> opens a book. Returns the number of tokens."""
    used, gap = 0, encoder.ids("\n\n")
    for text in texts:
        ids = [2]
        for p in text.split("\n\n"):
            ids += encoder.ids(p) + gap
        ids = ids[: len(out) - used]
        out[used : used + len(ids)] = ids
        used += len(ids)
    return used


def chat_worker(encoder: Encoder, rng: Random, ring: Ring) -> None:
    """Rows of packed chats, for ever."""
    while True:
        slot = ring.free.get()
        for name, rows in zip(("ids", "task", "doc"), pack(rng, encoder, chat_sample, ring.rows)):
            ring.arrays[name][slot] = rows
        ring.ready.put(slot)


def picture_row(encoder: Encoder, rng: Random, out: dict[str, np.ndarray]) -> None:
    """One row of PICTURES pictures with their questions."""
    out["ids"][:], out["task"][:], out["doc"][:] = empty_row()
    out["soft_at"][:], out["xy"][:] = -1, -1
    for i in range(PICTURES):
        sample, scene = picture(rng)
        while reserved(sample.key):
            sample, scene = picture(rng)
        data, xy = patches(scene.draw(rng))
        ids, marks = picture_part(encoder, sample, len(data) // 9)
        part = slice(i * PART, i * PART + len(ids))
        out["ids"][part], out["task"][part], out["doc"][part] = ids, marks, i
        at = np.nonzero(np.array(ids) == encoder.image)[0] + i * PART
        out["soft_at"][at] = i * MAX_CELLS + np.arange(len(at))
        out["patches"][i, : len(data)], out["xy"][i, : len(xy)] = data, xy


def picture_worker(encoder: Encoder, rng: Random, ring: Ring) -> None:
    """Picture rows, for ever."""
    while True:
        slot = ring.free.get()
        for row in range(ring.rows):
            picture_row(encoder, rng, {k: a[slot, row] for k, a in ring.arrays.items()})
        ring.ready.put(slot)


class Feed:
    """Starts the workers (before CUDA is touched) and serves batches."""

    def __init__(self, seed: int, chat_workers: int, picture_workers: int, n_books: int) -> None:
        ctx = mp.get_context("fork")
        self.seed, self.n_books, self.chat_workers, n = seed, n_books, chat_workers, chat_workers + picture_workers
        self.parts, self.lengths = shared((n, 40_000_000 // n + 2_000_000), np.int16), shared((n,), np.int64)
        self.chat_ring = Ring(ctx, 4 * chat_workers, CHAT_ROWS, ROW)
        self.picture_ring = Ring(ctx, 4 * picture_workers, PICTURE_ROWS, PICTURE_ROW)
        self.workers = [ctx.Process(target=self.work, args=(i, n), daemon=True) for i in range(n)]
        for w in self.workers:
            w.start()

    def work(self, index: int, n: int) -> None:
        """A worker's life: its share of the books, then rows."""
        os.nice(3)
        encoder, rng = Encoder(), Random(f"train {self.seed} {index}")
        texts = corpus.books(False, index, n)[: self.n_books]
        self.lengths[index] = tokenise_books(encoder, texts, self.parts[index])
        if index < self.chat_workers:
            corpus.SHARE = (index, self.chat_workers)
            chat_worker(encoder, rng, self.chat_ring)
        picture_worker(encoder, rng, self.picture_ring)

    def open(self, device: torch.device, chat_capacity: int, picture_capacity: int) -> None:
        """Makes the pools. Call after the workers have started."""
        if device.type == "cuda":
            self.chat_ring.pin()
            self.picture_ring.pin()
        self.device = device
        self.chats = Pool(self.chat_ring, chat_capacity, ROW, device)
        self.pictures = Pool(self.picture_ring, picture_capacity, PICTURE_ROW, device)
        while not all(self.lengths):
            if not all(w.is_alive() for w in self.workers):
                raise RuntimeError("a data worker died")
            time.sleep(0.05)
        flat = np.concatenate([p[:k] for p, k in zip(self.parts, self.lengths)])
        self.books = torch.from_numpy(flat).to(device)
        self.offsets = torch.arange(LENGTH, device=device)

    def refill(self, limit: int = 4) -> None:
        """Takes what the workers have made."""
        self.chats.take(limit)
        self.pictures.take(limit)

    def batch(self, book_rows: int, chat_rows: int, picture_rows: int) -> dict[str, Tensor]:
        """One batch of fixed shape; picture rows come last."""
        at = torch.randint(len(self.books) - LENGTH, (book_rows, 1), device=self.device) + self.offsets
        text = self.books[at]
        text[:, 0] = 2
        chat, seen = self.chats.draw(chat_rows), self.pictures.draw(picture_rows)
        plain = {"ids": text, "task": torch.full_like(text, TASKS.index("book"), dtype=torch.uint8), "doc": torch.zeros_like(text)}
        out = {k: torch.cat((plain[k], chat[k], seen[k])).long() for k in ROW}
        return out | {"soft_at": seen["soft_at"].long(), "patches": seen["patches"], "xy": seen["xy"]}

    def close(self) -> None:
        """Ends the workers that this feed started."""
        for w in self.workers:
            w.terminate()
