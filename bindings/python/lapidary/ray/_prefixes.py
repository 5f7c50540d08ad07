"""Who has which beginnings of prompts in its cache."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

BLOCK = 256
"""Characters that are told apart together: about half a page of tokens."""


def text_of(body: Any) -> str:
    """What stands in a prompt, in its order: a request whose prompt begins the same begins the same here."""
    if not isinstance(body, Mapping):
        return ""
    told: list[str] = [str(body.get("tools") or "")]
    prompt = body.get("prompt", body.get("input"))
    if isinstance(prompt, str):
        told.append(prompt)
    elif isinstance(prompt, Sequence):
        told.extend(map(str, prompt))
    for message in body.get("messages") or ():
        if isinstance(message, Mapping):
            told.append(f"\0{message.get('role')}\0{_content(message.get('content'))}")
    return "".join(told)


def _content(content: Any) -> str:
    # An image is its address or its bytes, which are text in a request.
    return content if isinstance(content, str) else repr(content)


def chain(text: str) -> list[bytes]:
    """A name for each beginning of a text that is whole blocks, shortest first; the last is the whole."""
    names: list[bytes] = []
    so_far = hashlib.blake2b(digest_size=16)
    for start in range(0, len(text), BLOCK):
        so_far.update(text[start : start + BLOCK].encode("utf-8", "surrogatepass"))
        names.append(so_far.copy().digest())
    return names


class Prefixes:
    """Which of many holders saw which beginnings last; the oldest are forgotten."""

    def __init__(self, most: int = 100_000) -> None:
        self._holders: OrderedDict[bytes, list[Any]] = OrderedDict()
        self._most = most

    def note(self, names: Sequence[bytes], holder: Any) -> None:
        """A holder has read a text."""
        for name in names:
            holders = self._holders.setdefault(name, [])
            if holder in holders:
                holders.remove(holder)
            holders.append(holder)
            self._holders.move_to_end(name)
        while len(self._holders) > self._most:
            self._holders.popitem(last=False)

    def best(self, names: Sequence[bytes], among: Sequence[Any]) -> tuple[Any, int]:
        """Who has the longest beginning, and how many blocks; nobody and 0 if nobody has any."""
        for n in range(len(names), 0, -1):
            for holder in reversed(self._holders.get(names[n - 1], ())):
                if holder in among:
                    return holder, n
        return None, 0

    def forget(self, holder: Any) -> None:
        """A holder is gone."""
        for name in [name for name, holders in self._holders.items() if holder in holders]:
            self._holders[name].remove(holder)
            if not self._holders[name]:
                del self._holders[name]
