"""Drawing: shapes and digits with Pillow, and pixels to the patches that the vision tower takes."""

import math
from dataclasses import dataclass
from random import Random

import numpy as np
from PIL import Image, ImageDraw, ImageFilter, ImageFont

SHAPES = "circle square triangle star rectangle diamond hexagon heart cross oval ring".split()
RGB = {"red": [(220, 30, 35), (255, 0, 0), (200, 15, 25)], "green": [(35, 160, 60), (0, 128, 0), (0, 255, 0), (80, 200, 90)],
       "blue": [(35, 70, 215), (0, 0, 255), (30, 120, 240), (20, 40, 140)], "yellow": [(245, 215, 30), (255, 255, 0), (255, 230, 60)],
       "orange": [(245, 135, 20), (255, 165, 0), (255, 120, 10)], "purple": [(130, 45, 165), (128, 0, 128), (150, 50, 220)],
       "pink": [(250, 140, 185), (255, 192, 203), (255, 105, 180)], "brown": [(125, 75, 35), (139, 69, 19), (105, 60, 30)],
       "black": [(15, 15, 15), (0, 0, 0), (30, 30, 30)], "white": [(255, 255, 255), (250, 250, 250), (240, 240, 240)],
       "gray": [(130, 130, 130), (128, 128, 128), (160, 160, 160), (100, 100, 100)]}
INK = (25, 25, 25)
PATCH, CELL, MAX_CELLS = 16, 48, 70


@dataclass
class Item:
    """One thing in a picture. Place and size are in units of the canvas's shorter side; kind is a shape or a digit string."""
    kind: str
    colour: str
    x: float
    y: float
    size: float


def jitter(rng: Random, colour: str) -> tuple[int, int, int]:
    """A shade that still deserves the colour's name."""
    a, b, t = rng.choice(RGB[colour]), rng.choice(RGB[colour]), rng.random()
    shake = 0 if rng.random() < 0.3 else 9
    gray = rng.randint(-shake, shake)
    plain = colour in ("black", "white", "gray")
    return tuple(min(255, max(0, int(p * t + q * (1 - t)) + (gray if plain else rng.randint(-shake, shake)))) for p, q in zip(a, b))


def polygon(kind: str, s: float, rng: Random) -> list[tuple[float, float]]:
    """The corners of a shape of half-size s around the origin, y downwards."""
    def ring(n: int, turn: float, radius: float = 1.0) -> list[tuple[float, float]]:
        return [(s * radius * math.sin(turn + 2 * math.pi * i / n), -s * radius * math.cos(turn + 2 * math.pi * i / n)) for i in range(n)]
    if kind == "square":
        return [(-s * 0.85, -s * 0.85), (s * 0.85, -s * 0.85), (s * 0.85, s * 0.85), (-s * 0.85, s * 0.85)]
    if kind == "rectangle":
        a, b = (1.0, rng.uniform(0.45, 0.6)) if rng.random() < 0.7 else (rng.uniform(0.45, 0.6), 1.0)
        return [(-s * a, -s * b), (s * a, -s * b), (s * a, s * b), (-s * a, s * b)]
    if kind == "triangle":
        lean = rng.uniform(-0.25, 0.25)
        return [(lean * s, -s * 0.95), (s, s * 0.8), (-s, s * 0.8)]
    if kind == "diamond":
        w = rng.uniform(0.65, 1.0)
        return [(0, -s), (s * w, 0), (0, s), (-s * w, 0)]
    if kind == "hexagon":
        return ring(6, rng.choice([0.0, math.pi / 6]))
    if kind == "star":
        inner = rng.uniform(0.38, 0.5)
        outer, small = ring(5, 0.0), ring(5, math.pi / 5, inner)
        return [p for pair in zip(outer, small) for p in pair]
    if kind == "cross":
        t = rng.uniform(0.25, 0.36)
        return [(s * x, s * y) for x, y in [(-t, -1), (t, -1), (t, -t), (1, -t), (1, t), (t, t), (t, 1), (-t, 1), (-t, t), (-1, t), (-1, -t), (-t, -t)]]
    if kind == "heart":
        turns = [2 * math.pi * i / 40 for i in range(40)]
        return [(s * 0.062 * 16 * math.sin(t) ** 3, -s * 0.062 * (13 * math.cos(t) - 5 * math.cos(2 * t) - 2 * math.cos(3 * t) - math.cos(4 * t))) for t in turns]
    flat = rng.uniform(0.5, 0.65) if kind == "oval" else 1.0
    a, b = (1.0, flat) if rng.random() < 0.7 else (flat, 1.0)
    return [(s * a * math.cos(2 * math.pi * i / 48), s * b * math.sin(2 * math.pi * i / 48)) for i in range(48)]


