#!/usr/bin/env python3
"""Write towers of the true shape of released Gemma models as mmproj GGUF files, with random weights, for measuring speed.

    python make_synthetic_mmproj.py OUT [gemma-3-4b] [gemma-4-e2b] [--type bf16|f16]

  OUT/gemma-3-4b-mmproj-bf16.gguf     SigLIP and its projector
  OUT/gemma-4-e2b-mmproj-bf16.gguf    the vision and the audio tower

Names and shapes are those of transformers' own classes, built from the configs of ../crates/gemma/released without
their text side. Matrices have a standard deviation of 1/sqrt(columns), so that nothing overflows.
"""
import argparse
import json
import math
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "gguf"))

import make_mmproj
import torch
import transformers as tf
from gguf import GGMLQuantizationType as Q

RELEASED = HERE.parent / "crates" / "gemma" / "released"
MODELS = {
    "gemma-3-4b": ("gemma3_mm", tf.Gemma3ForConditionalGeneration),
    "gemma-4-e2b": ("gemma4_mm_e", tf.Gemma4ForConditionalGeneration),
}
CLIP = 64.0


def tower_weights(model_class, config):
    """Random weights for every tensor that is not of the text side, by its name in a checkpoint."""
    with torch.device("meta"):
        model = model_class(config)
    generator = torch.Generator().manual_seed(41)
    for name, tensor in sorted(model.state_dict().items()):
        if "language_model." in name or name.startswith("lm_head"):
            continue
        name = name.removeprefix("model.") if model_class is tf.Gemma3ForConditionalGeneration else name
        name = name.replace("vision_tower.vision_model.", "vision_tower.")
        yield name, random_values(name, tensor.shape, generator)


def random_values(name, shape, generator):
    if name.endswith(("_min", "_max")):
        return torch.full(shape, CLIP if name.endswith("_max") else -CLIP)
    if len(shape) < 2:
        is_scale = "norm" in name and not name.endswith("bias")
        return torch.ones(shape) if is_scale else torch.zeros(shape)
    columns = math.prod(shape[1:])
    return torch.randn(shape, generator=generator) / math.sqrt(columns)


def make(name, out, kind):
    family, model_class = MODELS[name]
    values = json.loads((RELEASED / f"{name}.json").read_text())
    config = model_class.config_class(**values)
    kept = make_mmproj.tower_type
    stored = Q.BF16 if kind == "bf16" else Q.F16
    make_mmproj.tower_type = lambda *args: Q.F32 if kept(*args) == Q.F32 else stored
    path = out / f"{name}-mmproj-{kind}.gguf"
    make_mmproj.write_mmproj(path, family, config, dict(tower_weights(model_class, config)))
    make_mmproj.tower_type = kept
    print(f"{path.name}: {path.stat().st_size / 1e6:.0f} MB", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("names", nargs="*", metavar="name", help=f"of {', '.join(MODELS)}; all if none is given")
    parser.add_argument("--type", default="bf16", choices=["bf16", "f16"], help="of matrices")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name in arguments.names or MODELS:
        make(name, arguments.out, arguments.type)
