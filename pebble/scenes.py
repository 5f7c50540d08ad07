"""Scenes of shapes and digits, and questions on them with answers that follow from the scene."""

import math
from dataclasses import dataclass, field
from random import Random

from PIL import Image

from pictures import RGB, SHAPES, Item, render
from sample import Sample, equals
from words import NUMBERS, article, joined

ZONES = {(0, 0): "at the top left", (1, 0): "at the top", (2, 0): "at the top right", (0, 1): "on the left", (1, 1): "in the middle",
         (2, 1): "on the right", (0, 2): "at the bottom left", (1, 2): "at the bottom", (2, 2): "at the bottom right"}
BACKGROUNDS = ["white"] * 11 + ["black"] * 2 + ["gray"] * 2 + ["yellow", "pink", "blue", "green", "orange"]
SIZES = [(384, 384)] * 4 + [(n, n) for n in (96, 128, 160, 180, 200, 200, 224, 256, 300, 320, 480, 512, 640)]
WIDE = [(512, 384), (384, 512), (480, 320), (320, 480), (640, 360), (360, 640), (400, 300), (300, 400), (256, 192), (480, 432), (336, 480),
        (200, 150), (150, 200), (200, 133), (133, 200), (200, 112), (112, 200)]


@dataclass
class Scene:
    """What is drawn, and the questions that can be asked of it: (kind, question, answer)."""
    items: list[Item]
    background: str
    width: int
    height: int
    asks: list[tuple[str, str, str]] = field(default_factory=list)

    def key(self) -> str:
        """The same scene has the same key."""
        return repr((self.background, self.width, self.height, [(i.kind, i.colour, round(i.x, 2), round(i.y, 2)) for i in self.items]))

    def draw(self, rng: Random, noise: float = 0.35) -> Image.Image:
        """Its picture; `noise` is how often it is grainy."""
        return render(rng, self.items, self.background, self.width, self.height, noise)


def plural(kind: str) -> str:
    return kind + ("es" if kind == "cross" else "s")


def counted(n: int, what: str, many: str) -> str:
    return f"There is 1 {what}." if n == 1 else f"There are {n} {many}."


def canvas(rng: Random) -> tuple[int, int, float, float]:
    """Width and height in pixels and in units of the shorter side."""
    w, h = rng.choice(SIZES) if rng.random() < 0.65 else rng.choice(WIDE)
    return w, h, w / min(w, h), h / min(w, h)


def colours(rng: Random, n: int) -> tuple[str, list[str]]:
    """A background and n other colours."""
    background = rng.choice(BACKGROUNDS)
    return background, rng.sample([c for c in RGB if c != background], n)


def place(rng: Random, zone: tuple[int, int], W: float, H: float) -> tuple[float, float]:
    """A point well inside a zone of the three by three."""
    fx, fy = (0.18 + 0.32 * zone[0] + rng.uniform(-0.05, 0.05), 0.18 + 0.32 * zone[1] + rng.uniform(-0.05, 0.05))
    return fx * W, fy * H


def describe_questions(rng: Random) -> str:
    return rng.choice(["Describe the picture.", "Describe this picture.", "What do you see?", "What is in the picture?", "Describe this image.",
                       "Describe the image.", "What is in this image?", "What does the picture show?", "What is this?", ""])


def where_questions(rng: Random, name: str) -> str:
    return rng.choice([f"Where is the {name}?", f"In which part of the picture is the {name}?", f"What is the position of the {name}?"])


def one(rng: Random) -> Scene:
    """A single shape somewhere."""
    w, h, W, H = canvas(rng)
    background, (colour,) = colours(rng, 1)
    kind, zone = rng.choice(SHAPES), (1, 1) if rng.random() < 0.35 else (rng.randrange(3), rng.randrange(3))
    x, y = place(rng, zone, W, H)
    room = min(x, y, W - x, H - y)
    size = rng.uniform(min(0.1, room), min(room, 0.42))
    where = ZONES[zone]
    asks = [
        ("shape", rng.choice(["What shape is this?", "Which shape do you see?", "What shape is in the picture?", "Name the shape."]), f"It is {article(kind)}."),
        ("colour", rng.choice([f"What colour is the {kind}?", f"What color is the {kind}?", f"Which colour does the {kind} have?"]), f"The {kind} is {colour}."),
        ("colour", rng.choice(["What colour is the shape?", "What colour is it?", "What color is it?"]), f"It is {colour}."),
        ("position", where_questions(rng, kind), f"The {kind} is {where}."),
        ("background", rng.choice(["What colour is the background?", "Which colour is the background?"]), f"The background is {background}."),
        ("count", rng.choice(["How many shapes are there?", "How many shapes do you see?"]), "There is 1 shape."),
        ("caption", describe_questions(rng), f"{article(colour).capitalize()} {kind} {where} on {article(background)} background."),
    ]
    other, shade = rng.choice([s for s in SHAPES if s != kind]), rng.choice([c for c in RGB if c != colour])
    asks.append(rng.choice([("yesno", f"Is this {article(kind)}?", f"Yes, it is {article(kind)}."), ("yesno", f"Is this {article(other)}?", f"No, it is {article(kind)}."),
                            ("yesno", f"Is the {kind} {colour}?", f"Yes, the {kind} is {colour}."), ("yesno", f"Is the {kind} {shade}?", f"No, the {kind} is {colour}.")]))
    return Scene([Item(kind, colour, x, y, size)], background, w, h, asks)


