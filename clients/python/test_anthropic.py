"""anthropic-python: messages, streams, tools, images, counts, models, errors."""

import json

import anthropic
import jsonschema
import pydantic
import pytest
from conftest import (ENDLESS, KEY, KEYED, LIMIT, MODEL, ORDER, PEBBLE, RESULT, STORY, TOLD,
                      WEATHER, anthropic_tools, left, order_tool, user)


def connect(url=PEBBLE, key="none"):
    return anthropic.Anthropic(base_url=url, api_key=key, max_retries=0, timeout=LIMIT)


@pytest.fixture(scope="module")
def client():
    return connect()


class Animal(pydantic.BaseModel):
    name: str
    legs: int
    tame: bool


def ask(more, **extra):
    """Arguments of a request. What this client has no argument for goes into its extra body."""
    return {"model": MODEL, "max_tokens": 200, "messages": user(STORY),
            "extra_body": {"temperature": 0, **extra}, **more}


def test_text(client):
    message = client.messages.create(**ask({"messages": user("What is 12 + 30?")}))
    assert "42" in message.content[0].text
    assert (message.stop_reason, message.role, message.model) == ("end_turn", "assistant", MODEL)
    assert message.usage.input_tokens + message.usage.cache_read_input_tokens > 0


def test_stream_adds_up(client):
    whole = client.messages.create(**ask({"max_tokens": 40}))
    with client.messages.stream(**ask({"max_tokens": 40})) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == whole.content[0].text == final.content[0].text
    assert final.stop_reason == whole.stop_reason == "max_tokens"
    assert final.usage.output_tokens == whole.usage.output_tokens == 40
    events = list(client.messages.create(**ask({"max_tokens": 5}), stream=True))
    assert (events[0].type, events[-1].type) == ("message_start", "message_stop")
    assert events[0].message.usage.input_tokens + events[0].message.usage.cache_read_input_tokens


def test_what_is_left_is_stopped(client):
    form = {"format": {"type": "json_schema", "schema": ENDLESS}}
    with left():
        with client.messages.stream(**ask({"output_config": form, "max_tokens": 1900})) as stream:
            next(iter(stream.text_stream))


def test_system_and_stop_sequence(client):
    message = client.messages.create(**ask(
        {"system": "Be brief.", "messages": user("What is 12 + 30?"), "stop_sequences": ["="]}))
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "=")


@pytest.mark.parametrize("streamed", [False, True])
def test_tools_round_trip(client, streamed):
    first = ask({"messages": user(WEATHER), "tools": anthropic_tools()})
    if streamed:
        with client.messages.stream(**first) as stream:
            message = stream.get_final_message()
    else:
        message = client.messages.create(**first)
    assert message.stop_reason == "tool_use"
    [call] = [block for block in message.content if block.type == "tool_use"]
    assert (call.name, call.input) == ("get_weather", {"city": "Auckland"})
    result = {"type": "tool_result", "tool_use_id": call.id, "content": RESULT}
    messages = [*user(WEATHER), {"role": "assistant", "content": message.content},
                {"role": "user", "content": [result]}]
    answer = client.messages.create(**ask({"messages": messages, "tools": anthropic_tools()}))
    assert (answer.stop_reason, answer.content[0].text) == ("end_turn", TOLD)


def test_the_library_runs_tools(client):
    """It would rather have the server keep the conversation, and is told that it does not."""
    @anthropic.beta_tool
    def get_weather(city: str) -> str:
        """Get the current weather in a city."""
        return RESULT

    runner = client.beta.messages.tool_runner(**ask(
        {"messages": user(WEATHER), "tools": [get_weather]}))
    assert runner.until_done().content[0].text == TOLD


@pytest.mark.parametrize("seed", range(4))
def test_required_arguments_are_true_to_their_schema(client, seed):
    for choice in ({"type": "any"}, {"type": "tool", "name": "order_pizza"}):
        message = client.messages.create(**ask(
            {"tools": anthropic_tools(order_tool()), "tool_choice": choice,
             "max_tokens": 1000}, temperature=1, seed=seed))
        calls = [block for block in message.content if block.type == "tool_use"]
        assert calls
        for call in calls:
            jsonschema.validate(call.input, ORDER)


def test_json_schema(client):
    form = {"format": {"type": "json_schema", "schema": ORDER}}
    message = client.messages.create(**ask({"output_config": form, "max_tokens": 1000}))
    jsonschema.validate(json.loads(message.content[0].text), ORDER)


def test_parse(client):
    message = client.messages.parse(**ask({"output_format": Animal, "max_tokens": 1000}))
    assert isinstance(message.parsed_output, Animal)


def test_image(client, star):
    source = {"type": "base64", "media_type": "image/png", "data": star}
    content = [{"type": "image", "source": source},
               {"type": "text", "text": "Describe this image."}]
    said = client.messages.create(**ask({"messages": user(content)})).content[0].text
    assert "yellow" in said and "star" in said


def test_count_tokens(client):
    for more in ({}, {"tools": anthropic_tools()}, {"system": "Be brief."}):
        counted = client.messages.count_tokens(model=MODEL, messages=user(STORY), **more)
        used = client.messages.create(**ask({"max_tokens": 1, **more})).usage
        assert counted.input_tokens == used.input_tokens + used.cache_read_input_tokens


def test_models(client):
    assert [m.id for m in client.models.list()] == [MODEL]
    model = client.models.retrieve(MODEL)
    assert (model.type, bool(model.display_name), bool(model.created_at)) == ("model", True, True)
    with pytest.raises(anthropic.NotFoundError):
        client.models.retrieve("nobody")


WRONG = [
    ({"max_tokens": 0}, "max_tokens"),
    ({"extra_body": {"temperature": 1.5}}, "temperature"),
    ({"messages": []}, "messages"),
    ({"stop_sequences": [""]}, "stop_sequences"),
    ({"tool_choice": {"type": "tool", "name": "nobody"}}, "tool_choice"),
    ({"extra_body": {"colour": "red"}}, "colour"),
]


@pytest.mark.parametrize("more, param", WRONG, ids=[str(more) for more, _ in WRONG])
def test_what_is_wrong_is_named(client, more, param):
    for streamed in ({}, {"stream": True}):
        with pytest.raises(anthropic.BadRequestError) as error:
            client.messages.create(**ask({**more, **streamed}))
        body = error.value.body
        assert body["type"] == "error"
        assert body["error"]["type"] == "invalid_request_error"
        assert body["error"]["param"].startswith(param), body
        assert error.value.request_id


def test_errors_have_their_types(client):
    with pytest.raises(anthropic.NotFoundError) as error:
        client.messages.create(**ask({"model": "claude"}))
    assert error.value.body["error"]["type"] == "not_found_error"
    for streamed in ({}, {"stream": True}):
        with pytest.raises(anthropic.BadRequestError):
            client.messages.create(**ask({"messages": user("word " * 3000), **streamed}))


def test_keys():
    with pytest.raises(anthropic.AuthenticationError) as error:
        connect(KEYED, "wrong").messages.create(**ask({}))
    assert error.value.body["error"]["type"] == "authentication_error"
    assert connect(KEYED, KEY).messages.create(**ask({"max_tokens": 3})).usage.output_tokens == 3
