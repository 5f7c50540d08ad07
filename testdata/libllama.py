"""llama.cpp by its C API, from the extension module of the PyPI package xllamacpp (requirements-llama.txt)."""
import ctypes as c
import importlib.util
import math
import os
import sys
from pathlib import Path

try:
    import numpy as np
except ImportError:
    print("numpy is missing: pip install -r testdata/requirements-llama.txt", file=sys.stderr)
    sys.exit(2)

# Tokens of one window of perplexity; those of its second half are scored.
WINDOW = 512
FIRST_SCORED = WINDOW // 2
# The most tokens that llama.cpp may see at once, prompt and answer together.
N_CTX = 1024


class Llama:
    """A GGUF in llama.cpp, by its C API."""

    class Params(c.Structure):
        # Parameters by value. Both structures are larger than two registers on every ABI, so a block that is too
        # large passes like the true one; only the first words of the context's are touched, and __init__ checks
        # that they arrived.
        _fields_ = [("words", c.c_uint32 * 256)]

    class Batch(c.Structure):
        _fields_ = [
            ("n_tokens", c.c_int32),
            ("token", c.POINTER(c.c_int32)),
            ("embd", c.POINTER(c.c_float)),
            ("pos", c.POINTER(c.c_int32)),
            ("n_seq_id", c.POINTER(c.c_int32)),
            ("seq_id", c.POINTER(c.POINTER(c.c_int32))),
            ("logits", c.POINTER(c.c_int8)),
        ]

    def __init__(self, path: Path, n_threads: int):
        self.lib = load_library()
        self.declare()
        self.lib.llama_log_set(SILENCE, None)
        self.lib.llama_backend_init()
        self.model = self.lib.llama_model_load_from_file(os.fsencode(path), self.lib.llama_model_default_params())
        if not self.model:
            cannot(f"llama.cpp does not load {path}")
        self.vocab = self.lib.llama_model_get_vocab(self.model)
        self.n_vocab = self.lib.llama_vocab_n_tokens(self.vocab)
        params = self.lib.llama_context_default_params()
        asked = [N_CTX, N_CTX, 128]  # n_ctx, n_batch, n_ubatch
        params.words[:3] = asked
        self.ctx = self.lib.llama_init_from_model(self.model, params)
        if not self.ctx:
            cannot("llama.cpp makes no context")
        lib = self.lib
        got = [lib.llama_n_ctx(self.ctx), lib.llama_n_batch(self.ctx), lib.llama_n_ubatch(self.ctx)]
        if got != asked:
            cannot(f"llama.cpp's parameters lie otherwise than this script believes: asked {asked}, got {got}")
        lib.llama_set_n_threads(self.ctx, n_threads, n_threads)

    def declare(self):
        pointer, integer, params = c.c_void_p, c.c_int32, self.Params
        ids = c.POINTER(c.c_int32)
        signatures = {
            "llama_log_set": (None, [LOG_CALLBACK, pointer]),
            "llama_backend_init": (None, []),
            "llama_version": (c.c_char_p, []),
            "llama_model_default_params": (params, []),
            "llama_context_default_params": (params, []),
            "llama_model_load_from_file": (pointer, [c.c_char_p, params]),
            "llama_init_from_model": (pointer, [pointer, params]),
            "llama_model_get_vocab": (pointer, [pointer]),
            "llama_vocab_n_tokens": (integer, [pointer]),
            "llama_vocab_bos": (integer, [pointer]),
            "llama_n_ctx": (c.c_uint32, [pointer]),
            "llama_n_batch": (c.c_uint32, [pointer]),
            "llama_n_ubatch": (c.c_uint32, [pointer]),
            "llama_set_n_threads": (None, [pointer, integer, integer]),
            "llama_get_memory": (pointer, [pointer]),
            "llama_memory_clear": (None, [pointer, c.c_bool]),
            "llama_tokenize": (integer, [pointer, c.c_char_p, integer, ids, integer, c.c_bool, c.c_bool]),
            "llama_token_to_piece": (integer, [pointer, integer, c.c_char_p, integer, integer, c.c_bool]),
            "llama_decode": (integer, [pointer, self.Batch]),
            "llama_get_logits_ith": (c.POINTER(c.c_float), [pointer, integer]),
        }
        for name, (result, arguments) in signatures.items():
            try:
                function = getattr(self.lib, name)
            except AttributeError:
                cannot(f"this xllamacpp does not export {name}; install testdata/requirements-llama.txt")
            function.restype, function.argtypes = result, arguments

    def version(self) -> str:
        return self.lib.llama_version().decode()

    def tokens(self, text: str) -> list[int]:
        """Ids with BOS; special tokens that are spelt in the text stay text."""
        utf8 = text.encode()
        ids = (c.c_int32 * (len(utf8) + 2))()
        n = self.lib.llama_tokenize(self.vocab, utf8, len(utf8), ids, len(ids), True, False)
        if n < 0:
            cannot(f"llama.cpp does not tokenise {text[:40]!r}")
        return ids[:n]

    def piece(self, token: int) -> str:
        buffer = c.create_string_buffer(256)
        n = self.lib.llama_token_to_piece(self.vocab, token, buffer, len(buffer), 0, True)
        return buffer.raw[: max(n, 0)].decode(errors="replace")

    def forget(self):
        self.lib.llama_memory_clear(self.lib.llama_get_memory(self.ctx), True)

    def decode(self, tokens: list[int], start: int, first_row: int):
        """Run tokens at positions start… and yield the logits after each one from index first_row on.

        A row is llama.cpp's own memory: it is valid until the next decode.
        """
        n = len(tokens)
        assert start + n <= N_CTX, "llama.cpp ends the process on a longer batch"
        zero = (c.c_int32 * 1)(0)
        batch = self.Batch(
            n,
            (c.c_int32 * n)(*tokens),
            None,
            (c.c_int32 * n)(*range(start, start + n)),
            (c.c_int32 * n)(*([1] * n)),
            (c.POINTER(c.c_int32) * n)(*([c.cast(zero, c.POINTER(c.c_int32))] * n)),
            (c.c_int8 * n)(*[int(i >= first_row) for i in range(n)]),
        )
        failed = self.lib.llama_decode(self.ctx, batch)
        if failed:
            cannot(f"llama_decode answered {failed}")
        for i in range(first_row, n):
            yield np.ctypeslib.as_array(self.lib.llama_get_logits_ith(self.ctx, i), (self.n_vocab,))

    def greedy(self, prompt: list[int], n: int) -> tuple[list[int], list[np.ndarray]]:
        """The n best tokens, and the logits that each was chosen from."""
        self.forget()
        out, rows = [], []
        (row,) = self.decode(prompt, 0, len(prompt) - 1)
        while True:
            rows.append(row.copy())
            out.append(int(row.argmax()))
            if len(out) == n:
                return out, rows
            (row,) = self.decode(out[-1:], len(prompt) + len(out) - 1, 0)

    def nll(self, tokens: list[int]) -> tuple[float, int]:
        """Negative log-likelihood summed over the scored tokens, and their number, as llama-perplexity does it.

        Whole windows only; each begins with BOS in place of its first token; the rows of the second half but the last
        are scored, each against the token behind it.
        ref: github.com/ggml-org/llama.cpp/blob/050fc7f32de16858ac667d775b43a51ed8976e6f/tools/perplexity/perplexity.cpp
        """
        bos = self.lib.llama_vocab_bos(self.vocab)
        total, n_scored = 0.0, 0
        for start in range(0, len(tokens) - WINDOW + 1, WINDOW):
            window = tokens[start : start + WINDOW]
            self.forget()
            rows = self.decode([bos] + window[1:], 0, FIRST_SCORED)
            for row, target in zip(rows, window[FIRST_SCORED + 1 :]):
                total -= float(row[target]) - log_sum_exp(row)
                n_scored += 1
        return total, n_scored


def log_sum_exp(row: np.ndarray) -> float:
    top = row.max()
    return float(top) + math.log(np.exp(row - top).sum(dtype=np.float64))


def load_library() -> c.CDLL:
    spec = importlib.util.find_spec("xllamacpp")
    folders = list(spec.submodule_search_locations or []) if spec else []
    found = [p for folder in folders for end in ("so", "pyd") for p in Path(folder).glob(f"xllamacpp*.{end}")]
    if not found:
        cannot("xllamacpp is missing: pip install -r testdata/requirements-llama.txt")
    # Threads that spin at every barrier are 7 times slower as soon as another process wants the cores.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    try:
        return c.CDLL(str(found[0]))
    except OSError as e:
        cannot(f"{found[0]} does not load: {e}")


def cannot(why: str):
    """The comparison can't be made: this is neither a pass nor a difference."""
    print(f"compare_llama: {why}", file=sys.stderr)
    sys.exit(2)


LOG_CALLBACK = c.CFUNCTYPE(None, c.c_int, c.c_char_p, c.c_void_p)
SILENCE = LOG_CALLBACK(lambda level, text, user: None)
