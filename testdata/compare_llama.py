#!/usr/bin/env python3
"""Compare lapidary with llama.cpp on the real Gemma 3 270M (see fetch_270m.py).

    python compare_llama.py --lapidary BINARY --model GGUF [--text wikitext-2-test.txt] [--short] [--backend cpu]
    python compare_llama.py --reference-only --model GGUF [--text TEXT]      llama.cpp's own figures

Four checks: token ids, greedy continuations, logits, perplexity. Exit code 0 if all passed, 1 if one failed, 2 if
the comparison could not be made. Needs requirements-llama.txt: llama.cpp comes as the PyPI package xllamacpp, whose
extension module exports the C API, which is called here by ctypes.

llama.cpp rounds activations to int8 and keys and values to f16, so its logits are not exact: on this file they stray
from float32 arithmetic on the same weights (make_270m.py) by a KL of about 0.004. A near-tie between two tokens can
fall either way, so a greedy text may part from llama.cpp's only where llama.cpp itself was undecided.
"""
import argparse
import ctypes as c
import importlib.util
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

try:
    import numpy as np
except ImportError:
    sys.exit("numpy is missing: pip install -r testdata/requirements-llama.txt")

WINDOW = 512
FIRST_SCORED = WINDOW // 2
N_MUST_MATCH = 32
N_LOGIT_ROWS = 64
MAX_PPL_DEVIATION = 0.005
MAX_MEAN_KL = 0.02
MIN_TOP1_AGREEMENT = 0.9
# In logits. Measured between llama.cpp and float32 on this file, a margin moves by less than this.
NEAR_TIE = 1.0

PARAGRAPH = (
    "The river had risen in the night, and by morning the lower fields lay under a foot of brown water. Nobody in the "
    "village could remember such a spring. The miller, who was eighty-one, said that his grandfather had told him of "
    "one like it, when the bridge was carried off and three cows were found alive on the roof of the church; but the "
    "miller said many things. What was certain was that the road to the north was closed, that the post would not "
    "come before Thursday, and that the doctor, who lived on the other side, would have to be fetched by boat."
)
TEXTS = [
    "The capital of France is",
    "Don't you think it's a bit late? \"Perhaps,\" she said; \"we'll see.\"",
    'fn main() {\n    let v: Vec<u32> = (0..10).map(|x| x * x).collect();\n    println!("{v:?}");\n}\n',
    "def f(a, *, b=None):\n\treturn {**a, 'b': b}  # comment\n\n\nclass A: pass\n",
    "L'été dernier, nous étions à Besançon ; où êtes-vous allés ?",
    "3.14159 2,718,281 1e-9 0xDEADBEEF 2024-02-29 +44 20 7946 0958",
    "人工智能正在改变世界。今天的天气很好，我们去公园吧！",
    "日本語のテキストと한국어 텍스트, русский текст и العربية",
    "Emoji 👩‍👩‍👧‍👦 🇫🇷 🫠 and marks: e\u0301 ﬁ ½ ™ …",
    "  leading, trailing and    inner   spaces  \t\ttabs\r\n\r\n\n\n\n  lines  ",
    "<h1>Title</h1><ul><li>one</li></ul> <unk> <start_of_turn>user a<b && c>d",
    "x" * 40 + "=" * 40 + "-" * 7 + "Donaudampfschifffahrtsgesellschaft",
    PARAGRAPH,
]
PROMPTS = [
    "The capital of France is",
]
# Continued only in the full comparison, and judged only by where they part.
UNDECIDED_PROMPTS = []


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
        asked = [2 * WINDOW, WINDOW, 128]  # n_ctx, n_batch, n_ubatch
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

    def greedy(self, prompt: list[int], n: int) -> tuple[list[int], list[float]]:
        """The n best tokens, and by how much each beat the second-best."""
        self.forget()
        (row,) = self.decode(prompt, 0, len(prompt) - 1)
        out, margins = [], []
        while True:
            out.append(int(row.argmax()))
            second, best = np.partition(row, -2)[-2:]
            margins.append(float(best - second))
            if len(out) == n:
                return out, margins
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


