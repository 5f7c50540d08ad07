#!/usr/bin/env python3
"""From files to logits: what transformers' processors and models make of pictures and sounds in files.

    python make_seen.py OUT [FAMILY ...]        e.g. python make_seen.py seen

For each tiny multimodal model of `tiny/`, OUT/FAMILY holds the processors' own configuration files and
`expected.safetensors`: ids with soft tokens already in place, logits, and a greedy continuation. OUT holds the files:
two pictures of odd sizes, sounds of 0.05, 0.3 and 2 s. The models run in f32.
"""
import oracle  # first: it pins the instruction set that torch may use
import json
import math
import struct
import sys
import wave
from pathlib import Path

import numpy as np
import torch
import transformers as tf
from PIL import Image
from safetensors.torch import save_file
from transformers.models.gemma3.image_processing_gemma3 import Gemma3ImageProcessor
from transformers.models.gemma4.image_processing_gemma4 import Gemma4ImageProcessor
from transformers.models.gemma4_unified.image_processing_gemma4_unified import Gemma4UnifiedImageProcessor

from make import unified_masks

HERE = Path(__file__).resolve().parent
NEW_TOKENS = 8


def pictures(out):
    """Smooth colours with edges, sizes that no cell divides."""
    for name, (h, w), seed in (("wide.png", (37, 50), 1), ("tall.png", (61, 44), 2)):
        y, x = np.mgrid[0:h, 0:w].astype(np.float64)
        waves = [np.sin(x / (3 + c + seed) + seed) + np.cos(y / (4 + seed - c / 2)) for c in range(3)]
        levels = np.stack(waves, -1) * 60 + 128
        levels[h // 3 : h // 2, w // 4 : w // 2] = [250, 20 * seed, 10]
        Image.fromarray(levels.clip(0, 255).astype(np.uint8)).save(out / name)


def sounds(out):
    for name, seconds in (("tiny.wav", 0.05), ("short.wav", 0.3), ("long.wav", 2.0)):
        rate = 16000
        t = np.arange(int(rate * seconds)) / rate
        tone = 0.4 * np.sin(2 * math.pi * (220 + 300 * t) * t) + 0.1 * np.sin(2 * math.pi * 3000 * t)
        with wave.open(str(out / name), "wb") as f:
            f.setnchannels(1)
            f.setsampwidth(2)
            f.setframerate(rate)
            f.writeframes(struct.pack(f"<{len(tone)}h", *(np.round(tone * 32767).astype(int))))


def samples(path):
    with wave.open(str(path)) as f:
        return np.frombuffer(f.readframes(f.getnframes()), "<i2").astype(np.float32) / 32768


class Gemma3:
    def __init__(self, config):
        v = config.vision_config
        self.image = Gemma3ImageProcessor(size={"height": v.image_size, "width": v.image_size},
                                          image_mean=[0.5] * 3, image_std=[0.5] * 3)
        self.soft = config.image_token_index
        self.around = (config.boi_token_index, config.eoi_token_index)
        self.n_soft = config.mm_tokens_per_image

    def save(self, folder):
        json.dump(json.loads(self.image.to_json_string()), open(folder / "preprocessor_config.json", "w"), indent=1)

    def feed(self, files):
        pixels = self.image([Image.open(f) for f in files], return_tensors="pt")["pixel_values"]
        ids = [2, 40, 41]
        for i in range(len(files)):
            ids += [self.around[0]] + [self.soft] * self.n_soft + [self.around[1], 42 + i]
        ids = torch.tensor([ids])
        return ids, dict(pixel_values=pixels, token_type_ids=(ids == self.soft).long())


class Gemma4:
    def __init__(self, config):
        unified = config.model_type == "gemma4_unified"
        v = config.vision_config
        kind = Gemma4UnifiedImageProcessor if unified else Gemma4ImageProcessor
        self.image = kind(patch_size=v.patch_size, pooling_kernel_size=v.pooling_kernel_size, max_soft_tokens=70)
        self.audio = None
        if unified:
            self.audio = tf.Gemma4UnifiedAudioFeatureExtractor(audio_samples_per_token=config.audio_config.audio_embed_dim)
        elif config.audio_config is not None:
            self.audio = tf.Gemma4AudioFeatureExtractor(feature_size=16)
        self.config = config

    def save(self, folder):
        whole = {"image_processor": json.loads(self.image.to_json_string()), "processor_class": "Gemma4Processor"}
        if self.audio is not None:
            whole["feature_extractor"] = json.loads(self.audio.to_json_string())
        json.dump(whole, open(folder / "processor_config.json", "w"), indent=1)

    def feed(self, files):
        c = self.config
        shown = [f for f in files if f.suffix == ".png"]
        played = [f for f in files if f.suffix == ".wav"]
        made = self.image([Image.open(f) for f in shown], return_tensors="pt")
        media = {k: made[k] for k in ("pixel_values", "image_position_ids")}
        counts = iter(int(n) for n in made["num_soft_tokens_per_image"])
        heard = iter(())
        if played and self.audio is not None:
            made = self.audio([samples(f) for f in played], return_tensors="pt")
            media |= {k: made[k] for k in ("input_features", "input_features_mask")}
            mask = made["input_features_mask"].bool()
            if c.model_type != "gemma4_unified":
                mask = mask[:, ::2][:, ::2]
            heard = iter(int(n) for n in mask.sum(1))
        ids = [2, 40, 41]
        for i, f in enumerate(files):
            if f.suffix == ".png":
                ids += [c.boi_token_id] + [c.image_token_id] * next(counts) + [c.eoi_token_id, 42 + i]
            elif self.audio is not None:
                end = getattr(c, "eoa_token_id", None) or c.eoa_token_index
                ids += [c.boa_token_id] + [c.audio_token_id] * next(heard) + [end, 42 + i]
        ids = torch.tensor([ids])
        types = torch.zeros_like(ids)
        types[ids == c.image_token_id] = 1
        types[ids == c.audio_token_id] = 3
        return ids, media | dict(mm_token_type_ids=types)


def stored_type(folder):
    return getattr(torch, json.load(open(folder / "config.json")).get("dtype") or "float32")


def main(out, families):
    out.mkdir(parents=True, exist_ok=True)
    pictures(out)
    sounds(out)
    for family in families:
        tiny = HERE / "tiny" / family
        model = tf.AutoModelForImageTextToText.from_pretrained(tiny, dtype=torch.float32).eval()
        model = oracle.at_dtype(model, stored_type(tiny))
        processor = (Gemma3 if family == "gemma3_mm" else Gemma4)(model.config)
        folder = out / family
        folder.mkdir(exist_ok=True)
        processor.save(folder)
        names = ["wide.png", "tall.png"]
        if getattr(processor, "audio", None) is not None:
            # The unified model has a soft token for every 40 samples here, and a context of 512.
            last = "long.wav" if family == "gemma4_mm_e" else "tiny.wav"
            names = ["wide.png", "short.wav", "tall.png", last]
        ids, media = processor.feed([out / n for n in names])
        if family == "gemma4_unified":
            types = {"mm_token_type_ids": media["mm_token_type_ids"]}
            media["attention_mask"] = unified_masks(model, ids, types)
        kept = {"ids": ids[0], "logits": model(input_ids=ids, **media, use_cache=False).logits[0]}
        save_file({k: v.contiguous() for k, v in kept.items()}, folder / "expected.safetensors")
        json.dump(names, open(folder / "files.json", "w"))
        print(family, len(ids[0]), "ids")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:] or ["gemma3_mm", "gemma4_mm_large", "gemma4_mm_e", "gemma4_unified"])
