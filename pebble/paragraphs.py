"""Short paragraphs of invented facts with questions whose answers stand in the text."""

from random import Random

from sample import Sample, equals
from words import ANIMALS, CITIES, COLOURS, FOODS, GIRLS, JOBS, NAMES, OBJECTS, PLACES, article

Fact = tuple[str, str, str]  # sentence, question, answer


def person_facts(rng: Random, name: str) -> list[Fact]:
    """Facts about one person, in the order of a small portrait."""
    she = "She" if name in GIRLS else "He"
    her = "her" if name in GIRLS else "his"
    city, job, animal = rng.choice(CITIES), rng.choice(JOBS), rng.choice(ANIMALS)
    colour, thing, food, age = rng.choice(COLOURS), rng.choice(OBJECTS), rng.choice(FOODS), rng.randrange(5, 90)
    pet, place = rng.choice(NAMES), rng.choice(PLACES)
    facts = [
        (f"{she} lives in {city}.", f"Where does {name} live?", f"{name} lives in {city}."),
        (f"{she} works as {article(job)}.", f"What is {name}'s job?", f"{name} is {article(job)}."),
        (f"{she} is {age} years old.", f"How old is {name}?", f"{name} is {age} years old."),
        (f"{she} has {article(animal)} called {pet}.", f"What is the name of {name}'s {animal}?", f"The {animal} is called {pet}."),
        (f"{she} likes to eat {food}.", f"What does {name} like to eat?", f"{name} likes to eat {food}."),
        (f"Every Sunday {she.lower()} walks to the {place}.", f"Where does {name} walk every Sunday?", f"{name} walks to the {place}."),
        (f"In {her} bag there is {article(colour)} {thing}.", f"What is in {name}'s bag?", f"There is {article(colour)} {thing} in the bag."),
    ]
    rng.shuffle(facts)
    return facts


def event_facts(rng: Random, name: str) -> list[Fact]:
    """A small event: two people, a thing, a place and a weather."""
    other = rng.choice([n for n in NAMES if n != name])
    thing, colour, place = rng.choice(OBJECTS), rng.choice(COLOURS), rng.choice(PLACES)
    animal, food, n = rng.choice(ANIMALS), rng.choice(FOODS), rng.randrange(2, 10)
    weather = rng.choice(["raining", "snowing", "sunny", "windy", "foggy", "very hot", "very cold"])
    return [
        (f"It was {weather} that day.", "What was the weather like?", f"It was {weather}."),
        (f"{name} went to the {place} with {other}.", f"Who went to the {place} with {name}?", f"{other} went with {name}."),
        (f"They found {article(colour)} {thing} under a tree.", "What did they find?", f"They found {article(colour)} {thing}."),
        (f"{article(animal).capitalize()} was watching them.", "Who was watching them?", f"{article(animal).capitalize()} was watching them."),
        (f"{other} carried {n} {food} in a basket.", f"How many {food} did {other} carry?", f"{other} carried {n} {food}."),
    ]


def paragraph(rng: Random) -> Sample:
    """Three to six facts; one to three questions on them, the first of them checkable."""
    name = rng.choice(NAMES)
    if rng.random() < 0.5:
        facts = person_facts(rng, name)[: rng.randrange(3, 6)]
        text = f"This is {name}. " if rng.random() < 0.5 else f"{name} is a friend of mine. "
    else:
        facts = [f for f in event_facts(rng, name) if rng.random() < 0.85] or event_facts(rng, name)
        text = ""
    text += " ".join(f[0] for f in facts)
    asked = rng.sample(facts, min(len(facts), rng.choice([1, 1, 2, 3])))
    before = rng.choice(["Read this: {t}\n\n{q}", "{t}\n\n{q}", "{t} {q}", "Text: {t}\nQuestion: {q}", "{q}\n\n{t}"])
    messages = []
    for i, (_, q, a) in enumerate(asked):
        messages += [{"role": "user", "content": before.format(t=text, q=q) if i == 0 else q}, {"role": "assistant", "content": a}]
    return Sample("paragraph", text + asked[0][1], messages, check=equals(asked[0][2]) if len(asked) == 1 else {})
