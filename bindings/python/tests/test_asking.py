"""What is shown, called, held to a schema, counted, and refused."""

import base64
import enum
import json
import os
import subprocess
from typing import Annotated, Literal, Optional

import pytest
from asked import LONG, SHORT, STORY, WEATHER, get_weather

import lapidary
from lapidary import _errors, _native, _tools
from lapidary.ray._prefixes import Prefixes, chain, text_of

numpy = pytest.importorskip("numpy")
Image = pytest.importorskip("PIL.Image")
pydantic = pytest.importorskip("pydantic")

def test_an_image_looks_the_same_however_it_is_given(model, drawing):
    question = "Describe this image."
    want = model.chat(question, images=[drawing], **SHORT).text
    assert "yellow" in want and "star" in want
    pil = Image.open(drawing)
    levels = numpy.asarray(pil.convert("RGB"))
    data = drawing.read_bytes()
    uri = "data:image/png;base64," + base64.b64encode(data).decode()
    for image in (drawing, lapidary.image(str(drawing)), data, pil, levels, levels / 255, levels.transpose(2, 0, 1)):
        assert model.chat([image, question], **SHORT).text == want, type(image)
    for part in (
        {"type": "image_url", "image_url": {"url": uri}},
        {"type": "image", "image": pil},
        {"type": "image", "path": str(drawing)},
    ):
        said = [{"role": "user", "content": [part, {"type": "text", "text": question}]}]
        assert model.chat(said, **SHORT).text == want
    chat = model.conversation(**SHORT)
    assert chat.say(question, images=[data]).text == want
    assert chat.messages[0]["content"][0] == {"type": "image", "image": data}
    for wrong in (b"no image", "https://example.org/x.png", numpy.zeros(3), object()):
        with pytest.raises((ValueError, lapidary.LapidaryError)):
            model.chat(question, images=[wrong])


def test_audio_is_refused_by_a_model_without_ears(model):
    samples = numpy.zeros(1600, numpy.float32)
    for audio in ((samples, 16_000), {"array": samples, "sampling_rate": 16_000}):
        with pytest.raises(lapidary.LapidaryError, match="takes text"):
            model.chat("What is this?", audio=[audio])
    with pytest.raises(ValueError, match="rate"):
        model.chat("What is this?", audio=[samples])


def test_tools_are_called_and_answered(model):
    question = "What is the weather in Auckland?"
    reply = model.chat(question, tools=[WEATHER], **LONG)
    assert reply.finish_reason == "tool_calls"
    call = reply.tool_calls[0]
    assert (call.name, call.arguments) == ("get_weather", {"city": "Auckland"})
    result = {"role": "tool", "tool_call_id": call.id, "content": get_weather(**call.arguments)}
    said = [{"role": "user", "content": question}, *reply.messages, result]
    by_hand = model.chat(said, tools=[WEATHER], **LONG)
    assert by_hand.text and not by_hand.tool_calls
    by_itself = model.chat(question, tools=[get_weather], **LONG)
    assert by_itself.text == by_hand.text
    roles = [message["role"] for message in by_itself.messages]
    assert roles == ["assistant", "tool", "assistant"]
    streamed = list(model.stream(question, tools=[get_weather], **LONG))
    assert "".join(chunk.text for chunk in streamed).endswith(by_itself.text)
    assert [c.tool_call.name for c in streamed if c.tool_call] == ["get_weather"]
    assert model.chat(question, tools=[get_weather], max_rounds=0, **LONG).tool_calls
    chat = model.conversation(tools=[get_weather], **LONG)
    assert chat.say(question).text == by_itself.text
    assert [m["role"] for m in chat.messages] == ["user", "assistant", "tool", "assistant"]


def test_an_exception_of_a_tool_is_raised(model):
    def get_weather(city: str) -> str:
        """Get the current weather in a city."""
        raise KeyError(city)

    with pytest.raises(KeyError, match="Auckland"):
        model.chat("What is the weather in Auckland?", tools=[get_weather], **LONG)
    assert model.chat("Hello.", max_tokens=2, ignore_eos=True).finish_reason == "length"


