"""Short stories from a small grammar: the same characters, thing and place from the first sentence to the last."""

from dataclasses import dataclass
from random import Random

from chat import ask
from sample import Sample
from words import ANIMALS, COLOURS, GIRLS, NAMES, OBJECTS, PLACES, article

TRAITS = "brave kind clever shy curious lazy gentle cheerful proud careful hungry lonely merry patient".split()
ENDINGS = ["From that day on they were the best of friends.", "And so {h} went home happy.", "{h} never forgot that day.",
           "That night {h} slept very well.", "And they all lived happily ever after.", "It was the best day of the year."]


@dataclass
class Cast:
    """Who and what a story is about."""
    hero: str      # how the hero is named after the first sentence
    intro: str     # how the hero is introduced
    he: str
    his: str
    him: str
    friend: str    # "the owl" or a name
    friend_intro: str
    thing: str
    colour: str
    place: str
    trait: str
    animal: str    # "" when the hero is a child


def cast(rng: Random) -> Cast:
    """A hero (a child or an animal), a friend, a thing and a place."""
    animal, other = rng.sample(ANIMALS, 2)
    name, name2 = rng.sample(NAMES, 2)
    girl = name in GIRLS
    trait = rng.choice(TRAITS)
    if rng.random() < 0.5:
        hero, intro, animal = name, f"{article(trait)} {'girl' if girl else 'boy'} named {name}", ""
    else:
        hero, intro = name, f"{article(trait)} {animal} named {name}"
    friend, friend_intro = rng.choice([(name2, f"{article(other)} named {name2}"), (f"the {other}", article("old " + other))])
    return Cast(hero, intro, "she" if girl else "he", "her" if girl else "his", "her" if girl else "him", friend, friend_intro,
                rng.choice(OBJECTS), rng.choice(COLOURS), rng.choice(PLACES), trait, animal)


def opening(rng: Random, c: Cast) -> str:
    return rng.choice([f"Once upon a time there was {c.intro}. {c.hero} lived near the {c.place}.",
                       f"There once was {c.intro} who lived by the {c.place}.",
                       f"Long ago, in a house near the {c.place}, there lived {c.intro}.",
                       f"In a small {c.place if c.place in ('village', 'town') else 'house'} lived {c.intro}."])


def want(rng: Random, c: Cast) -> str:
    return rng.choice([f"{c.hero} had {article(c.colour)} {c.thing} and loved it more than anything.",
                       f"On {c.his} birthday {c.hero} got {article(c.colour)} {c.thing}, and {c.he} was very proud of it.",
                       f"{c.hero}'s grandmother had given {c.him} {article(c.colour)} {c.thing}.",
                       f"Every day {c.hero} played with {c.his} {c.colour} {c.thing}."])


def trouble(rng: Random, c: Cast) -> str:
    return rng.choice([f"One morning the {c.thing} was gone. {c.hero} looked everywhere, under the bed and behind the door, but {c.he} could not find it.",
                       f"One day a strong wind blew and carried the {c.thing} away, far over the {c.place}.",
                       f"One rainy evening {c.hero} lost the {c.thing} on the way to the {c.place}. {c.he.capitalize()} sat down and began to cry.",
                       f"But one day a crow came, took the {c.thing} and flew away with it. \"Come back!\" cried {c.hero}, but the crow did not listen."])


def meeting(rng: Random, c: Cast) -> str:
    return rng.choice([f"Then {c.he} met {c.friend_intro}. \"Why are you so sad?\" asked {c.friend}. \"I have lost my {c.thing},\" said {c.hero}.",
                       f"On the road {c.he} met {c.friend_intro}. \"Can you help me?\" asked {c.hero}. \"I am looking for my {c.thing}.\"",
                       f"Just then {c.friend_intro} came by. \"What is the matter?\" said {c.friend}. {c.hero} told {c.friend} about the {c.colour} {c.thing}."])


def search(rng: Random, c: Cast) -> str:
    return rng.choice([f"\"Do not worry,\" said {c.friend}, \"we will look for it together.\" They walked all day through the {c.place}.",
                       f"\"I saw something {c.colour} near the old tree,\" said {c.friend}. So they ran to the old tree as fast as they could.",
                       f"\"Come with me,\" said {c.friend}. \"Two can see more than one.\" And they searched until the sun went down."])


