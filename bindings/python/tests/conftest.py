"""What the tests share: the built-in model, loaded once."""

import os
from pathlib import Path

import pytest

import lapidary

ROOT = Path(os.environ.get("LAPIDARY_ROOT", Path(__file__).parents[3]))
PEBBLE = {"backend": "cpu", "context": 512, "pack_cache": "off"}


@pytest.fixture(scope="session")
def model():
    """Pebble on the CPU, which answers four at once."""
    with lapidary.Model("pebble", sequences=4, **PEBBLE) as model:
        yield model


@pytest.fixture(scope="session")
def drawing():
    """A drawing of a yellow star."""
    return ROOT / "pebble/heldout/images/drawing17.png"
