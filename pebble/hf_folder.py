"""Writes a Hugging Face folder: the tracked files of `folder/` and the weights."""

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from model import Config, Pebble

ROOT = Path(__file__).resolve().parent


def write(model: Pebble, out: Path, config: Config) -> None:
    """The folder, weights in bf16."""
    out.mkdir(parents=True, exist_ok=True)
    for f in sorted((ROOT / "folder").iterdir()):
        shutil.copyfile(f, out / f.name)
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    weights = {k: v.detach().to("cpu", torch.bfloat16).contiguous() for k, v in model.state_dict().items()}
    save_file(weights, out / "model.safetensors", metadata={"format": "pt"})


def read(model: Pebble, folder: Path) -> None:
    """The weights of a folder into a model."""
    model.load_state_dict({k: v.float() for k, v in load_file(folder / "model.safetensors").items()})