def arc(cx: float, cy: float, rx: float, ry: float, start: int, steps: int) -> list[tuple[float, float]]:
    """Part of an ellipse in sixteenths of a turn, clockwise from the right."""
    return [(cx + rx * math.cos(math.pi * (start + i) / 8), cy + ry * math.sin(math.pi * (start + i) / 8)) for i in range(steps + 1)]


# Each digit as strokes in a box from (-1, -1.5) to (1, 1.5).
STROKES = {
    "0": [arc(0, 0, 0.9, 1.45, 0, 16)],
    "1": [[(-0.6, -0.9), (0.1, -1.45), (0.1, 1.45)]],
    "2": [arc(0, -0.6, 0.85, 0.85, 8, 9) + [(-0.9, 1.4), (0.95, 1.4)]],
    "3": [arc(0, -0.72, 0.8, 0.72, 9, 11), arc(0, 0.7, 0.9, 0.75, 12, 11)],
    "4": [[(0.45, 1.45), (0.45, -1.4), (-0.9, 0.6), (0.95, 0.6)]],
    "5": [[(0.8, -1.4), (-0.65, -1.4), (-0.75, -0.2)] + arc(-0.05, 0.5, 0.9, 0.92, 10, 12)],
    "6": [[(0.6, -1.4), (-0.3, -0.7), (-0.8, 0.4)] + arc(0, 0.55, 0.85, 0.88, 8, 16)],
    "7": [[(-0.9, -1.4), (0.9, -1.4), (-0.2, 1.45)]],
    "8": [arc(0, -0.75, 0.72, 0.7, 0, 16), arc(0, 0.7, 0.88, 0.76, 0, 16)],
    "9": [arc(0, -0.55, 0.85, 0.88, 0, 16), [(0.85, -0.5), (0.6, 0.6), (-0.2, 1.45)]],
}
SEGMENTS = {"0": "abcdef", "1": "bc", "2": "abged", "3": "abgcd", "4": "fgbc", "5": "afgcd", "6": "afgedc", "7": "abc", "8": "abcdefg", "9": "abcdfg"}
BAR = {"a": ((-1, -1.5), (1, -1.5)), "b": ((1, -1.5), (1, 0)), "c": ((1, 0), (1, 1.5)), "d": ((-1, 1.5), (1, 1.5)), "e": ((-1, 0), (-1, 1.5)),
       "f": ((-1, -1.5), (-1, 0)), "g": ((-1, 0), (1, 0))}
FONTS = {}


def font(size: int) -> ImageFont.ImageFont:
    """Pillow's own scalable font."""
    if size not in FONTS:
        FONTS[size] = ImageFont.load_default(size)
    return FONTS[size]