class Lapidary:
    """Our command."""

    def __init__(self, binary: Path, model: Path, backend: str | None, folder: Path):
        self.binary, self.model, self.folder = binary, model, folder
        self.backend = ["--backend", backend] if backend else []

    def call(self, *arguments) -> str:
        command = [str(a) for a in (self.binary, *arguments)]
        done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8")
        if done.returncode:
            cannot(f"{' '.join(command)} ended with {done.returncode}: {done.stderr.strip()[-2000:]}")
        return done.stdout

    def tokens(self, text: str) -> list[int]:
        file = self.folder / "text.txt"
        file.write_bytes(text.encode())
        return json.loads(self.call("tokens", self.model, "--file", file))

    def logits(self, tokens: list[int], *arguments) -> dict[str, np.ndarray]:
        ids, out = self.folder / "tokens.json", self.folder / "logits.safetensors"
        ids.write_text(json.dumps(tokens))
        self.call("logits", self.model, "--tokens", ids, *arguments, "--out", out, *self.backend)
        return read_safetensors(out)

    def greedy(self, prompt: list[int], n: int) -> list[int]:
        return self.logits(prompt, "--greedy", n, "--rows", "last")["greedy"].ravel().tolist()

    def rows(self, tokens: list[int]) -> np.ndarray:
        logits = self.logits(tokens, "--rows", "all")["logits"]
        return logits.reshape(-1, logits.shape[-1])

    def perplexity(self, text: Path, n_tokens: int) -> dict:
        asked = ("--file", text, "--tokens", n_tokens, "--window", WINDOW, "--json")
        return json.loads(self.call("eval", "ppl", self.model, *asked, *self.backend))


class Report:
    """What was found, line by line."""

    def __init__(self):
        self.n_passed = self.n_failed = 0

    def judge(self, passed: bool, line: str):
        self.n_passed += passed
        self.n_failed += not passed
        print(f"  {'ok  ' if passed else 'FAIL'}  {line}", flush=True)


def compare_tokens(report: Report, llama: Llama, ours: Lapidary):
    print("token ids")
    for text in TEXTS:
        want, got = llama.tokens(text), ours.tokens(text)
        line = f"{len(want):4} ids  {shown(text)}"
        if got != want:
            i = first_difference(want, got)
            line += f"  differ from token {i}: llama.cpp {want[i : i + 6]}, ours {got[i : i + 6]}"
        report.judge(got == want, line)


def compare_greedy(report: Report, llama: Llama, ours: Lapidary, prompts: list[str], n: int, n_must_match: int):
    print(f"greedy, {n} tokens, {n_must_match} must match; margins are llama.cpp's best minus second-best logit")
    print("        matched  least margin  prompt")
    for prompt in prompts:
        ids = llama.tokens(prompt)
        want, margins = llama.greedy(ids, n)
        got = ours.greedy(ids, n)
        matched = first_difference(want, got)
        line = f"{matched:4}/{n}  {min(margins):12.3f}  {shown(prompt)}"
        passed = matched >= n_must_match
        if matched < n:
            mine = f"{got[matched]} {llama.piece(got[matched])!r}" if matched < len(got) else "nothing"
            line += f"  at token {matched} llama.cpp {want[matched]} {llama.piece(want[matched])!r}, ours {mine}"
            line += f", margin {margins[matched]:.3f}"
            passed = passed and margins[matched] < NEAR_TIE
        report.judge(passed, line)


def compare_logits(report: Report, llama: Llama, ours: Lapidary):
    ids = llama.tokens(PARAGRAPH)[:N_LOGIT_ROWS]
    print(f"logits of {len(ids)} rows")
    llama.forget()
    got = ours.rows(ids)
    kls, same, largest = [], 0, 0.0
    for want, mine in zip(llama.decode(ids, 0, 0), got):
        kls.append(kl_divergence(want, mine))
        same += int(want.argmax()) == int(mine.argmax())
        largest = max(largest, float(np.abs(want - mine).max()))
    mean = float(np.mean(kls))
    report.judge(
        len(kls) == len(ids) == len(got) and mean < MAX_MEAN_KL,
        f"KL(llama.cpp||ours) mean {mean:.5f}, largest row {max(kls):.5f}; mean must be below {MAX_MEAN_KL}",
    )
    report.judge(same >= MIN_TOP1_AGREEMENT * len(ids), f"the same best token in {same} of {len(ids)} rows")
    print(f"        largest difference of a logit {largest:.3f}")


def compare_perplexity(report: Report, llama: Llama, ours: Lapidary, text: Path, n_tokens: int):
    print(f"perplexity, first {n_tokens} tokens of {text.name}, windows of {WINDOW}")
    head, ids = head_of(llama, text, n_tokens)
    file = ours.folder / "head.txt"
    file.write_bytes(head.encode())
    report.judge(ours.tokens(head)[:n_tokens] == ids, "the text's token ids agree")
    nll, n_scored = llama.nll(ids)
    want = math.exp(nll / n_scored)
    mine = ours.perplexity(file, n_tokens)
    report.judge(mine["n_scored"] == n_scored, f"scored tokens: llama.cpp {n_scored}, ours {mine['n_scored']}")
    ratio = mine["ppl"] / want
    report.judge(
        abs(ratio - 1) <= MAX_PPL_DEVIATION,
        f"llama.cpp {want:.4f}, ours {mine['ppl']:.4f}, ratio {ratio:.5f}; must be within {MAX_PPL_DEVIATION:.1%}",
    )