def finding(rng: Random, c: Cast) -> str:
    return rng.choice([f"At last they saw something {c.colour} in the grass. It was the {c.thing}!",
                       f"And there, behind a big stone, lay the {c.colour} {c.thing}. {c.hero} laughed with joy.",
                       f"When they came to the {c.place}, the {c.thing} was lying there in the moonlight. \"We found it!\" cried {c.hero}."])


def thanks(rng: Random, c: Cast) -> str:
    return rng.choice([f"\"Thank you, my friend,\" said {c.hero}.", f"{c.hero} thanked {c.friend} with all {c.his} heart.",
                       f"{c.hero} shared {c.his} supper with {c.friend} that evening."])


def errand(rng: Random, c: Cast) -> str:
    return rng.choice([f"One day {c.his} mother said, \"Please bring this {c.colour} {c.thing} to your aunt in the {c.place}.\" So {c.hero} set out.",
                       f"One spring morning {c.hero} took {c.his} {c.colour} {c.thing} and went out to see the world beyond the {c.place}.",
                       f"One day {c.hero} heard that somebody at the {c.place} needed {article(c.colour)} {c.thing}. \"I have one,\" said {c.hero}, and off {c.he} went."])


def storm(rng: Random, c: Cast) -> str:
    return rng.choice([f"On the way the sky grew dark and it began to rain. {c.hero} was cold and afraid.",
                       f"Soon {c.he} came to a deep river, and there was no bridge. {c.hero} did not know what to do.",
                       f"After a long walk {c.he} lost the way. All the trees looked the same."])


def shelter(rng: Random, c: Cast) -> str:
    return rng.choice([f"Then {c.he} saw a little light. In a small house sat {c.friend_intro}. \"Come in and warm yourself,\" said {c.friend}.",
                       f"Then {c.he} heard a soft voice. It was {c.friend_intro}. \"Follow me,\" said {c.friend}, \"I know the way.\"",
                       f"There {c.he} met {c.friend_intro}. \"You look tired,\" said {c.friend}. \"Let me help you.\""])


def arrival(rng: Random, c: Cast) -> str:
    return rng.choice([f"Together they reached the {c.place} before night. Everybody was glad to see the {c.colour} {c.thing}.",
                       f"In the morning the sun was shining, and {c.hero} came safely to the {c.place} with the {c.thing}.",
                       f"With the help of {c.friend} it was not far any more. Soon {c.hero} stood at the {c.place} and held up the {c.thing}."])


LOST = [opening, want, trouble, meeting, search, finding, thanks]
ERRAND = [opening, errand, storm, shelter, arrival, thanks]


def tell(rng: Random, c: Cast, plot: list) -> list[str]:
    """The sentences of one story, in order."""
    return [part(rng, c) for part in plot] + [rng.choice(ENDINGS).format(h=c.hero)]


def story(rng: Random) -> Sample:
    """Ask for a story, or give its beginning and ask for the rest, or ask about it."""
    c = cast(rng)
    plot = rng.choice([LOST, LOST, ERRAND])
    parts = tell(rng, c, plot)
    text = " ".join(parts)
    r = rng.random()
    if r < 0.45:
        about = rng.choice([f"about {c.hero} and {article(c.thing)}", f"about {article(c.thing)}", f"about {c.intro}",
                            f"about {article(c.animal or 'child')}", "", f"about the {c.place}", "about friends"])
        q = rng.choice(["Tell me a story {a}.", "Write a short story {a}.", "Tell me a short story {a}.", "Can you tell a story {a}?",
                        "tell me a story {a}", "I want to hear a story {a}."])
        return Sample("story", text, ask(q.format(a=about).replace(" .", ".").replace(" ?", "?").strip(), text))
    if r < 0.75:
        k = rng.randrange(1, 5)
        q = rng.choice(["Continue this story: {t}", "How does this story go on? {t}", "{t}\n\nContinue the story.", "Finish this story: {t}"])
        return Sample("story", text, ask(q.format(t=" ".join(parts[:k])), " ".join(parts[k:])))
    questions = [("Who is the story about?", f"The story is about {c.hero}."), (f"What colour was the {c.thing}?", f"The {c.thing} was {c.colour}."),
                 ("Who helped?", f"{c.friend[0].upper() + c.friend[1:]} helped.")]
    if plot is LOST:
        questions.append((f"What did {c.hero} lose?", f"{c.hero} lost the {c.thing}."))
    if "near the" in parts[0] or "by the" in parts[0]:
        questions.append((f"Where did {c.hero} live?", f"{c.hero} lived near the {c.place}."))
    q, a = rng.choice(questions)
    return Sample("story", text, ask(f"{text}\n\n{q}", a))
