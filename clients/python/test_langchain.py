"""langchain-openai, over chat completions and over responses."""

import jsonschema
import openai
import pydantic
import pytest
from conftest import (KEYED, LIMIT, MODEL, ORDER, PEBBLE, RESULT, STORY, TOLD, WEATHER,
                      openai_tools, order_tool)
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI, OpenAIEmbeddings


class Animal(pydantic.BaseModel):
    """An animal."""

    name: str
    legs: int
    tame: bool


@pytest.fixture(scope="module", params=[False, True], ids=["chat", "responses"])
def chat(request):
    return ChatOpenAI(
        model=MODEL, base_url=f"{PEBBLE}/v1", api_key="none", temperature=0, max_retries=0,
        timeout=LIMIT, stream_usage=True, use_responses_api=request.param)


def test_text_and_stream(chat):
    answer = chat.invoke("What is 12 + 30?")
    assert "42" in answer.text
    assert answer.usage_metadata["output_tokens"] > 0
    whole = None
    for chunk in chat.stream("What is 12 + 30?"):
        whole = chunk if whole is None else whole + chunk
    assert whole.text == answer.text
    assert whole.usage_metadata["output_tokens"] == answer.usage_metadata["output_tokens"]


def test_tools_round_trip(chat):
    bound = chat.bind_tools(openai_tools())
    messages = [HumanMessage(WEATHER)]
    called = bound.invoke(messages)
    [call] = called.tool_calls
    assert (call["name"], call["args"]) == ("get_weather", {"city": "Auckland"})
    messages += [called, ToolMessage(RESULT, tool_call_id=call["id"])]
    assert bound.invoke(messages).text == TOLD


def test_required_arguments_are_true_to_their_schema(chat):
    called = chat.bind_tools(openai_tools(order_tool()), tool_choice="any").invoke(STORY)
    assert called.tool_calls and not called.invalid_tool_calls
    for call in called.tool_calls:
        jsonschema.validate(call["args"], ORDER)


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_structured_output(chat, method):
    made = chat.with_structured_output(Animal, method=method).invoke(STORY)
    assert isinstance(made, Animal)


def test_image(chat, star):
    content = [{"type": "image", "base64": star, "mime_type": "image/png"},
               {"type": "text", "text": "Describe this image."}]
    assert "star" in chat.invoke([HumanMessage(content)]).text


def test_errors_have_their_types(chat):
    with pytest.raises(openai.BadRequestError) as error:
        chat.bind(temperature=-1).invoke("Hi")
    assert error.value.param == "temperature"
    with pytest.raises(openai.NotFoundError):
        chat.bind(model="nobody").invoke("Hi")
    stranger = ChatOpenAI(model=MODEL, base_url=f"{KEYED}/v1", api_key="wrong", timeout=LIMIT,
                          max_retries=0)
    with pytest.raises(openai.AuthenticationError):
        stranger.invoke("Hi")


def test_embeddings():
    # Without a tokeniser of OpenAI's, which would be fetched.
    embeddings = OpenAIEmbeddings(
        model=MODEL, base_url=f"{PEBBLE}/v1", api_key="none", check_embedding_ctx_length=False,
        timeout=LIMIT, max_retries=0)
    one, two = embeddings.embed_documents(["a red fox", "seven"])
    assert len(one) == len(two) > 100
    assert max(abs(a - b) for a, b in zip(embeddings.embed_query("a red fox"), one)) < 1e-3