def test_functions_become_declarations():
    assert _tools.declaration(get_weather) == WEATHER

    class Unit(enum.Enum):
        C = "celsius"

    def f(
        n: Annotated[int, "How many."],
        unit: Unit,
        kind: Literal["a", "b"] = "a",
        words: Optional[list[str]] = None,
    ) -> None:
        """Does it."""

    function = _tools.declaration(f)["function"]
    assert function["parameters"]["required"] == ["n", "unit"]
    assert function["parameters"]["properties"] == {
        "n": {"type": "integer", "description": "How many."},
        "unit": {"enum": ["celsius"]},
        "kind": {"enum": ["a", "b"]},
        "words": {"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}]},
    }
    with pytest.raises(ValueError):
        _tools.declaration(3)


def test_answers_are_held_to_schemas(model):
    class Fox(pydantic.BaseModel):
        name: Literal["Rusty", "Flame"]
        age: Annotated[int, pydantic.Field(ge=1, le=9)]

    fox = model.chat(STORY, schema=Fox, temperature=0.0, max_tokens=100).parsed
    assert isinstance(fox, Fox) and fox.name in ("Rusty", "Flame") and 1 <= fox.age <= 9
    schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"]}
    schema["additionalProperties"] = False
    assert model.chat(STORY, schema=schema, **LONG).parsed["n"] in (1, 2)
    cut = model.chat(STORY, schema=Fox, temperature=0.0, max_tokens=2)
    with pytest.raises(ValueError):
        cut.parsed
    listed = pydantic.TypeAdapter(list[Literal["fox", "bear"]])
    assert model.chat(STORY, schema=listed, **SHORT).text.startswith("[")
    held = model.chat(STORY, regex="[0-9]{3}-(fox|bear)", **SHORT).text
    assert held[:3].isdigit() and held[4:] in ("fox", "bear")
    lark = model.chat(STORY, grammar='start: "the " ("fox" | "owl")', **SHORT).text
    assert lark in ("the fox", "the owl")
    with pytest.raises(ValueError, match="one of"):
        model.chat(STORY, schema=schema, regex="a")


def test_logits_are_what_answers_are_drawn_from(model):
    ids = model.tokenize("Once upon a time")
    rows = model.logits(ids)
    assert rows.shape == (len(ids), model.info.vocab_size) and rows.dtype == numpy.float32
    assert numpy.allclose(model.logits("Once upon a time", last=True), rows[-1:], atol=1e-4)
    reply = model.generate(ids, temperature=0.0, max_tokens=4, logprobs=3)
    row = rows[-1].astype(numpy.float64)
    row -= row.max()
    logprobs = row - numpy.log(numpy.exp(row).sum())
    assert reply.tokens[0] == int(rows[-1].argmax())
    for token, logprob in reply.logprobs[0].top:
        assert abs(logprobs[token] - logprob) < 1e-3


def test_logits_are_those_of_the_command(tmp_path):
    command = os.environ.get("LAPIDARY_COMMAND")
    if command is None:
        pytest.skip("LAPIDARY_COMMAND names no command")
    out = tmp_path / "logits.safetensors"
    with lapidary.Model("pebble", backend="cpu", context=16, precision="exact") as model:
        ids = model.tokenize("Once upon a time")
        rows = model.logits(ids)
    tokens = ",".join(map(str, ids))
    arguments = ["logits", "pebble", "--backend", "cpu", "--tokens", tokens, "--out", out]
    subprocess.run([command, *arguments], check=True, timeout=300)
    data = out.read_bytes()
    n = int.from_bytes(data[:8], "little")
    begin, end = json.loads(data[8 : 8 + n])["logits"]["data_offsets"]
    want = numpy.frombuffer(data[8 + n + begin : 8 + n + end], numpy.float32)
    assert numpy.array_equal(want.reshape(rows.shape), rows)


def test_embeddings_and_tokens(model):
    rows = model.embed(["a fox", "a bear", "a fox"])
    assert rows[0] == rows[2] != rows[1] and model.embed("a fox") == rows[0]
    ids = model.tokenize("a brave fox")
    assert model.detokenize(ids) == "a brave fox"
    assert model.tokenize("a brave fox", begin=False) == ids[-len(ids) + 1 :]
    assert model.count_tokens(STORY) == model.chat(STORY, **SHORT).stats.prompt_tokens
    assert len(model.apply_chat_template(STORY)) == model.count_tokens(STORY)


def test_plans_and_facts(model):
    plan = model.plan()
    assert plan.fits and (plan.backend, plan.context, plan.sequences) == ("cpu", 512, 4)
    assert "pebble on cpu:0" in str(plan) and plan.total_bytes > 1_000_000
    assert model.plan(backend="cpu", context=1024).kv_bytes > plan.kv_bytes
    assert lapidary.plan("pebble", backend="cpu").model == "pebble"
    assert model.info.modalities == ["image", "video"] and model.info.can_call_tools
    told = []
    progress = lambda done, all: told.append((done, all))  # noqa: E731
    with lapidary.Model("pebble", backend="cpu", pack_cache="off", progress=progress):
        assert all(done <= of for done, of in told)
    assert "gemma4:e2b" in [known.name for known in lapidary.models()]
    assert any(backend.name == "cpu" and backend.devices for backend in lapidary.backends())


def test_errors_are_what_python_calls_them(model, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    for wrong in ("./no/such/model.gguf", "gemma4:e2b"):
        with pytest.raises(FileNotFoundError) as e:
            lapidary.Model(wrong)
        assert e.value.code == "not_found"
    assert lapidary.ls() == [] and not lapidary.is_downloaded("gemma4:e2b")
    for options in (
        {"temperature": -1.0},
        {"temperature": float("nan")},
        {"top_k": "many"},
        {"tool_choice": "required"},
        {"regex": "("},
        {"deadline": -1},
    ):
        with pytest.raises(ValueError) as wrong_value:
            model.chat(STORY, **options)
        assert wrong_value.value.code == "invalid_argument", options
    with pytest.raises(TypeError, match="temprature"):
        model.chat(STORY, temprature=1)
    with pytest.raises(ValueError):
        model.chat([])
    with pytest.raises(lapidary.ContextLengthError) as too_long:
        model.chat("fox " * 5000)
    assert too_long.value.code == "context_length_exceeded"
    with pytest.raises(lapidary.LapidaryError):
        lapidary.Model("pebble", backend="abacus")
    with pytest.raises(MemoryError) as memory:
        raise _errors.make("out_of_memory", "too much")
    assert memory.value.code == "out_of_memory"
    codes = {row["code"] for row in json.loads(_native.error_table())}
    assert codes - set(_errors._CLASSES) == {"internal_error", "non_finite_logits"}


def test_prompts_that_begin_alike_are_found():
    ask = lambda system, user: {  # noqa: E731
        "messages": [{"role": "system", "content": system}, {"role": "user", "content": user}]
    }
    system = "You are a fox. " * 100
    one, two, other = (chain(text_of(ask(s, u))) for s, u in ((system, "a"), (system, "b"), ("x", "a")))
    prefixes = Prefixes(most=50)
    assert prefixes.best(one, ["r1", "r2"]) == (None, 0)
    prefixes.note(one, "r1")
    holder, blocks = prefixes.best(two, ["r1", "r2"])
    assert holder == "r1" and blocks == len(one) - 1
    assert prefixes.best(two, ["r2"]) == (None, 0) == prefixes.best(other, ["r1"])
    prefixes.note(two, "r2")
    assert prefixes.best(two, ["r1", "r2"])[0] == "r2" and prefixes.best(one, ["r1", "r2"])[0] == "r1"
    prefixes.forget("r2")
    assert prefixes.best(two, ["r1", "r2"])[0] == "r1"
    for n in range(100):
        prefixes.note(chain(f"{n}"), "r1")
    assert prefixes.best(one, ["r1"]) == (None, 0)
