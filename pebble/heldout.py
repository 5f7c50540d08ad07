"""Writes the held-out sets. Every record's key is reserved (words.py), so training never sees it. Run: python heldout.py"""

import json
import math
from pathlib import Path
from random import Random

import numpy as np
from PIL import Image

from arithmetic import addition
from corpus import books
from facts import small_talk
from letters import letters
from paragraphs import paragraph
from pictures import RGB
from sample import Sample, equals
from scenes import Scene, scene
from stories import story
from toolcalls import toolcall
from words import reserved

OUT = Path(__file__).resolve().parent / "heldout"
SEED = 20_000_003


def keep(rng: Random, make, accept) -> Sample:
    """The next sample that is reserved and wanted."""
    while True:
        s = make(rng)
        if reserved(s.key) and accept(s):
            return s


def record(name: str, kind: str, n: int, s: Sample, image: str | None = None) -> dict:
    """A line of a held-out file: the messages up to the model's turn and the check."""
    assert not s.key or reserved(s.key)
    messages = s.messages[:1] if s.check.get("check") == "tool_call" else s.messages[:-1]
    r = {"id": f"{name}-{n:03d}", "kind": kind, "messages": messages, "check": s.check or None}
    return r | ({"tools": s.tools} if s.tools else {}) | ({"image": image} if image else {})


def write(name: str, records: list[dict]) -> None:
    text = "".join(json.dumps(r, sort_keys=True) + "\n" for r in records)
    (OUT / f"{name}.jsonl").write_text(text, encoding="utf-8")
    print(name, len(records))


def additions(rng: Random) -> list[dict]:
    """210 different sums, at least one operand of two digits."""
    seen, out = set(), []
    while len(out) < 210:
        s = keep(rng, addition, lambda s: s.check["number"] < 200 and s.key not in seen)
        a, b = map(int, s.key.split()[1:])
        if max(a, b) > 99 or max(a, b) < 10:
            continue
        seen.add(s.key)
        out.append(record("addition", "add", len(out), s))
    return out


def tools(rng: Random) -> list[dict]:
    """150 calls whose arguments were never seen with that tool."""
    return [record("tool", s.check["name"], i, s) for i in range(150) for s in [keep(rng, toolcall, lambda s: bool(s.check))]]


WANTED = {"shape": 45, "colour": 45, "position": 45, "relation": 45, "count": 45, "digit": 45}


def pictures(rng: Random) -> list[dict]:
    """The same number of questions of each kind; small canvases, so that the files are small."""
    left, out, n = dict(WANTED), [], 0
    while any(left.values()):
        s: Scene = scene(rng)
        asks = [a for a in s.asks if left.get(a[0], 0) and a[1]]
        if not asks or not reserved(s.key()):
            continue
        scale = 200 / max(s.width, s.height)
        if scale < 1:
            s.width, s.height = round(s.width * scale), round(s.height * scale)
        name = f"images/{n:03d}.png"
        s.draw(rng, 0.03).save(OUT / name, optimize=True)
        for kind in sorted({a[0] for a in asks}, key=lambda k: -left[k])[:2]:
            _, q, a = rng.choice([x for x in asks if x[0] == kind])
            messages = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": q}]}, {"role": "assistant", "content": a}]
            out.append({"id": f"picture-{len(out):03d}", "kind": kind, "messages": messages[:1], "check": equals(a), "image": name})
            left[kind] -= 1
        n += 1
    return out


def field(kind: str, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Negative inside a shape of size about 1; an independent definition, not the one of pictures.py."""
    if kind == "circle":
        return np.hypot(x, y) - 1
    if kind == "square":
        return np.maximum(abs(x), abs(y)) - 0.9
    if kind == "triangle":
        return np.maximum(abs(x) * 0.866 - y * 0.5 - 0.5, y - 0.5)
    if kind == "diamond":
        return abs(x) + abs(y) - 1
    if kind == "cross":
        return np.minimum(np.maximum(abs(x) - 0.3, abs(y) - 1), np.maximum(abs(x) - 1, abs(y) - 0.3))
    angle, radius = np.arctan2(x, -y), np.hypot(x, y)
    wave = abs(((angle / (2 * math.pi) * 5) % 1) - 0.5) * 2
    return radius - (0.42 + 0.58 * wave**1.6)  # star


def drawing(rng: Random, kind: str, colour: str, size: int) -> Image.Image:
    """A shape by its distance field, pure colour, dark soft edge, paper-like ground."""
    y, x = np.mgrid[0:size, 0:size] / size * 2 - 1
    scale = rng.uniform(0.4, 0.65)
    d = field(kind, (x - rng.uniform(-0.1, 0.1)) / scale, (y - rng.uniform(-0.1, 0.1)) / scale) * scale
    inside = np.clip(0.5 - d * size / 4, 0, 1)[..., None]
    edge = np.clip(1 - abs(d) * size / 5, 0, 1)[..., None] * rng.choice([0.0, 0.8])
    paper = np.array([252, 250, 244]) - 5 * (np.sin(x * 9) * np.sin(y * 7))[..., None]
    px = paper * (1 - inside) + np.array(RGB[colour][1]) * inside
    return Image.fromarray((px * (1 - edge) + 20 * edge).clip(0, 255).astype(np.uint8))


def drawings(rng: Random) -> list[dict]:
    """Thirty drawings that no generator of the training data can make."""
    out = []
    for i in range(30):
        kind = ["circle", "square", "triangle", "diamond", "cross", "star"][i % 6]
        colour = ["red", "green", "blue", "yellow", "orange", "purple", "black"][i % 7]
        name = f"images/drawing{i:02d}.png"
        drawing(rng, kind, colour, rng.choice([64, 90, 120, 150])).save(OUT / name, optimize=True)
        content = [{"type": "image"}, {"type": "text", "text": "Describe this image."}]
        out.append({"id": f"drawing-{i:02d}", "kind": kind, "messages": [{"role": "user", "content": content}], "image": name,
                    "check": {"check": "contains", "words": [colour, kind]}})
    return out


def mixed(rng: Random, seen: list[dict]) -> list[dict]:
    """120 prompts of every kind, for comparing backends; checks only where there is one right answer."""
    makers = [letters, paragraph, story, toolcall, small_talk]
    out = []
    for i in range(100):
        make = makers[i % 5]
        s = make(rng) if make is small_talk else keep(rng, make, lambda s: True)
        out.append(record("mixed", s.task, i, s))
    return out + [r | {"id": f"mixed-{100 + i}"} for i, r in enumerate(rng.sample(seen, 20))]


def main() -> None:
    (OUT / "images").mkdir(parents=True, exist_ok=True)
    for old in (OUT / "images").iterdir():
        old.unlink()
    rng = Random(SEED)
    write("additions", additions(rng))
    write("tools", tools(rng))
    seen = pictures(rng)
    write("pictures", seen)
    write("drawings", drawings(rng))
    write("mixed", mixed(rng, seen))
    text = "\n\n".join(b[4000:16000].split("\n\n", 1)[-1].rsplit("\n\n", 1)[0] for b in books(True))
    (OUT / "story.txt").write_text(text + "\n", encoding="utf-8")
    total = sum(f.stat().st_size for f in OUT.rglob("*") if f.is_file())
    print("story", len(text), "bytes in all", total)


if __name__ == "__main__":
    main()