def draw_digit(d: ImageDraw.ImageDraw, rng: Random, digit: str, x: float, y: float, s: float, fill: tuple) -> None:
    """One digit of half-height s: by Pillow's font, by strokes with some freedom, or by seven segments."""
    style = rng.random()
    if style < 0.35:
        d.text((x, y), digit, fill=fill, font=font(max(8, int(s * 2.7) // 4 * 4)), anchor="mm")
        return
    slant, wide, unit = rng.uniform(-0.15, 0.25), rng.uniform(0.8, 1.15), s / 1.5
    lines = STROKES[digit] if style < 0.9 else [list(BAR[b]) for b in SEGMENTS[digit]]
    width = max(2, int(unit * rng.uniform(0.22, 0.5)))
    shake = 0.06 if style < 0.9 else 0.0
    for line in lines:
        pts = [(x + unit * (wide * px - slant * py + rng.uniform(-shake, shake)), y + unit * (py + rng.uniform(-shake, shake))) for px, py in line]
        d.line(pts, fill=fill, width=width, joint="curve")
        for px, py in (pts[0], pts[-1]):
            d.ellipse((px - width / 2, py - width / 2, px + width / 2, py + width / 2), fill=fill)


def draw_item(d: ImageDraw.ImageDraw, rng: Random, item: Item, unit: float, style: str) -> None:
    """One item, filled, bordered or as an outline; `unit` is the canvas's shorter side in pixels."""
    x, y, s, fill = item.x * unit, item.y * unit, item.size * unit, jitter(rng, item.colour)
    border = max(1, int(s * rng.uniform(0.03, 0.09))) if style == "bordered" else 0
    if item.kind.isdigit():
        step = 1.45 * s
        for i, c in enumerate(item.kind):
            draw_digit(d, rng, c, x + (i - (len(item.kind) - 1) / 2) * step, y, s, fill)
        return
    if item.kind in ("circle", "ring"):
        box = (x - s, y - s, x + s, y + s)
        if item.kind == "ring":
            d.ellipse(box, outline=fill, width=max(2, int(s * rng.uniform(0.22, 0.34))))
        else:
            d.ellipse(box, fill=fill, outline=INK if border else None, width=border)
        return
    turn = rng.uniform(-0.14, 0.14)
    cos, sin = math.cos(turn), math.sin(turn)
    pts = [(x + px * cos - py * sin, y + px * sin + py * cos) for px, py in polygon(item.kind, s, rng)]
    if style == "outline":
        width = max(2, int(s * rng.uniform(0.12, 0.2)))
        d.line(pts + pts[:2], fill=fill, width=width, joint="curve")
    else:
        d.polygon(pts, fill=fill)
        if border:
            d.line(pts + pts[:2], fill=INK, width=border, joint="curve")


NOISE = np.random.default_rng(7).normal(0, 1, (640, 640, 3)).astype(np.float32)


def render(rng: Random, items: list[Item], background: str, width: int, height: int, noise: float = 0.35) -> Image.Image:
    """The picture of a scene, with its own shades, softness and noise."""
    scale = 2 if rng.random() < 0.75 else 1
    base = jitter(rng, background)
    img = Image.new("RGB", (width * scale, height * scale), base)
    d = ImageDraw.Draw(img)
    if rng.random() < 0.1:
        other = jitter(rng, background)
        for i in range(0, height * scale, 2):
            t = i / (height * scale)
            d.rectangle((0, i, width * scale, i + 2), fill=tuple(int(a * (1 - t) + b * t) for a, b in zip(base, other)))
    style = rng.choices(["filled", "bordered", "outline"], [0.72, 0.14, 0.14])[0]
    for item in items:
        draw_item(d, rng, item, min(width, height) * scale, style)
    if scale == 2:
        img = img.reduce(2)
    if rng.random() < 0.12:
        img = img.filter(ImageFilter.GaussianBlur(rng.uniform(0.3, 0.006 * min(width, height))))
    if rng.random() < noise:
        x, y = rng.randrange(640 - width + 1), rng.randrange(640 - height + 1)
        grain = NOISE[y : y + height, x : x + width] * rng.uniform(1.0, 9.0)
        img = Image.fromarray(np.clip(np.asarray(img) + grain, 0, 255).astype(np.uint8))
    return img


def target_size(width: int, height: int) -> tuple[int, int]:
    """Gemma 4's size rule for a budget of MAX_CELLS soft tokens: (width, height) in pixels, multiples of CELL."""
    f = math.sqrt(MAX_CELLS * CELL * CELL / (width * height))
    h, w = int(f * height // CELL) * CELL, int(f * width // CELL) * CELL
    if h == 0:
        return min(width // height, MAX_CELLS) * CELL, CELL
    if w == 0:
        return CELL, min(height // width, MAX_CELLS) * CELL
    return w, h


def patches(img: Image.Image) -> tuple[np.ndarray, np.ndarray]:
    """Bytes of all patches and their (x, y), cell by cell: nine consecutive patches make one soft token.

    The processor of transformers lists patches row by row; only the order differs, and attention does not see it.
    """
    size = target_size(*img.size)
    if size != img.size:
        img = img.resize(size, Image.Resampling.BICUBIC)
    w, h = size[0] // CELL, size[1] // CELL
    px = np.asarray(img.convert("RGB")).reshape(h, 3, PATCH, w, 3, PATCH, 3).transpose(0, 3, 1, 4, 2, 5, 6)
    cy, cx, py, pxs = np.meshgrid(np.arange(h), np.arange(w), np.arange(3), np.arange(3), indexing="ij")
    xy = np.stack([cx * 3 + pxs, cy * 3 + py], -1)
    return px.reshape(-1, PATCH * PATCH * 3), xy.reshape(-1, 2)
