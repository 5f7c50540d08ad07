"""Where the servers are that `cargo xtask clients` started, and what they are asked."""

import base64
import contextlib
import os
import pathlib
import time
import urllib.request

import pytest

PEBBLE = os.environ["LAPIDARY_URL"]
KEYED = os.environ["LAPIDARY_KEYED_URL"]
KEY = os.environ["LAPIDARY_KEY"]
REAL = os.environ.get("LAPIDARY_REAL_URL")

MODEL = "pebble"
STORY = "Tell me a story about a brave fox."
WEATHER = "What is the weather in Auckland?"
#: What the tool says, and what pebble makes of it.
RESULT = "sunny, 20 degrees"
TOLD = "It is sunny in Auckland with 20 degrees."

CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "description": "The name of the city."}},
    "required": ["city"],
}
#: Name, description and parameters of what pebble may call.
TOOLS = [
    ("get_time", "Get the current time in a city.", CITY),
    ("get_weather", "Get the current weather in a city.", CITY),
]

#: A tool that pebble has never seen, with arguments that it would not make of itself.
ORDER = {
    "type": "object",
    "properties": {
        "size": {"enum": ["small", "large"]},
        "slices": {"type": "integer", "minimum": 1, "maximum": 12},
        "toppings": {
            "type": "array",
            "items": {"type": "string", "pattern": "^[a-z]{3,8}$"},
            "minItems": 1,
            "maxItems": 3,
        },
        "to": {
            "type": "object",
            "properties": {"street": {"type": "string", "maxLength": 12}},
            "required": ["street"],
            "additionalProperties": False,
        },
    },
    "required": ["size", "slices", "toppings", "to"],
    "additionalProperties": False,
}

#: No answer to this ends of itself before the context is full: it takes seconds.
ENDLESS = {"type": "array", "items": {"enum": ["left", "right"]}, "minItems": 5000}
#: Seconds that a request may take.
LIMIT = 60


@contextlib.contextmanager
def left(limit=LIMIT):
    """What is begun inside is left before its end: the server must notice and stop."""
    before = cancelled()
    yield
    end = time.monotonic() + limit
    while cancelled() <= before:
        assert time.monotonic() < end, "the server goes on with an answer that nobody reads"
        time.sleep(0.05)


def cancelled():
    """How many answers the server has given up, as it says itself."""
    with urllib.request.urlopen(f"{PEBBLE}/metrics", timeout=LIMIT) as reply:
        lines = reply.read().decode().splitlines()
    lines = [line for line in lines if line.startswith("lapidary:request_success")]
    return sum(float(line.split()[-1]) for line in lines if '"cancelled"' in line)


def openai_tools(tools=TOOLS):
    keys = ("name", "description", "parameters")
    return [{"type": "function", "function": dict(zip(keys, tool))} for tool in tools]


def anthropic_tools(tools=TOOLS):
    return [dict(zip(("name", "description", "input_schema"), tool)) for tool in tools]


def order_tool():
    return [("order_pizza", "Order a pizza.", ORDER)]


def user(text):
    return [{"role": "user", "content": text}]


@pytest.fixture(scope="session")
def star():
    """A drawing of a yellow star, in base64."""
    root = pathlib.Path(__file__).parents[2]
    path = root / "pebble" / "heldout" / "images" / "drawing17.png"
    return base64.b64encode(path.read_bytes()).decode()
