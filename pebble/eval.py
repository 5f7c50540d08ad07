"""Measures a Hugging Face folder on the held-out sets with transformers, greedily. Run: python eval.py FOLDER [--limit N]"""

import argparse
import json
import math
import time
from pathlib import Path

import torch
from PIL import Image
from transformers import AutoProcessor, Gemma4ForConditionalGeneration

from checks import passes
from probe import HELDOUT, STOPS, load


def reply(model: Gemma4ForConditionalGeneration, processor: AutoProcessor, item: dict) -> str:
    """One greedy answer, with its special tokens but without the stop token."""
    text = processor.apply_chat_template(item["messages"], tools=item.get("tools"), add_generation_prompt=True, tokenize=False)
    images = [Image.open(HELDOUT / item["image"]).convert("RGB")] if "image" in item else None
    inputs = processor(text=text, images=images, return_tensors="pt", add_special_tokens=False).to(model.device)
    ids = model.generate(**inputs, do_sample=False, max_new_tokens=64, top_k=None, top_p=None, temperature=None)[0, inputs["input_ids"].shape[1]:]
    ids = ids[:-1] if len(ids) and ids[-1].item() in STOPS else ids
    return processor.tokenizer.decode(ids, skip_special_tokens=False)


@torch.no_grad()
def perplexity(model: Gemma4ForConditionalGeneration, processor: AutoProcessor, windows: int) -> float:
    """Of story.txt in windows of 511 tokens after <bos>."""
    ids = processor.tokenizer((HELDOUT / "story.txt").read_text(encoding="utf-8"), add_special_tokens=False)["input_ids"]
    rows = [[2] + ids[i : i + 511] for i in range(0, len(ids) - 511, 511)][:windows]
    total = 0.0
    for row in rows:
        t = torch.tensor([row], device=model.device)
        total += torch.nn.functional.cross_entropy(model(t).logits[0, :-1].float(), t[0, 1:], reduction="sum").item()
    return math.exp(total / (511 * len(rows)))


def main() -> None:
    p = argparse.ArgumentParser()
    p.add_argument("folder", type=Path)
    p.add_argument("--limit", type=int, default=None, help="items per set")
    p.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32"])
    p.add_argument("--sets", nargs="+", default=["additions", "tools", "pictures", "drawings"])
    args = p.parse_args()
    processor = AutoProcessor.from_pretrained(args.folder)
    model = Gemma4ForConditionalGeneration.from_pretrained(args.folder, dtype=getattr(torch, args.dtype)).eval()
    model.to("cuda" if torch.cuda.is_available() else "cpu")
    for name in args.sets:
        began, kinds, wrong = time.time(), {}, []
        for item in load(name, args.limit):
            if not item["check"]:
                continue
            said = reply(model, processor, item)
            ok = passes(item["check"], said)
            kinds.setdefault(item["kind"], []).append(ok)
            if not ok and len(wrong) < 5:
                wrong.append([item["id"], said])
        every = [ok for oks in kinds.values() for ok in oks]
        print(json.dumps({"set": name, "right": round(sum(every) / len(every), 4), "n": len(every), "seconds": round(time.time() - began, 1),
                          "kinds": {k: round(sum(v) / len(v), 3) for k, v in sorted(kinds.items())}, "wrong": wrong}), flush=True)
    print(json.dumps({"set": "story", "perplexity": round(perplexity(model, processor, args.limit or 40), 3)}))


if __name__ == "__main__":
    main()
