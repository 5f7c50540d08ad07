"""The public-domain books and the MIT chit-chat: reading, cleaning, the held-out books, and chats made of them."""

import functools
import hashlib
import json
import lzma
import os
import re
from pathlib import Path
from random import Random

from chat import ask
from sample import Sample
from words import reserved

ROOT = Path(__file__).resolve().parent
PLAIN = str.maketrans({"\u201c": '"', "\u201d": '"', "\u2018": "'", "\u2019": "'", "\u2014": "-", "\u2013": "-", "\u2026": "...",
                       "\u00a0": " ", "_": None, "*": None, "\t": " ", "\r": None})


def folder() -> Path:
    """Where the corpus lies: $PEBBLE_CORPUS, or beside or inside the repository."""
    places = [os.environ.get("PEBBLE_CORPUS"), ROOT / "corpus", ROOT.parent / "shared/data/corpus", ROOT.parent.parent / "shared/data/corpus"]
    for p in places:
        if p and (Path(p) / "books.jsonl.xz").exists():
            return Path(p)
    raise FileNotFoundError("books.jsonl.xz: set PEBBLE_CORPUS to the folder that holds it")


def rows(name: str) -> list[dict]:
    """All records of one file."""
    with lzma.open(folder() / name, "rt", encoding="utf-8") as f:
        return [json.loads(line) for line in f]


def digest(name: str) -> str:
    """SHA-256 of one file, for the README and the log."""
    return hashlib.sha256((folder() / name).read_bytes()).hexdigest()


def clean(text: str) -> str:
    """Plain quotes, no markup, no headings, single spaces, paragraphs apart by one empty line."""
    text = text.split("-------", 1)[-1].translate(PLAIN)
    text = re.sub(r"^#+ *", "", text, flags=re.M)
    text = re.sub(r"\[[^\]\n]*\]|<[^>\n]*>", "", text)
    text = re.sub(r" +", " ", text).replace(" \n", "\n").replace("\n ", "\n")
    return re.sub(r"\n{2,}", "\n\n", text).strip()


def is_held_out(book: dict) -> bool:
    """Books that are never trained on. The rule is the same as for generated keys."""
    return reserved(f"book {book['author']} {book['title']}")


def books(held_out: bool, index: int = 0, of: int = 1) -> list[str]:
    """The cleaned text of the books on one side of the split; with `of`, only every of-th from `index`."""
    return [clean(b["text"]) for b in [b for b in rows("books.jsonl.xz") if is_held_out(b) == held_out][index::of]]


@functools.cache
def dialogues() -> list[list[str]]:
    """Chit-chat with neither links nor very long turns."""
    out = []
    for i, row in enumerate(rows("chitchat.jsonl.xz")):
        turns = [re.sub(r"\s+", " ", t.translate(PLAIN)).strip() for t in row["turns"]]
        ok = all(0 < len(t) < 240 and "http" not in t and t.isascii() for t in turns)
        if ok and len(turns) >= 4 and not reserved(f"dialogue {i}"):
            out.append([t[0].upper() + t[1:] for t in turns])
    return out


def dialogue(rng: Random) -> Sample:
    """Some consecutive turns of one dialogue; the second person is the model."""
    turns = rng.choice(dialogues())
    start = rng.choice([0, 0, rng.randrange(len(turns) - 1)])
    part = turns[start : start + 2 * rng.randrange(1, 5)]
    messages = []
    for i in range(0, len(part) - 1, 2):
        messages += ask(part[i], part[i + 1])
    return Sample("dialogue", "", messages)


SHARE = (0, 1)  # the part of the books that this process makes continuations of


@functools.cache
def paragraphs() -> list[list[str]]:
    """Each training book of this process's share as its paragraphs."""
    return [[p for p in b.split("\n\n") if len(p) > 40] for b in books(False, *SHARE)]


CONTINUE = ["Continue this story: {t}", "How does this story go on? {t}", "{t}\n\nContinue the story.", "Continue: {t}", "Finish this: {t}", "Go on: {t}"]


def continuation(rng: Random) -> Sample:
    """A piece of a book and what follows it."""
    book = rng.choice(paragraphs())
    at = rng.randrange(len(book) - 3)
    head, tail = book[at][-500:], "\n\n".join(book[at + 1 : at + 4])[:900]
    if rng.random() < 0.5:
        sentences = re.split(r"(?<=[.!?]) ", book[at] + " " + book[at + 1])
        k = rng.randrange(1, max(2, min(4, len(sentences))))
        head, tail = " ".join(sentences[:k])[:500], " ".join(sentences[k:])[:900]
    end = max(tail.rfind(c) for c in ".!?\"")
    tail = tail[: end + 1] or tail
    return Sample("continue", "", ask(rng.choice(CONTINUE).format(t=head.strip()), tail.strip() or "The end."))
