"""ollama-python: chat, generate, tools, formats, images, embeddings, models, errors."""

import json

import jsonschema
import ollama
import pytest
from conftest import (ENDLESS, KEY, KEYED, LIMIT, MODEL, ORDER, PEBBLE, RESULT, STORY, TOLD,
                      WEATHER, left, openai_tools, user)

GREEDY = {"temperature": 0, "num_predict": 40}


@pytest.fixture(scope="module")
def client():
    return ollama.Client(host=PEBBLE, timeout=LIMIT)


def test_text(client):
    answer = client.chat(model=MODEL, messages=user("What is 12 + 30?"), options=GREEDY)
    assert "42" in answer.message.content
    assert answer.done and answer.done_reason == "stop"
    assert answer.prompt_eval_count > 0 and answer.eval_count > 0


def test_stream_adds_up(client):
    ask = {"model": MODEL, "messages": user(STORY), "options": GREEDY}
    whole = client.chat(**ask)
    parts = list(client.chat(**ask, stream=True))
    assert "".join(p.message.content or "" for p in parts) == whole.message.content
    assert [p.done for p in parts] == [False] * (len(parts) - 1) + [True]
    last = parts[-1]
    assert (last.done_reason, last.eval_count) == ("length", 40)
    assert last.prompt_eval_count == whole.prompt_eval_count


def test_what_is_left_is_stopped(client):
    with left():
        parts = client.chat(model=MODEL, messages=user(STORY), format=ENDLESS, stream=True)
        next(parts)
        parts.close()


def test_generate(client):
    ask = {"model": MODEL, "prompt": "What is 12 + 30?", "options": GREEDY}
    assert "42" in client.generate(**ask).response
    assert "42" in "".join(p.response for p in client.generate(**ask, stream=True))
    raw = client.generate(model=MODEL, prompt="Once upon a time", raw=True, options=GREEDY)
    assert raw.eval_count == 40


@pytest.mark.parametrize("streamed", [False, True])
def test_tools_round_trip(client, streamed):
    ask = {"model": MODEL, "tools": openai_tools(), "options": GREEDY}
    messages = user(WEATHER)
    if streamed:
        parts = client.chat(messages=messages, stream=True, **ask)
        [message] = [p.message for p in parts if p.message.tool_calls]
    else:
        message = client.chat(messages=messages, **ask).message
    [call] = message.tool_calls
    assert call.function.name == "get_weather"
    assert call.function.arguments == {"city": "Auckland"}
    messages += [message, {"role": "tool", "tool_name": "get_weather", "content": RESULT}]
    assert client.chat(messages=messages, **ask).message.content == TOLD


def test_tools_from_a_function(client):
    def get_weather(city: str) -> str:
        """Get the current weather in a city.

        Args:
            city: The name of the city.
        """
        return RESULT

    message = client.chat(
        model=MODEL, messages=user(WEATHER), tools=[get_weather], options=GREEDY).message
    [call] = message.tool_calls
    assert get_weather(**call.function.arguments) == RESULT


@pytest.mark.parametrize("seed", range(4))
def test_json_schema(client, seed):
    options = {"temperature": 1, "seed": seed}
    answer = client.chat(model=MODEL, messages=user(STORY), format=ORDER, options=options)
    jsonschema.validate(json.loads(answer.message.content), ORDER)
    answer = client.generate(model=MODEL, prompt=STORY, format=ORDER, options=options)
    jsonschema.validate(json.loads(answer.response), ORDER)


def test_image(client, star):
    message = {"role": "user", "content": "Describe this image.", "images": [star]}
    said = client.chat(model=MODEL, messages=[message], options=GREEDY).message.content
    assert "yellow" in said and "star" in said
    said = client.generate(
        model=MODEL, prompt="Describe this image.", images=[star], options=GREEDY).response
    assert "star" in said


def test_embeddings(client):
    one, two = client.embed(model=MODEL, input=["a red fox", "seven"]).embeddings
    assert len(one) == len(two) > 100
    assert abs(sum(x * x for x in one) - 1) < 1e-3
    older = client.embeddings(model=MODEL, prompt="a red fox").embedding
    # The older route gives them as they are; their direction is the same.
    length = sum(x * x for x in older) ** 0.5
    assert abs(sum(a * b for a, b in zip(older, one)) / length - 1) < 1e-3


def test_models(client):
    names = [m.model for m in client.list().models]
    assert [name.removesuffix(":latest") for name in names] == [MODEL]
    shown = client.show(MODEL)
    assert {"completion", "tools", "vision"} <= set(shown.capabilities)
    assert shown.modelinfo and shown.details.family
    client.chat(model=names[0], messages=user("Hi"), options={"num_predict": 3})
    assert [m.model for m in client.ps().models] == names


def test_errors_have_their_types(client):
    with pytest.raises(ollama.ResponseError) as error:
        client.chat(model="nobody", messages=user("Hi"))
    assert error.value.status_code == 404
    for more in ({"format": "yaml"}, {"options": {"temperature": -1}}, {"think": "hard"}):
        with pytest.raises((ollama.ResponseError, ValueError)) as error:
            client._request_raw(
                "POST", "/api/chat", json={"model": MODEL, "messages": user("Hi"), **more})
        assert error.value.status_code == 400
    with pytest.raises(ollama.ResponseError) as error:
        for _ in client.chat(model=MODEL, messages=user("word " * 3000), stream=True):
            pass
    assert error.value.status_code == 400


def test_keys():
    with pytest.raises(ollama.ResponseError) as error:
        ollama.Client(host=KEYED, timeout=LIMIT).chat(model=MODEL, messages=user("Hi"))
    assert error.value.status_code == 401
    known = ollama.Client(host=KEYED, timeout=LIMIT,
                          headers={"authorization": f"Bearer {KEY}"})
    assert known.chat(model=MODEL, messages=user("Hi"), options=GREEDY).message.content
