"""A made-up tokenizer for the tiny GGUF models: special tokens, all bytes, and a few English pieces.

Gemma 3 style: SentencePiece (`llama`), pieces with scores. Gemma 4 style: BPE with merges (`gemma4`).
The sample encodings come from sentencepiece and from tokenizers, not from code of ours.
"""
import json

import sentencepiece
from sentencepiece import sentencepiece_model_pb2 as spm
from tokenizers import Tokenizer, models, normalizers

NORMAL, CONTROL, USER_DEFINED, BYTE = 1, 3, 4, 6  # the numbers are the same in GGUF and in SentencePiece
UNKNOWN = 2  # SentencePiece wants <unk> marked so; GGUF files of Gemma mark it as control
SPACE = "\u2581"

CONTROLS = {
    "gemma3": ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "<start_of_turn>", "<end_of_turn>"],
    "gemma4": ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "<|turn>", "<turn|>"],
}
QUOTE = '<|"|>'  # Gemma 4: a special token that llama.cpp marks user-defined, so that it stays visible
# One part: a character. Two parts: a merge of two earlier pieces, in order of rank. A short vocabulary takes a prefix.
PIECES = """
_ t h e | t h | th e | _ the | a n | a n | d | an d | _ and | o | i | n g | s | i s | _ is | r | w | l
o r | w or | l d | wor ld | _ world | i n | in g | _ t | u | é | o u | _ w | c | k | é t | _ c | m | f | g
o u | y | _ y | you | b | p | 日 | 本 | 日 本 | . | , | ! | e d | l y | h e | _ he
"""
TEXTS = [
    "", " ", "  ", "   ", "the", " the", "the and", "the  and", " the world is the world", "hand", "then", "\n", "\n\n",
    "\n\n\n", "the\nand", "the \n and", "été", "日本", "日本語", "🙂", "tab\there", "nul\0", "<0x41>", "\u2581the",
    "and and and", "thethethe", "THE", "e\u0301", "a" * 20,
]  # fmt: skip


class TinyTokenizer:
    def __init__(self, family, vocab_size):
        self.family = family
        control, runs = CONTROLS[family], ["\n", "\n\n", SPACE * 2]
        self.tokens = [*control, *runs, *(f"<0x{b:02X}>" for b in range(256))]
        # Runs of newlines and spaces: user-defined pieces in Gemma 3, ordinary merges in Gemma 4.
        run_type = USER_DEFINED if family == "gemma3" else NORMAL
        self.types = [CONTROL] * len(control) + [run_type] * len(runs) + [BYTE] * 256
        self.scores = [-1000.0] * (len(control) + len(runs)) + [0.0] * 256
        self.merges = []
        if family == "gemma4":
            self.merges = [("\n", "\n"), (SPACE, SPACE)]
            self.tokens.append(QUOTE)
            self.types.append(USER_DEFINED)
            self.scores.append(-1000.0)
        self.add_pieces(vocab_size)
        if family == "gemma4":
            self.scores = [-1000.0] * vocab_size  # BPE has no scores; the converter fills them in like this

    def add_pieces(self, vocab_size):
        for piece in self.piece_list():
            text = "".join(piece)
            if len(self.tokens) == vocab_size:
                return
            if text in self.tokens or any(part not in self.tokens for part in piece if len(piece) > 1):
                continue
            self.tokens.append(text)
            self.types.append(NORMAL)
            if len(piece) > 1:
                self.scores.append(-float(len(self.merges)))
                self.merges.append(piece)
            else:
                self.scores.append(-1000.0 - len(self.tokens))
        for i in range(vocab_size - len(self.tokens)):
            self.tokens.append(f"<unused{i}>")
            self.types.append(CONTROL)
            self.scores.append(-1000.0)

    @staticmethod
    def piece_list():
        for line in PIECES.replace("_", SPACE).split("\n"):
            for group in line.split("|"):
                parts = group.split()
                if len(parts) == 2:
                    yield tuple(parts)
                else:
                    yield from ((part,) for part in parts)

    def add_to(self, writer):
        gemma3 = self.family == "gemma3"
        writer.add_tokenizer_model("llama" if gemma3 else "gemma4")
        if gemma3:
            writer.add_tokenizer_pre("default")
        # llama.cpp's converter writes user-defined pieces of a SentencePiece model with plain spaces.
        spaced = [t.replace(SPACE, " ") if gemma3 and y == USER_DEFINED else t for t, y in zip(self.tokens, self.types)]
        writer.add_token_list([t.encode() for t in spaced])
        writer.add_token_scores(self.scores)
        writer.add_token_types(self.types)
        if not gemma3:
            writer.add_token_merges([f"{a} {b}" for a, b in self.merges])
        writer.add_bos_token_id(2)
        writer.add_eos_token_id(1)
        writer.add_unk_token_id(3)
        writer.add_pad_token_id(0)
        writer.add_mask_token_id(4)
        writer.add_add_bos_token(True)
        if gemma3:
            writer.add_add_eos_token(False)
        writer.add_add_space_prefix(False)
        writer.add_chat_template("{{ bos_token }}{% for m in messages %}{{ m['content'] }}{% endfor %}")

    def samples_json(self):
        """Texts with their ids: no special tokens are parsed in the text, and BOS is not added."""
        encode = self.sentencepiece() if self.family == "gemma3" else self.bpe()
        samples = [{"text": text, "ids": encode(text)} for text in TEXTS]
        return "[\n" + ",\n".join(json.dumps(s, ensure_ascii=True) for s in samples) + "\n]\n"

    def sentencepiece(self):
        model = spm.ModelProto()
        for text, kind, score in zip(self.tokens, self.types, self.scores):
            model.pieces.add(piece=text, score=score, type=UNKNOWN if text == "<unk>" else kind)
        trainer = model.trainer_spec
        trainer.model_type, trainer.vocab_size, trainer.byte_fallback = 2, len(self.tokens), True
        trainer.pad_id, trainer.eos_id, trainer.bos_id, trainer.unk_id = 0, 1, 2, 3
        normaliser = model.normalizer_spec
        normaliser.name, normaliser.add_dummy_prefix, normaliser.remove_extra_whitespaces = "identity", False, False
        processor = sentencepiece.SentencePieceProcessor(model_proto=model.SerializeToString())
        return lambda text: processor.encode(text)

    def bpe(self):
        vocab = {text: i for i, text in enumerate(self.tokens)}
        tokenizer = Tokenizer(
            models.BPE(vocab=vocab, merges=self.merges, byte_fallback=True, fuse_unk=True, unk_token="<unk>")
        )
        tokenizer.normalizer = normalizers.Replace(" ", SPACE)
        return lambda text: tokenizer.encode(text, add_special_tokens=False).ids
