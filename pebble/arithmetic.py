"""Sums, differences, small products, comparisons and one-step word problems."""

from random import Random

from chat import ask
from sample import Sample, number
from words import FOODS, GIRLS, NAMES, THINGS

ADD = ["What is {a} + {b}?", "{a} + {b}", "{a}+{b}", "{a} + {b} =", "{a}+{b}=?", "Add {a} and {b}.", "What is {a} plus {b}?",
       "Calculate {a} + {b}.", "How much is {a} + {b}?", "Can you add {a} and {b}?", "What do you get if you add {a} to {b}?",
       "Compute {a}+{b}", "What's {a} + {b}?", "what is {a}+{b}", "Please calculate {a} plus {b}.", "sum of {a} and {b}"]
SUB = ["What is {a} - {b}?", "{a} - {b}", "{a}-{b}", "{a} - {b} =", "Subtract {b} from {a}.", "What is {a} minus {b}?",
       "Calculate {a} - {b}.", "How much is {a} - {b}?", "Take {b} away from {a}.", "What's {a} - {b}?"]
MUL = ["What is {a} times {b}?", "{a} * {b}", "{a} x {b}", "{a}*{b}", "What is {a} x {b}?", "Multiply {a} by {b}.",
       "Calculate {a} * {b}.", "How much is {a} times {b}?"]


def add_key(a: int, b: int) -> str:
    """The same for both orders and every wording."""
    return f"add {min(a, b)} {max(a, b)}"


def operand(rng: Random) -> int:
    """Mostly two digits, sometimes one."""
    return rng.randrange(10, 100) if rng.random() < 0.8 else rng.randrange(0, 10)


def addition(rng: Random) -> Sample:
    """a + b below 200; one in ten has three digits, so that carrying is learnt as a rule."""
    big = rng.random() < 0.1
    a, b = (rng.randrange(1000), rng.randrange(1000)) if big else (operand(rng), operand(rng))
    return Sample("add", add_key(a, b), ask(rng.choice(ADD).format(a=a, b=b), f"{a} + {b} = {a + b}."), check=number(a + b))


def subtraction(rng: Random) -> Sample:
    """a - b, never below zero."""
    a, b = sorted((operand(rng), operand(rng)), reverse=True)
    return Sample("subtract", f"subtract {a} {b}", ask(rng.choice(SUB).format(a=a, b=b), f"{a} - {b} = {a - b}."),
                  check=number(a - b))


def product(rng: Random) -> Sample:
    """The times table to 12. It is small, so all of it is taught."""
    a, b = rng.randrange(13), rng.randrange(13)
    return Sample("multiply", "", ask(rng.choice(MUL).format(a=a, b=b), f"{a} * {b} = {a * b}."), check=number(a * b))


def comparison(rng: Random) -> Sample:
    """Which of two numbers is larger or smaller."""
    a, b = rng.sample(range(100), 2)
    word = rng.choice(["larger", "bigger", "smaller"])
    best = min(a, b) if word == "smaller" else max(a, b)
    q = rng.choice([f"Which is {word}, {a} or {b}?", f"Which number is {word}: {a} or {b}?"])
    return Sample("compare", f"compare {word} {a} {b}", ask(q, f"{best} is {word}."), check=number(best))


def word_problem(rng: Random) -> Sample:
    """Somebody gets or loses things."""
    name, thing = rng.choice(NAMES), rng.choice(FOODS + THINGS)
    she = "she" if name in GIRLS else "he"
    a, b = rng.randrange(2, 60), rng.randrange(1, 40)
    if rng.random() < 0.5:
        key, total = add_key(a, b), a + b
        story = rng.choice([f"{name} has {a} {thing} and finds {b} more.", f"{name} has {a} {thing}. A friend gives {name} {b} more.",
                            f"{name} buys {a} {thing} and then {she} buys {b} more."])
    else:
        a, b = max(a, b), min(a, b)
        key, total = f"subtract {a} {b}", a - b
        story = rng.choice([f"{name} has {a} {thing} and gives away {b}.", f"{name} had {a} {thing}, but {she} lost {b} of them.",
                            f"There are {a} {thing} in a box. {name} takes out {b}."])
        if story.startswith("There"):
            return Sample("problem", key, ask(story + " How many are left?", f"There are {total} {thing} left."), check=number(total))
    return Sample("problem", key, ask(story + f" How many {thing} does {name} have now?", f"{name} has {total} {thing} now."),
                  check=number(total))


def arithmetic(rng: Random) -> Sample:
    """One of the above, most often a sum."""
    kinds = [addition] * 10 + [subtraction] * 4 + [product] * 2 + [comparison] + [word_problem] * 3
    return rng.choice(kinds)(rng)
