"""Models by name."""

from __future__ import annotations

import json
from collections.abc import Callable

from . import _native
from ._types import Backend, DownloadedModel, KnownModel, KnownVariant, read


def pull(name: str, progress: Callable[[str, bool, int, int], object] | None = None) -> str:
    """Downloads a model by its name, unless it is here: ``gemma4:e2b``, or ``org/repo[:quant][@revision]``.

    ``progress`` is called with the file, whether its checksum is computed, the bytes that have come, and
    all. Returns where it is. Ctrl-C ends it, and the next call goes on from there.
    """
    return _native.pull(name, progress)


def ls() -> list[DownloadedModel]:
    """The models on this machine, whoever downloaded them."""
    return [read(DownloadedModel, model) for model in json.loads(_native.ls())]


def rm(name: str) -> int:
    """Removes a model from this machine. Returns the bytes that are free now."""
    return _native.rm(name)


def is_downloaded(name: str) -> bool:
    """Whether all files of a model are on this machine."""
    return _native.is_downloaded(name)


def models() -> list[KnownModel]:
    """All released models that have a name, smallest first."""
    known = []
    for model in json.loads(_native.models()):
        variants = [read(KnownVariant, variant) for variant in model["variants"]]
        known.append(read(KnownModel, {**model, "variants": variants}))
    return known


def backends() -> list[Backend]:
    """The backends of this build, best first."""
    return [read(Backend, backend) for backend in json.loads(_native.backends())]
