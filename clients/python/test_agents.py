"""Libraries that run agents: openai-agents and pydantic-ai, over each API that they speak."""

import asyncio
import base64

import agents
import openai
import pydantic
import pydantic_ai
import pytest
from conftest import LIMIT, MODEL, PEBBLE, RESULT, STORY, TOLD, WEATHER
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

# It would send what was said to a server of OpenAI's.
agents.set_tracing_disabled(True)


class Animal(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=12)
    legs: int = pydantic.Field(ge=0, le=9)
    tame: bool


def get_weather(city: str) -> str:
    """Get the current weather in a city."""
    assert city == "Auckland"
    return RESULT


@pytest.fixture(params=["chat", "responses"])
def agent_of(request):
    """An agent of openai-agents."""
    client = openai.AsyncOpenAI(
        base_url=f"{PEBBLE}/v1", api_key="none", max_retries=0, timeout=LIMIT)
    kinds = {"chat": agents.OpenAIChatCompletionsModel, "responses": agents.OpenAIResponsesModel}
    model = kinds[request.param](model=MODEL, openai_client=client)
    settings = agents.ModelSettings(temperature=0, max_tokens=400)
    return lambda **more: agents.Agent(name="helper", model=model, model_settings=settings, **more)


def test_agents_run_tools(agent_of):
    agent = agent_of(tools=[agents.function_tool(get_weather)])

    async def both():
        whole = await agents.Runner.run(agent, WEATHER)
        run = agents.Runner.run_streamed(agent, WEATHER)
        kinds = {event.type async for event in run.stream_events()}
        return whole.final_output, run.final_output, kinds

    whole, streamed, kinds = asyncio.run(both())
    assert whole == streamed == TOLD and "raw_response_event" in kinds


def test_agents_give_what_they_are_asked_for(agent_of):
    made = asyncio.run(agents.Runner.run(agent_of(output_type=Animal), STORY))
    assert isinstance(made.final_output, Animal)


def test_agents_go_on(agent_of):
    async def twice():
        agent = agent_of()
        first = await agents.Runner.run(agent, "What is 12 + 30?")
        later = [*first.to_input_list(), {"role": "user", "content": "What is 3 + 4?"}]
        return first.final_output, (await agents.Runner.run(agent, later)).final_output

    first, later = asyncio.run(twice())
    assert "42" in first and later


def model(api):
    """A model of pydantic-ai."""
    openai_api = OpenAIProvider(base_url=f"{PEBBLE}/v1", api_key="none")
    match api:
        case "chat":
            return OpenAIChatModel(MODEL, provider=openai_api)
        case "responses":
            return OpenAIResponsesModel(MODEL, provider=openai_api)
        case _:
            provider = AnthropicProvider(base_url=PEBBLE, api_key="none")
            return AnthropicModel(MODEL, provider=provider)


APIS = pytest.mark.parametrize("api", ["chat", "responses", "messages"])
SETTINGS = {"temperature": 0, "max_tokens": 400, "timeout": LIMIT}


@APIS
def test_pydantic_ai_runs_tools(api):
    agent = pydantic_ai.Agent(model(api), tools=[get_weather], model_settings=SETTINGS)
    assert agent.run_sync(WEATHER).output == TOLD


@APIS
def test_pydantic_ai_gives_what_it_is_asked_for(api):
    kinds = [pydantic_ai.ToolOutput, pydantic_ai.NativeOutput]
    # Of Anthropic's models, it asks only those for the second that it knows by name.
    for kind in kinds[:1] if api == "messages" else kinds:
        agent = pydantic_ai.Agent(
            model(api), output_type=kind(Animal), retries=0, model_settings=SETTINGS)
        assert isinstance(agent.run_sync(STORY).output, Animal)


@APIS
def test_pydantic_ai_streams_and_shows(api, star):
    agent = pydantic_ai.Agent(model(api), model_settings=SETTINGS)

    async def streamed():
        async with agent.run_stream("What is 12 + 30?") as run:
            return [part async for part in run.stream_text(delta=True, debounce_by=None)]

    parts = asyncio.run(streamed())
    assert "42" in "".join(parts) and len(parts) > 1
    image = pydantic_ai.BinaryContent(base64.b64decode(star), media_type="image/png")
    assert "star" in agent.run_sync([image, "Describe this image."]).output
