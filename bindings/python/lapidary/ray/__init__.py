"""Many machines, through Ray: batches over Ray Data, and OpenAI's API over Ray Serve.

``map_prompts`` needs ``ray[data]``, ``openai_app`` needs ``ray[serve]``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._data import Answers, map_prompts, seed_of
    from ._router import PrefixRouter
    from ._serve import openai_app

__all__ = ["Answers", "PrefixRouter", "map_prompts", "openai_app", "seed_of"]

_HOMES = {
    "Answers": "_data",
    "map_prompts": "_data",
    "seed_of": "_data",
    "PrefixRouter": "_router",
    "openai_app": "_serve",
}


def __getattr__(name: str) -> Any:
    # Whoever only maps prompts needs no Serve.
    from importlib import import_module

    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
