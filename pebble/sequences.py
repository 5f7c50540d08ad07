"""Samples to token rows: encoding, packing, and the place of pictures in a row."""

import os
from pathlib import Path
from random import Random

import numpy as np

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
from tokenizers import Tokenizer

from chat import Piece, pieces
from mixture import TASKS
from sample import Sample

LENGTH = 512
PICTURES = 4              # per picture row
PART = LENGTH // PICTURES
CELLS = 70
TASK_ID = {t: i for i, t in enumerate(TASKS)}


class Encoder:
    """Tokens and task marks of samples."""

    def __init__(self) -> None:
        self.tok = Tokenizer.from_file(str(Path(__file__).resolve().parent / "folder/tokenizer.json"))
        self.image = self.tok.token_to_id("<|image|>")

    def ids(self, text: str) -> list[int]:
        """Tokens of one text; special tokens may be spelled in it."""
        return self.tok.encode(text, add_special_tokens=False).ids

    def pieces(self, s: Sample, cells: int = 0) -> list[Piece]:
        """The sample's text with each picture expanded to `cells` soft tokens."""
        return pieces(s.messages, s.tools or None, "<|image>" + "<|image|>" * cells + "<image|>")

    def encode(self, s: Sample, cells: int = 0) -> tuple[list[int], list[int]]:
        """Tokens, and for each the task that learns it (0: nobody)."""
        ids, marks = [], []
        for text, learn in self.pieces(s, cells):
            t = self.ids(text)
            ids += t
            marks += [TASK_ID[s.task] if learn else 0] * len(t)
        return ids, marks


def empty_row() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Tokens (pad), task marks (none) and document numbers (-1: padding sees only padding)."""
    return np.zeros(LENGTH, np.int16), np.zeros(LENGTH, np.uint8), np.full(LENGTH, -1, np.int16)


def pack(rng: Random, encoder: Encoder, draw, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """`count` rows of whole samples from `draw`, first fit over a few open rows."""
    rows = [empty_row() for _ in range(count)]
    used, docs, misses = [0] * count, [0] * count, 0
    while misses < 12:
        ids, marks = encoder.encode(draw(rng))
        ids, marks = ids[:LENGTH], marks[:LENGTH]
        at = next((i for i in range(count) if used[i] + len(ids) <= LENGTH), None)
        if at is None:
            misses += 1
            continue
        tokens, tasks, doc = rows[at]
        part = slice(used[at], used[at] + len(ids))
        tokens[part], tasks[part], doc[part] = ids, marks, docs[at]
        used[at] += len(ids)
        docs[at] += 1
    return tuple(np.stack(a) for a in zip(*rows))


def picture_part(encoder: Encoder, s: Sample, cells: int) -> tuple[list[int], list[int]]:
    """As many of a picture's questions as fit into a quarter of a row."""
    turns = min(len(s.messages), 8)
    while True:
        ids, marks = encoder.encode(Sample(s.task, s.key, s.messages[:turns]), cells)
        if len(ids) <= PART:
            return ids, marks
        turns -= 2