def print_reference(llama: Llama, text: Path | None, n_greedy: int, n_tokens: int):
    """llama.cpp's own figures."""
    for prompt in PROMPTS + UNDECIDED_PROMPTS:
        out, margins = llama.greedy(llama.tokens(prompt), n_greedy)
        least = int(np.argmin(margins))
        print(f"{shown(prompt)}  least margin {margins[least]:.3f} at {least}")
        print("    " + repr("".join(map(llama.piece, out))), flush=True)
    if text:
        start = time.monotonic()
        _, ids = head_of(llama, text, n_tokens)
        nll, n_scored = llama.nll(ids)
        took_s = time.monotonic() - start
        print(f"ppl {math.exp(nll / n_scored):.4f} on {len(ids)} tokens ({n_scored} scored) in {took_s:.1f} s")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lapidary", type=Path, help="our binary")
    parser.add_argument("--model", type=Path, required=True, help="the GGUF")
    parser.add_argument("--text", type=Path, help="a UTF-8 text for perplexity; without it that check is skipped")
    parser.add_argument("--short", action="store_true", help="fewer tokens")
    parser.add_argument("--backend", help="given to our binary; its own choice without")
    parser.add_argument("--threads", type=int, default=min(os.cpu_count() or 1, 8), help="of llama.cpp")
    parser.add_argument("--reference-only", action="store_true", help="print llama.cpp's figures, compare nothing")
    args = parser.parse_args()
    for path in (args.model, args.text, args.lapidary):
        if path and not path.is_file():
            cannot(f"{path} is not a file")
    if not args.lapidary and not args.reference_only:
        parser.error("--lapidary or --reference-only is needed")

    start = time.monotonic()
    n_greedy, n_tokens = (N_MUST_MATCH, 1024) if args.short else (48, 8192)
    llama = Llama(args.model, args.threads)
    print(f"llama.cpp {llama.version()}, {args.model.name}", flush=True)
    if args.reference_only:
        print_reference(llama, args.text, n_greedy, n_tokens)
        return 0
    report = Report()
    with tempfile.TemporaryDirectory(prefix="compare_llama-") as folder:
        ours = Lapidary(args.lapidary, args.model, args.backend, Path(folder))
        compare_tokens(report, llama, ours)
        compare_greedy(report, llama, ours, PROMPTS, n_greedy, N_MUST_MATCH)
        if not args.short:
            compare_greedy(report, llama, ours, UNDECIDED_PROMPTS, n_greedy, 0)
        compare_logits(report, llama, ours)
        if args.text:
            compare_perplexity(report, llama, ours, args.text, n_tokens)
        else:
            print("SKIPPED perplexity: no --text given")
    print(f"{report.n_passed} passed, {report.n_failed} failed in {time.monotonic() - start:.0f} s")
    return int(report.n_failed > 0)


def head_of(llama: Llama, text: Path, n_tokens: int) -> tuple[str, list[int]]:
    """The beginning of the text that holds n_tokens tokens and some lines more, and those tokens.

    Both sides read this beginning and nothing else, so that no one waits for a megabyte to be tokenised.
    """
    whole = text.read_text(encoding="utf-8")
    end = whole.find("\n", 6 * n_tokens) + 1
    head = whole[: end or None]
    ids = llama.tokens(head)
    if len(ids) < n_tokens:
        cannot(f"{text} has only {len(ids)} tokens up to character {len(head)}; {n_tokens} are needed")
    return head, ids[:n_tokens]


def log_sum_exp(row: np.ndarray) -> float:
    top = row.max()
    return float(top) + math.log(np.exp(row - top).sum(dtype=np.float64))


def kl_divergence(want: np.ndarray, got: np.ndarray) -> float:
    """KL(want||got) of two rows of logits."""
    p = want.astype(np.float64) - log_sum_exp(want)
    q = got.astype(np.float64) - log_sum_exp(got)
    return float((np.exp(p) * (p - q)).sum())


def first_difference(a: list[int], b: list[int]) -> int:
    """The first index at which two lists differ; the shorter length if one begins the other."""
    return next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))


def shown(text: str) -> str:
    return repr(text if len(text) <= 48 else text[:45] + "...")


def read_safetensors(path: Path) -> dict[str, np.ndarray]:
    dtypes = {"F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "U32": "<u4"}
    data = path.read_bytes()
    begin = 8 + int.from_bytes(data[:8], "little")
    tensors = {}
    for name, t in json.loads(data[8:begin]).items():
        if name != "__metadata__":
            first, last = t["data_offsets"]
            tensors[name] = np.frombuffer(data[begin + first : begin + last], dtypes[t["dtype"]]).reshape(t["shape"])
    return tensors


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


if __name__ == "__main__":
    sys.exit(main())
