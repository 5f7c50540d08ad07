"""Holds pebble's own code to transformers: template, tokens, patches, logits. Run: python check.py [HF folder]

Without a folder a random model is written and compared. Needs transformers with Gemma 4.
"""

import json
import sys
import tempfile
from pathlib import Path
from random import Random

import torch
from PIL import Image
from transformers import AutoProcessor, Gemma4ForConditionalGeneration

import hf_folder
from chat import prompt
from mixture import TEXT_TASKS
from model import Pebble
from pictures import patches
from scenes import picture
from sequences import Encoder


# Largest difference of logits, as a part of the largest logit. Both sides round to f32, and not in the same places:
# inverse frequencies differ by 1e-7 of themselves, so angles at position 400 by 1e-5. On the trained weights, whose
# logits reach 23, that makes 1.6e-4. With every number and angle in f64 the two differ by nothing at all.
TOLERANCE = 2e-5


def random_folder(config: dict) -> Path:
    """A model whose every weight matters."""
    torch.manual_seed(3)
    model = Pebble(config)
    for name, p in model.named_parameters():
        if "norm" in name:
            p.data *= torch.rand_like(p) + 0.5
    out = Path(tempfile.mkdtemp())
    hf_folder.write(model, out, config)
    return out


def check_template(processor: AutoProcessor, encoder: Encoder) -> None:
    """Our rendering, transformers' rendering, and the tokens of both."""
    rng = Random(5)
    for s in [task(rng) for task in TEXT_TASKS for _ in range(25)]:
        ours = prompt(s.messages[:-1], s.tools or None) if s.messages[-1]["role"] == "assistant" else prompt(s.messages, s.tools or None)
        theirs = processor.apply_chat_template(s.messages[:-1], tools=s.tools or None, add_generation_prompt=True, tokenize=False)
        assert ours == theirs, f"{ours!r}\n{theirs!r}"
        whole = "".join(t for t, _ in encoder.pieces(s))
        ids = processor.tokenizer(whole, add_special_tokens=False)["input_ids"]
        assert ids == encoder.encode(s)[0], whole


def hf_inputs(processor: AutoProcessor, img: Image.Image) -> dict:
    """What transformers makes of a picture question."""
    messages = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What shape is this?"}]}]
    text = processor.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    return processor(text=text, images=[img], return_tensors="pt", add_special_tokens=False)


def gap(theirs: torch.Tensor, ours: torch.Tensor) -> float:
    """The largest difference, as a part of the largest logit."""
    return ((theirs - ours).abs().max() / theirs.abs().max()).item()


def check_picture(processor: AutoProcessor, hf: Gemma4ForConditionalGeneration, ours: Pebble, img: Image.Image) -> float:
    """Patches must agree within the resize libraries' rounding; logits on the same patches must agree to rounding."""
    inputs = hf_inputs(processor, img)
    data, xy = (torch.from_numpy(a) for a in patches(img))
    where = {tuple(p): i for i, p in enumerate(inputs["image_position_ids"][0].tolist())}
    order = [where[tuple(p)] for p in xy.tolist()]
    theirs = inputs["pixel_values"][0][order] * 255
    off = (theirs - data.float()).abs()
    assert len(data) == sum(p[0] >= 0 for p in where) and off.max() <= 4 and off.mean() < 0.1, (off.max(), off.mean())
    ids = inputs["input_ids"]
    soft_at = torch.full_like(ids, -1)
    soft_at[ids == hf.config.image_token_id] = torch.arange(len(data) // 9)
    assert (soft_at >= 0).sum() * 9 == len(data)
    with torch.no_grad():
        a = hf(**inputs).logits
        b = ours(ids, torch.zeros_like(ids), soft_at, theirs.round().to(torch.uint8)[None, None], xy[None, None])
    return gap(a, b) if (theirs - theirs.round()).abs().max() < 1e-3 else float("nan")


def main() -> None:
    config = json.loads((hf_folder.ROOT / "folder/config.json").read_text())
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else random_folder(config)
    processor = AutoProcessor.from_pretrained(folder)
    hf = Gemma4ForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
    ours = Pebble(json.loads((folder / "config.json").read_text()))
    hf_folder.read(ours, folder)
    check_template(processor, Encoder())
    ids = torch.randint(32, 6000, (2, 400), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        text_gap = gap(hf(ids).logits, ours(ids, torch.zeros_like(ids)))
    print(f"text: logits differ by {text_gap:.1e} of the largest")
    assert text_gap < TOLERANCE
    rng = Random(9)
    for size in [(384, 384), (640, 360), (200, 300), (96, 96)]:
        scene = picture(rng)[1]
        scene.width, scene.height = size
        picture_gap = check_picture(processor, hf, ours, scene.draw(rng))
        print(f"picture {size}: logits differ by {picture_gap:.1e} of the largest")
        assert picture_gap < TOLERANCE
    print("ok")


if __name__ == "__main__":
    main()
