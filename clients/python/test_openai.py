"""openai-python: chat, completions, responses, embeddings, models, errors."""

import json
import numbers
import urllib.request

import jsonschema
import openai
import pydantic
import pytest
from conftest import (ENDLESS, KEY, KEYED, LIMIT, MODEL, ORDER, PEBBLE, RESULT, STORY, TOLD,
                      WEATHER, left, openai_tools, order_tool, user)


def connect(url=PEBBLE, key="none"):
    return openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0, timeout=LIMIT)


@pytest.fixture(scope="module")
def client():
    return connect()


class Animal(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=12)
    legs: int = pydantic.Field(ge=0, le=9)
    tame: bool


def flat(tools):
    """Tools as responses want them."""
    return [{"type": "function", "strict": False, **tool["function"]} for tool in tools]


def test_text(client):
    answer = client.chat.completions.create(
        model=MODEL, messages=user("What is 12 + 30?"), temperature=0)
    choice = answer.choices[0]
    assert "42" in choice.message.content
    assert (choice.finish_reason, choice.message.role) == ("stop", "assistant")
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_system_and_history(client):
    messages = [{"role": "system", "content": "Be brief."}, *user("What is 2 + 2?"),
                {"role": "assistant", "content": "2 + 2 = 4."}, *user("What is 3 + 4?")]
    answer = client.chat.completions.create(model=MODEL, messages=messages, temperature=0)
    assert "7" in answer.choices[0].message.content


def test_stream_adds_up(client):
    ask = {"model": MODEL, "messages": user(STORY), "temperature": 0, "max_tokens": 40}
    whole = client.chat.completions.create(**ask)
    chunks = list(client.chat.completions.create(
        **ask, stream=True, stream_options={"include_usage": True}))
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "length"
    assert len(chunks) > 10
    # Usage comes once, in the last chunk, which has no choices.
    assert all(c.usage is None for c in chunks[:-1])
    assert not chunks[-1].choices
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens == 40
    assert chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens
    assert len({c.id for c in chunks}) == 1


def test_stream_without_usage_has_none(client):
    chunks = client.chat.completions.create(
        model=MODEL, messages=user("Hi"), max_tokens=5, stream=True)
    assert all(c.usage is None and c.choices for c in chunks)


def test_what_is_left_is_stopped(client):
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": ENDLESS}}
    ask = {"model": MODEL, "messages": user(STORY), "response_format": form}
    with left():
        stream = client.chat.completions.create(**ask, stream=True)
        next(iter(stream))
        stream.close()
    # A server that is busy may not have begun what is left so soon.
    for timeout in (0.3, 1, 3):
        try:
            with left(limit=5), pytest.raises(openai.APITimeoutError):
                client.with_options(timeout=timeout).chat.completions.create(**ask)
            break
        except AssertionError:
            if timeout == 3:
                raise
    answer = client.chat.completions.create(
        model=MODEL, messages=user("What is 12 + 30?"), temperature=0)
    assert "42" in answer.choices[0].message.content


@pytest.mark.parametrize("streamed", [False, True])
def test_tools_round_trip(client, streamed):
    ask = {"model": MODEL, "tools": openai_tools(), "temperature": 0}
    messages = user(WEATHER)
    if streamed:
        with client.chat.completions.stream(messages=messages, **ask) as stream:
            for _ in stream:
                pass
            choice = stream.get_final_completion().choices[0]
    else:
        choice = client.chat.completions.create(messages=messages, **ask).choices[0]
    assert choice.finish_reason == "tool_calls"
    [call] = choice.message.tool_calls
    assert call.function.name == "get_weather"
    assert json.loads(call.function.arguments) == {"city": "Auckland"}
    messages += [choice.message.to_dict(),
                 {"role": "tool", "tool_call_id": call.id, "content": RESULT}]
    answer = client.chat.completions.create(messages=messages, **ask).choices[0]
    assert answer.finish_reason == "stop"
    assert answer.message.content == TOLD


@pytest.mark.parametrize("seed", range(6))
def test_required_arguments_are_true_to_their_schema(client, seed):
    named = {"type": "function", "function": {"name": "order_pizza"}}
    for choice in ("required", named):
        message = client.chat.completions.create(
            model=MODEL, messages=user("A pizza, please."), tools=openai_tools(order_tool()),
            tool_choice=choice, temperature=1, seed=seed).choices[0].message
        assert message.tool_calls
        for call in message.tool_calls:
            assert call.function.name == "order_pizza"
            jsonschema.validate(json.loads(call.function.arguments), ORDER)


def test_tool_choice_none_calls_nothing(client):
    message = client.chat.completions.create(
        model=MODEL, messages=user(WEATHER), tools=openai_tools(), tool_choice="none",
        temperature=0, max_tokens=30).choices[0].message
    assert not message.tool_calls


@pytest.mark.parametrize("seed", range(6))
def test_json_schema(client, seed):
    form = {"type": "json_schema", "json_schema": {"name": "order", "schema": ORDER,
                                                   "strict": True}}
    answer = client.chat.completions.create(
        model=MODEL, messages=user(STORY), response_format=form, temperature=1, seed=seed)
    jsonschema.validate(json.loads(answer.choices[0].message.content), ORDER)


