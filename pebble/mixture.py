"""Which generators make the training chats, how often, and how much each weighs in the loss."""

from random import Random

from arithmetic import arithmetic
from corpus import continuation, dialogue
from facts import small_talk
from letters import letters
from paragraphs import paragraph
from sample import Sample
from stories import story
from toolcalls import toolcall
from words import reserved

# generator: share of the chats
SHARES = {arithmetic: 0.34, letters: 0.14, small_talk: 0.12, paragraph: 0.09, story: 0.07, toolcall: 0.14, dialogue: 0.06, continuation: 0.04}
TEXT_TASKS = [arithmetic, letters, small_talk, paragraph, story, toolcall]

# Number of each task in the training rows; 0 means "no loss here".
TASKS = ["none", "book", "add", "subtract", "multiply", "compare", "problem", "letters", "talk", "paragraph", "story", "tool", "dialogue",
         "continue", "picture"]
WEIGHTS = {"none": 0.0, "book": 0.5, "continue": 0.5, "dialogue": 0.5, "add": 2.0, "subtract": 1.5, "picture": 3.0, "tool": 1.2}


def chat_sample(rng: Random) -> Sample:
    """One training chat that no held-out set may contain."""
    task = rng.choices(list(SHARES), list(SHARES.values()))[0]
    while True:
        sample = task(rng)
        if not sample.key or not reserved(sample.key):
            return sample
