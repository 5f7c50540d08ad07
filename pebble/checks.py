"""The checkers of the held-out sets. They are trivial on purpose: the Rust tests implement the same rules."""

import re

from chat import call


def normal(text: str) -> str:
    """Lower case; everything but letters, digits, minus and spaces dropped; single spaces."""
    return " ".join(re.sub(r"[^a-z0-9\- ]", "", text.lower()).split())


def passes(check: dict, reply: str) -> bool:
    """Whether a reply (without its stop token) satisfies a check."""
    kind = check["check"]
    if kind == "equals":
        return normal(reply) in [normal(a) for a in check["answers"]]
    if kind == "contains":
        return all(w in normal(reply).split() for w in check["words"])
    if kind == "number":
        found = re.findall(r"-?\d+", reply)
        return bool(found) and int(found[-1]) == check["number"]
    if kind == "tool_call":
        return reply.strip() == call(check["name"], check["arguments"])
    raise ValueError(f"unknown check {kind}")