def test_parse(client):
    for seed in range(4):
        answer = client.chat.completions.parse(
            model=MODEL, messages=user(STORY), response_format=Animal, temperature=1, seed=seed)
        assert isinstance(answer.choices[0].message.parsed, Animal)


def test_parse_streamed(client):
    with client.chat.completions.stream(
            model=MODEL, messages=user(STORY), response_format=Animal, temperature=1,
            seed=3) as stream:
        for _ in stream:
            pass
        assert isinstance(stream.get_final_completion().choices[0].message.parsed, Animal)


def test_parse_of_a_tool(client):
    answer = client.chat.completions.parse(
        model=MODEL, messages=user(STORY), tool_choice="required", temperature=0,
        tools=[openai.pydantic_function_tool(Animal)])
    calls = answer.choices[0].message.tool_calls
    assert calls and all(isinstance(c.function.parsed_arguments, Animal) for c in calls)


def test_image(client, star):
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{star}"}}
    content = [image, {"type": "text", "text": "Describe this image."}]
    said = client.chat.completions.create(
        model=MODEL, messages=user(content), temperature=0).choices[0].message.content
    assert "yellow" in said and "star" in said


def test_choices_stops_and_logprobs(client):
    answer = client.chat.completions.create(
        model=MODEL, messages=user(STORY), n=3, seed=1, temperature=1, max_tokens=8,
        logprobs=True, top_logprobs=2)
    assert [c.index for c in answer.choices] == [0, 1, 2]
    assert len({c.message.content for c in answer.choices}) > 1
    for choice in answer.choices:
        assert len(choice.logprobs.content) == 8
        for token in choice.logprobs.content:
            assert token.logprob <= 0 and len(token.top_logprobs) == 2
    stopped = client.chat.completions.create(
        model=MODEL, messages=user("What is 12 + 30?"), temperature=0, stop=["="])
    assert "=" not in stopped.choices[0].message.content
    assert stopped.choices[0].finish_reason == "stop"


def test_completions(client):
    ask = {"model": MODEL, "prompt": "Once upon a time", "max_tokens": 12, "temperature": 0}
    whole = client.completions.create(**ask)
    parts = client.completions.create(**ask, stream=True)
    assert "".join(p.choices[0].text for p in parts if p.choices) == whole.choices[0].text
    echoed = client.completions.create(**ask, echo=True, logprobs=1)
    assert echoed.choices[0].text == "Once upon a time" + whole.choices[0].text
    logprobs = echoed.choices[0].logprobs
    assert len(logprobs.tokens) == len(logprobs.token_logprobs) == len(logprobs.text_offset)
    assert "".join(logprobs.tokens).endswith(whole.choices[0].text)


def tokens_of(text):
    """As lm-eval asks for them."""
    body = json.dumps({"prompt": text, "add_special_tokens": False}).encode()
    request = urllib.request.Request(
        f"{PEBBLE}/tokenize", body, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=LIMIT) as reply:
        return json.load(reply)["tokens"]


def test_likelihoods_as_lm_eval_asks_for_them(client):
    """Several prompts of tokens at once, each echoed, and one more token that nobody reads."""
    texts = ["<bos>Once upon a time there was a fox.", "<bos>The sun is a mountain of salt", "<bos>Hello"]
    prompts = [tokens_of(text) for text in texts]
    ask = {"model": MODEL, "temperature": 0, "max_tokens": 1, "logprobs": 1, "seed": 1234, "echo": True}
    together = client.completions.create(prompt=prompts, **ask).choices
    assert [choice.index for choice in together] == [0, 1, 2]
    for prompt, choice in zip(prompts, together):
        known = choice.logprobs
        assert len(known.token_logprobs) == len(known.top_logprobs) == len(prompt) + 1
        assert known.token_logprobs[0] is None
        for value, top in list(zip(known.token_logprobs, known.top_logprobs))[1:]:
            assert value <= max(top.values())
        # A greedy token is told from others by its number being the same.
        assert known.token_logprobs[-1] == max(known.top_logprobs[-1].values())
        [alone] = client.completions.create(prompt=[prompt], **ask).choices
        assert alone.logprobs.token_logprobs == known.token_logprobs
    per_token = [sum(c.logprobs.token_logprobs[1:-1]) / (len(p) - 1) for c, p in zip(together, prompts)]
    assert per_token[0] > per_token[1]


def test_embeddings(client):
    one, two = client.embeddings.create(model=MODEL, input=["a red fox", "seven"]).data
    assert (one.index, two.index) == (0, 1)
    assert len(one.embedding) == len(two.embedding) > 100
    assert abs(sum(x * x for x in one.embedding) - 1) < 1e-3
    plain = client.embeddings.create(model=MODEL, input="a red fox", encoding_format="float")
    assert all(isinstance(x, numbers.Real) for x in plain.data[0].embedding)
    # The client asks for base64 unless told otherwise; both are the same numbers.
    assert max(abs(a - b) for a, b in zip(plain.data[0].embedding, one.embedding)) < 1e-3
    assert plain.usage.prompt_tokens > 0


