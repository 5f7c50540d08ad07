"""What every generator gives: one conversation with a checkable last answer."""

from dataclasses import dataclass, field
from random import Random
from typing import Callable

from chat import Message


@dataclass
class Sample:
    """`key` decides on which side of the split it lies; `check` is read by eval.py and by the Rust tests."""
    task: str
    key: str
    messages: list[Message]
    tools: list[dict] = field(default_factory=list)
    check: dict = field(default_factory=dict)


Generator = Callable[[Random], Sample]


def equals(*answers: str) -> dict:
    """The reply must be one of these after normalisation."""
    return {"check": "equals", "answers": list(answers)}


def number(n: int) -> dict:
    """The last integer of the reply must be this one."""
    return {"check": "number", "number": n}


def tool_call(name: str, arguments: dict) -> dict:
    """The reply must be exactly this call."""
    return {"check": "tool_call", "name": name, "arguments": arguments}
