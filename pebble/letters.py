"""Letter and word tasks: spelling, counting letters, reversing, first and last, plural, opposite, rhyme of order."""

from random import Random

from chat import ask
from sample import Sample, equals, number
from words import NUMBERS, OPPOSITES, PLURALS, SPELLING


def spell(rng: Random, w: str) -> tuple[str, str, dict]:
    q = rng.choice(["Spell {w}.", "How do you spell {w}?", "Spell the word {w}.", "Can you spell \"{w}\"?"])
    a = "-".join(w)
    return q, a, equals(a)


def length(rng: Random, w: str) -> tuple[str, str, dict]:
    q = rng.choice(["How many letters are in {w}?", "How many letters does the word {w} have?", "Count the letters in \"{w}\"."])
    return q, f"{'-'.join(w)}: {len(w)} letters.", number(len(w))


def letter_count(rng: Random, w: str) -> tuple[str, str, dict]:
    c = rng.choice(w)
    q = rng.choice(["How many times is the letter " + c + " in {w}?", "How many " + c + "'s are in {w}?"])
    n = w.count(c)
    return q, f"{'-'.join(w)}: {n} {'time' if n == 1 else 'times'}.", number(n)


def reverse(rng: Random, w: str) -> tuple[str, str, dict]:
    q = rng.choice(["Spell {w} backwards.", "Reverse the word {w}.", "What is {w} backwards?", "Write {w} in reverse."])
    a = "-".join(reversed(w))
    return q, a, equals(a)


def first_letter(rng: Random, w: str) -> tuple[str, str, dict]:
    q = rng.choice(["What is the first letter of {w}?", "Which letter does {w} start with?"])
    a = f"The first letter of {w} is {w[0]}."
    return q, a, equals(a)


def last_letter(rng: Random, w: str) -> tuple[str, str, dict]:
    q = rng.choice(["What is the last letter of {w}?", "Which letter does {w} end with?"])
    a = f"The last letter of {w} is {w[-1]}."
    return q, a, equals(a)


def has_letter(rng: Random, w: str) -> tuple[str, str, dict]:
    c = rng.choice(w) if rng.random() < 0.5 else rng.choice("abcdefghijklmnopqrstuvwxyz")
    q = rng.choice(["Is there the letter " + c + " in {w}?", "Does {w} have the letter " + c + "?"])
    a = f"Yes, {w} has the letter {c}." if c in w else f"No, {w} does not have the letter {c}."
    return q, a, equals(a)


def shout(rng: Random, w: str) -> tuple[str, str, dict]:
    return rng.choice(["Write {w} in capital letters.", "Write {w} in upper case."]), w.upper(), equals(w.upper())


KINDS = [spell, spell, length, letter_count, reverse, first_letter, last_letter, has_letter, shout]


def letters(rng: Random) -> Sample:
    """One task on one word. Opposites, plurals and counting lists are small tables and are taught whole."""
    r = rng.random()
    if r < 0.12:
        w = rng.choice(list(OPPOSITES))
        a, b = (w, OPPOSITES[w]) if rng.random() < 0.5 or list(OPPOSITES.values()).count(OPPOSITES[w]) > 1 else (OPPOSITES[w], w)
        q = rng.choice(["What is the opposite of {w}?", "Tell me the opposite of {w}.", "What's the opposite of \"{w}\"?"])
        return Sample("letters", "", ask(q.format(w=a), f"The opposite of {a} is {b}."))
    if r < 0.24:
        w = rng.choice(list(PLURALS))
        q = rng.choice(["What is the plural of {w}?", "One {w}, two what?", "Give me the plural of \"{w}\"."])
        return Sample("letters", "", ask(q.format(w=w), f"The plural of {w} is {PLURALS[w]}."))
    if r < 0.28:
        a = rng.randrange(0, 10)
        b = rng.randrange(a + 2, min(a + 8, 13))
        words = rng.random() < 0.3
        listing = ", ".join(NUMBERS[i] if words else str(i) for i in range(a, b + 1))
        q = f"Count from {NUMBERS[a] if words else a} to {NUMBERS[b] if words else b}."
        return Sample("letters", "", ask(q, listing + "."))
    kind, w = rng.choice(KINDS), rng.choice(SPELLING)
    q, a, check = kind(rng, w)
    return Sample("letters", f"{kind.__name__} {w}", ask(q.format(w=w), a), check=check)