def test_models(client):
    assert [m.id for m in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).object == "model"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("nobody")


def test_responses(client):
    ask = {"model": MODEL, "temperature": 0}
    first = client.responses.create(input="What is 12 + 30?", **ask)
    assert first.status == "completed" and "42" in first.output_text
    assert first.usage.total_tokens == first.usage.input_tokens + first.usage.output_tokens
    second = client.responses.create(
        input="What is 3 + 4?", previous_response_id=first.id, **ask)
    # It knows what was said: the prompt is longer than the question alone.
    assert second.usage.input_tokens > first.usage.total_tokens
    assert client.responses.retrieve(first.id).output_text == first.output_text
    assert client.responses.input_items.list(first.id).data
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.id)
    forgotten = client.responses.create(input="Hi", store=False, max_output_tokens=8, **ask)
    with pytest.raises(openai.NotFoundError):
        client.responses.create(input="Hi", previous_response_id=forgotten.id, **ask)


def test_responses_streamed(client):
    ask = {"model": MODEL, "input": STORY, "temperature": 0, "max_output_tokens": 40}
    whole = client.responses.create(**ask)
    with client.responses.stream(**ask) as stream:
        events = list(stream)
    parts = [e.delta for e in events if e.type == "response.output_text.delta"]
    assert events[-1].type == "response.incomplete"
    final = events[-1].response
    assert "".join(parts) == whole.output_text == final.output_text
    assert final.status == "incomplete"
    assert final.incomplete_details.reason == "max_output_tokens"
    assert final.usage.output_tokens == 40


def test_responses_tools(client):
    ask = {"model": MODEL, "tools": flat(openai_tools()), "temperature": 0}
    first = client.responses.create(input=WEATHER, **ask)
    [call] = [item for item in first.output if item.type == "function_call"]
    assert (call.name, json.loads(call.arguments)) == ("get_weather", {"city": "Auckland"})
    result = {"type": "function_call_output", "call_id": call.call_id, "output": RESULT}
    second = client.responses.create(input=[result], previous_response_id=first.id, **ask)
    assert second.output_text == TOLD
    with client.responses.stream(input=WEATHER, **ask) as stream:
        for _ in stream:
            pass
        streamed = [i for i in stream.get_final_response().output if i.type == "function_call"]
    assert [(c.name, c.arguments) for c in streamed] == [(call.name, call.arguments)]


def test_responses_held_to_schemas(client):
    parsed = client.responses.parse(
        model=MODEL, input=STORY, text_format=Animal, temperature=1, top_p=1)
    assert isinstance(parsed.output_parsed, Animal)
    called = client.responses.create(
        model=MODEL, input=STORY, tools=flat(openai_tools(order_tool())), tool_choice="required")
    calls = [item for item in called.output if item.type == "function_call"]
    assert calls
    for call in calls:
        jsonschema.validate(json.loads(call.arguments), ORDER)


def test_responses_image_and_count(client, star):
    content = [{"type": "input_image", "detail": "auto",
                "image_url": f"data:image/png;base64,{star}"},
               {"type": "input_text", "text": "Describe this image."}]
    said = client.responses.create(model=MODEL, input=user(content), temperature=0)
    assert "star" in said.output_text
    counted = client.responses.input_tokens.count(model=MODEL, input=user(content))
    assert counted.input_tokens == said.usage.input_tokens


WRONG = [
    ({"temperature": -1}, "temperature"),
    ({"top_p": 3}, "top_p"),
    ({"n": 0}, "n"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "king", "content": "x"}]}, "messages[0].role"),
    ({"logit_bias": {"x": 1}}, "logit_bias"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"response_format": {"type": "xml"}}, "response_format.type"),
    ({"extra_body": {"colour": "red"}}, "colour"),
    ({"stop": [""]}, "stop"),
]


@pytest.mark.parametrize("more, param", WRONG, ids=[str(more) for more, _ in WRONG])
def test_what_is_wrong_is_named(client, more, param):
    with pytest.raises(openai.BadRequestError) as error:
        client.chat.completions.create(**{"model": MODEL, "messages": user("Hi"), **more})
    assert (error.value.param or "").startswith(param), error.value
    assert error.value.type == "invalid_request_error"
    assert error.value.request_id


def test_errors_have_their_types(client):
    with pytest.raises(openai.NotFoundError) as error:
        client.chat.completions.create(model="nobody", messages=user("Hi"))
    assert error.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as error:
        client.chat.completions.create(model=MODEL, messages=user("word " * 3000))
    assert error.value.code == "context_length_exceeded"
    stream = {"model": MODEL, "messages": user("Hi"), "temperature": -1, "stream": True}
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(**stream)


def test_keys():
    for key in ("wrong", KEY + "x"):
        with pytest.raises(openai.AuthenticationError):
            connect(KEYED, key).models.list()
    answer = connect(KEYED, KEY).chat.completions.create(
        model=MODEL, messages=user("What is 12 + 30?"), temperature=0)
    assert "42" in answer.choices[0].message.content