def pair(rng: Random) -> Scene:
    """Two different things, one beside or above the other."""
    w, h, W, H = canvas(rng)
    background, (c1, c2) = colours(rng, 2)
    k1, k2 = rng.sample(SHAPES, 2)
    across = rng.random() < 0.5
    near, far = rng.uniform(0.2, 0.32), rng.uniform(0.68, 0.8)
    a, b = rng.uniform(0.35, 0.65), rng.uniform(-0.08, 0.08)
    p1, p2 = ((near * W, a * H), (far * W, (a + b) * H)) if across else ((a * W, near * H), ((a + b) * W, far * H))
    small, big = rng.uniform(0.09, 0.12), rng.uniform(0.16, 0.19)
    equal = rng.random() < 0.5
    s1, s2 = (small, small) if equal else rng.choice([(small, big), (big, small)])
    n1, n2 = f"{c1} {k1}", f"{c2} {k2}"
    first, second = ("left of", "right of") if across else ("above", "below")
    asks = [
        ("relation", f"What is {first} the {k2}?", f"{article(n1).capitalize()} is {first} the {k2}."),
        ("relation", f"What is {second} the {k1}?", f"{article(n2).capitalize()} is {second} the {k1}."),
        ("relation", f"Where is the {k1}?", f"The {k1} is {first} the {k2}."),
        ("relation", f"Where is the {k2}?", f"The {k2} is {second} the {k1}."),
        ("colour", rng.choice([f"What colour is the {k1}?", f"What color is the {k1}?"]), f"The {k1} is {c1}."),
        ("colour", rng.choice([f"What colour is the {k2}?", f"What color is the {k2}?"]), f"The {k2} is {c2}."),
        ("shape", f"Which shape is {c1}?", f"The {k1} is {c1}."), ("shape", f"Which shape is {c2}?", f"The {k2} is {c2}."),
        ("count", "How many shapes are there?", "There are 2 shapes."),
        ("caption", describe_questions(rng), f"{article(n1).capitalize()} {'to the left of' if across else 'above'} {article(n2)}."),
    ]
    yes = rng.random() < 0.5
    asks.append(("yesno", f"Is the {k1} {first if yes else second} the {k2}?", f"{'Yes' if yes else 'No'}, the {k1} is {first} the {k2}."))
    if not equal:
        large, little = ((k1, k2) if s1 > s2 else (k2, k1))
        asks += [("size", rng.choice(["Which shape is bigger?", "Which one is larger?"]), f"The {large} is bigger."),
                 ("size", "Which shape is smaller?", f"The {little} is smaller.")]
    return Scene([Item(k1, c1, *p1, s1), Item(k2, c2, *p2, s2)], background, w, h, asks)


def scattered(rng: Random, n: int, W: float, H: float) -> list[tuple[float, float]]:
    """n places that do not touch: cells of a three by three, shaken."""
    cells = rng.sample([(x, y) for x in range(3) for y in range(3)], n)
    return [((0.18 + 0.32 * x + rng.uniform(-0.04, 0.04)) * W, (0.18 + 0.32 * y + rng.uniform(-0.04, 0.04)) * H) for x, y in cells]


def many(rng: Random) -> Scene:
    """Several of one kind, perhaps with some of another."""
    w, h, W, H = canvas(rng)
    background, (c1, c2) = colours(rng, 2)
    k1, k2 = rng.sample(SHAPES, 2)
    n1, n2 = rng.randrange(1, 7), rng.choice([0, 0, 1, 2, 3])
    n2 = min(n2, 7 - n1)
    items = [Item(k1 if i < n1 else k2, c1 if i < n1 else c2, x, y, rng.uniform(0.08, 0.125)) for i, (x, y) in enumerate(scattered(rng, n1 + n2, W, H))]
    rng.shuffle(items)
    name = lambda n, c, k: article(f"{c} {k}") if n == 1 else f"{NUMBERS[n]} {c} {plural(k)}"
    asks = [
        ("count", rng.choice([f"How many {plural(k1)} are there?", f"How many {plural(k1)} do you see?", f"Count the {plural(k1)}."]), counted(n1, k1, plural(k1))),
        ("count", rng.choice([f"How many {c1} shapes are there?", f"How many {c1} things do you see?"]), counted(n1, c1 + " shape", c1 + " shapes")),
        ("count", rng.choice(["How many shapes are there?", "How many shapes do you see?"]), counted(n1 + n2, "shape", "shapes")),
        ("colour", f"What colour {'is the ' + k1 if n1 == 1 else 'are the ' + plural(k1)}?", f"The {k1} is {c1}." if n1 == 1 else f"The {plural(k1)} are {c1}."),
        ("caption", describe_questions(rng), joined([name(n1, c1, k1)] + ([name(n2, c2, k2)] if n2 else [])).capitalize() + "."),
    ]
    if n2:
        asks.append(("count", f"How many {plural(k2)} are there?", counted(n2, k2, plural(k2))))
        if n1 != n2:
            asks.append(("count", f"Are there more {plural(k1)} or {plural(k2)}?", f"There are more {plural(k1 if n1 > n2 else k2)}."))
    else:
        asks.append(("shape", "Which shapes do you see?", f"I see {name(n1, c1, k1)}."))
    return Scene(items, background, w, h, asks)


