"""Trains pebble's vocabulary in Gemma 4's scheme and writes it to `folder/`.

BPE with byte fallback; spaces become U+2581; no prefix space; digits stand alone; newline runs are single tokens.
Words never share a token, so splitting text into words while training changes nothing at run time.
"""

import json
import re
from collections import Counter
from random import Random

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from chat import pieces
from corpus import ROOT, books, dialogues
from mixture import TEXT_TASKS
from scenes import picture

SIZE = 6144
SPECIAL = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "<|tool>", "<tool|>", "<|tool_call>", "<tool_call|>", "<|tool_response>",
           "<tool_response|>", '<|"|>', "<|think|>", "<|channel>", "<channel|>", "<|turn>", "<turn|>", "<|image>", "<|audio>", "<|image|>",
           "<|audio|>", "<image|>", "<audio|>", "<|video|>"]
UNUSED = [f"<unused{i}>" for i in range(8)]
RUNS = ["\n" * i for i in range(1, 9)] + ["\u2581" * i for i in range(2, 9)]
BYTES = [f"<0x{i:02X}>" for i in range(256)]
WORDS = Regex("\u2581?[\\p{L}']+|\\p{N}|\u2581|\\n|[^\\p{L}\\p{N}\u2581\\n]+")
OUT = ROOT / "folder"


def training_text() -> list[str]:
    """Books, dialogues, and enough generated text that its words get tokens of their own."""
    rng = Random(11)
    text = [p for b in books(False) for p in b.split("\n\n")]
    text += [t for d in dialogues() for t in d]
    for task in TEXT_TASKS:
        text += [t for _ in range(3000) for s in [task(rng)] for t, _ in pieces(s.messages, s.tools or None)]
    text += [t for _ in range(4000) for t, _ in pieces(picture(rng)[0].messages)]
    special = re.compile("|".join(re.escape(s) for s in SPECIAL))
    return [part for t in text for part in special.split(t) if part]


def learn(text: list[str], size: int) -> tuple[list[str], list[list[str]]]:
    """Characters and merges of a BPE of `size` pieces."""
    trainee = Tokenizer(models.BPE())
    trainee.normalizer = normalizers.Replace(" ", "\u2581")
    trainee.pre_tokenizer = pre_tokenizers.Split(WORDS, "isolated")
    common = [c for c, n in Counter("".join(text).replace(" ", "\u2581")).items() if n >= 200 and c != "\n"]
    alphabet = sorted(set(common) | set("0123456789\u2581") | {chr(c) for c in range(33, 127)})
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, limit_alphabet=len(alphabet), show_progress=False)
    trainee.train_from_iterator(text, trainer)
    merges = [m if isinstance(m, list) else m.split(" ") for m in json.loads(trainee.to_str())["model"]["merges"]]
    return alphabet, [m for m in merges if "\n" not in m[0] + m[1]]


def run_merges() -> list[list[str]]:
    """Long runs first, every way to split them, as in Gemma's table."""
    return [[c * (n - k), c * k] for n in range(8, 1, -1) for c in "\n\u2581" for k in range(n - 1, 0, -1)]


def build(alphabet: list[str], merges: list[list[str]]) -> Tokenizer:
    """The tokenizer with Gemma's normaliser, decoder and order of special tokens."""
    fixed = SPECIAL + UNUSED + RUNS + BYTES
    table = fixed + [c for c in alphabet if c not in fixed]
    merges = merges[: SIZE - len(table)]
    table += [a + b for a, b in merges]
    assert len(table) == len(set(table)), "a piece stands twice"
    assert not any(ch.isdigit() and len(t) > 1 for t in table[len(fixed):] for ch in t), "a merge joins a digit"
    vocab = {t: i for i, t in enumerate(table)}
    model = models.BPE(vocab=vocab, merges=[tuple(m) for m in run_merges() + merges], unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    tok = Tokenizer(model)
    tok.normalizer = normalizers.Replace(" ", "\u2581")
    tok.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tok.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
    tok.add_special_tokens(SPECIAL)
    return tok


def config() -> dict:
    """tokenizer_config.json as Gemma 4 spells it."""
    names = {"audio_token": "<|audio|>", "boa_token": "<|audio>", "boi_token": "<|image>", "bos_token": "<bos>", "eoa_token": "<audio|>",
             "eoc_token": "<channel|>", "eoi_token": "<image|>", "eos_token": "<eos>", "eot_token": "<turn|>", "escape_token": '<|"|>',
             "etc_token": "<tool_call|>", "etd_token": "<tool|>", "etr_token": "<tool_response|>", "image_token": "<|image|>",
             "mask_token": "<mask>", "pad_token": "<pad>", "soc_token": "<|channel>", "sot_token": "<|turn>", "stc_token": "<|tool_call>",
             "std_token": "<|tool>", "str_token": "<|tool_response>", "think_token": "<|think|>", "unk_token": "<unk>"}
    extra = {"backend": "tokenizers", "clean_up_tokenization_spaces": False, "model_max_length": 2048, "padding_side": "left",
             "processor_class": "Gemma4Processor", "tokenizer_class": "GemmaTokenizer", "extra_special_tokens": ["<|video|>"],
             "model_specific_special_tokens": {k: v for k, v in names.items() if k.split("_")[0] not in ("bos", "eos", "unk", "pad", "mask")}}
    return names | extra


def main() -> None:
    text = training_text()
    tok = build(*learn(text, 9000))
    OUT.mkdir(exist_ok=True)
    tok.save(str(OUT / "tokenizer.json"))
    (OUT / "tokenizer_config.json").write_text(json.dumps(config(), indent=2, sort_keys=True) + "\n")
    sample = text[:: max(1, len(text) // 2000)]
    n = sum(len(tok.encode(t, add_special_tokens=False).ids) for t in sample)
    print(f"{tok.get_vocab_size()} pieces, {sum(map(len, sample)) / n:.2f} characters per token, {(OUT / 'tokenizer.json').stat().st_size} bytes")


if __name__ == "__main__":
    main()