def arranged(rng: Random) -> Scene:
    """Equal things in a row, a column, a diagonal, a ring or a grid."""
    w, h, W, H = canvas(rng)
    background, (colour,) = colours(rng, 1)
    kind, form = rng.choice(SHAPES), rng.choice(["row", "column", "diagonal", "circle", "grid"])
    n = {"grid": rng.choice([4, 6]), "circle": rng.choice([5, 6])}.get(form, rng.randrange(3, 6))
    lo, hi = 0.15, 0.85
    steps = [lo + (hi - lo) * i / (n - 1) for i in range(n)]
    off = rng.uniform(0.3, 0.7)
    up = rng.random() < 0.5
    if form == "row":
        spots = [(s * W, off * H) for s in steps]
    elif form == "column":
        spots = [(off * W, s * H) for s in steps]
    elif form == "diagonal":
        spots = [(s * W, (1 - s if up else s) * H) for s in steps]
    elif form == "circle":
        turn = rng.uniform(0, 1)
        spots = [(W / 2 + 0.33 * math.sin(turn + 2 * math.pi * i / n), H / 2 - 0.33 * math.cos(turn + 2 * math.pi * i / n)) for i in range(n)]
    else:
        cols = 2 if n == 4 else rng.choice([2, 3])
        rows = n // cols
        spots = [((c + 1) * W / (cols + 1), (r + 1) * H / (rows + 1)) for r in range(rows) for c in range(cols)]
    size = rng.uniform(0.06, 0.085)
    how = f"in {article(form)}"
    asks = [
        ("arrangement", rng.choice([f"How are the {plural(kind)} arranged?", "How are the shapes arranged?"]), None),
        ("count", rng.choice([f"How many {plural(kind)} are there?", f"Count the {plural(kind)}."]), counted(n, kind, plural(kind))),
        ("colour", f"What colour are the {plural(kind)}?", f"The {plural(kind)} are {colour}."),
        ("caption", describe_questions(rng), f"{NUMBERS[n].capitalize()} {colour} {plural(kind)} {how}."),
    ]
    q = asks[0][1]
    asks[0] = ("arrangement", q, f"The {plural(kind) if kind in q else 'shapes'} are {how}.")
    return Scene([Item(kind, colour, x, y, size) for x, y in spots], background, w, h, asks)


def digits(rng: Random) -> Scene:
    """A digit or a number of two digits."""
    w, h, W, H = canvas(rng)
    background, (colour,) = colours(rng, 1)
    two = rng.random() < 0.3
    text = str(rng.randrange(10, 100)) if two else str(rng.randrange(10))
    size = rng.uniform(0.12, 0.22) if two else rng.uniform(0.14, 0.4)
    x, y = (W / 2 + rng.uniform(-0.1, 0.1), H / 2 + rng.uniform(-0.08, 0.08))
    what = "number" if two else "digit"
    asks = [
        ("digit", rng.choice([f"Which {what} is this?", f"What {what} is shown?", f"What {what} do you see?", f"Read the {what}."]), f"It is the {what} {text}."),
        ("digit", rng.choice([f"Which {what} is this?", f"What {what} is in the picture?"]), f"It is the {what} {text}."),
        ("colour", rng.choice([f"What colour is the {what}?", f"What color is the {what}?"]), f"The {what} is {colour}."),
        ("background", "What colour is the background?", f"The background is {background}."),
        ("caption", describe_questions(rng), f"The {what} {text} in {colour} on {article(background)} background."),
    ]
    return Scene([Item(text, colour, x, y, size)], background, w, h, asks)


KINDS = [one] * 7 + [pair] * 5 + [many] * 4 + [arranged] * 2 + [digits] * 5


def scene(rng: Random) -> Scene:
    """Any scene."""
    return rng.choice(KINDS)(rng)


def picture(rng: Random) -> tuple[Sample, Scene]:
    """A scene with its questions as one conversation; the picture stands in the first turn."""
    s = scene(rng)
    asked = rng.sample(s.asks, len(s.asks))
    messages = []
    for i, (_, q, a) in enumerate(asked):
        parts = [{"type": "image"}, {"type": "text", "text": q}]
        if rng.random() < 0.1:
            parts.reverse()
        messages += [{"role": "user", "content": parts if i == 0 else q or "Describe the picture."}, {"role": "assistant", "content": a}]
    return Sample("picture", s.key(), messages, check=equals(asked[0][2])), s
