"""Same seed, same answer: through every API, streamed or not, one at a time or all at once."""

import asyncio

import anthropic
import ollama
import openai
import pytest
from conftest import LIMIT, MODEL, PEBBLE, STORY, user

N = 32
HEAT = 0.9


async def through_chat(seed, streamed):
    client = openai.AsyncOpenAI(base_url=f"{PEBBLE}/v1", api_key="none", max_retries=0, timeout=LIMIT)
    ask = {"model": MODEL, "messages": user(STORY), "temperature": HEAT, "seed": seed,
           "max_tokens": N}
    if not streamed:
        return (await client.chat.completions.create(**ask)).choices[0].message.content
    stream = await client.chat.completions.create(**ask, stream=True)
    return "".join([c.choices[0].delta.content or "" async for c in stream])


async def through_responses(seed, streamed):
    client = openai.AsyncOpenAI(base_url=f"{PEBBLE}/v1", api_key="none", max_retries=0, timeout=LIMIT)
    ask = {"model": MODEL, "input": STORY, "temperature": HEAT, "max_output_tokens": N,
           "extra_body": {"seed": seed}}
    if not streamed:
        return (await client.responses.create(**ask)).output_text
    stream = await client.responses.create(**ask, stream=True)
    return "".join([e.delta async for e in stream if e.type == "response.output_text.delta"])


async def through_messages(seed, streamed):
    client = anthropic.AsyncAnthropic(base_url=PEBBLE, api_key="none", max_retries=0, timeout=LIMIT)
    ask = {"model": MODEL, "messages": user(STORY), "max_tokens": N,
           "extra_body": {"seed": seed, "temperature": HEAT}}
    if not streamed:
        return (await client.messages.create(**ask)).content[0].text
    async with client.messages.stream(**ask) as stream:
        return "".join([text async for text in stream.text_stream])


async def through_ollama(seed, streamed):
    client = ollama.AsyncClient(host=PEBBLE, timeout=LIMIT)
    ask = {"model": MODEL, "messages": user(STORY),
           "options": {"temperature": HEAT, "seed": seed, "num_predict": N}}
    if not streamed:
        return (await client.chat(**ask)).message.content
    return "".join([p.message.content or "" async for p in await client.chat(**ask, stream=True)])


async def through_generate(seed, streamed):
    client = ollama.AsyncClient(host=PEBBLE, timeout=LIMIT)
    ask = {"model": MODEL, "prompt": STORY,
           "options": {"temperature": HEAT, "seed": seed, "num_predict": N}}
    if not streamed:
        return (await client.generate(**ask)).response
    return "".join([p.response async for p in await client.generate(**ask, stream=True)])


WAYS = [through_chat, through_responses, through_messages, through_ollama, through_generate]


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_same_seed_same_answer(seed):
    async def alone():
        return [await way(seed, streamed) for way in WAYS for streamed in (False, True)]

    async def at_once():
        return await asyncio.gather(
            *[way(seed, streamed) for way in WAYS for streamed in (False, True)])

    answers = asyncio.run(alone())
    assert len(set(answers)) == 1 and answers[0], answers
    assert asyncio.run(at_once()) == answers


def test_seeds_matter():
    async def several():
        return [await through_chat(seed, False) for seed in range(4)]

    assert len(set(asyncio.run(several()))) > 1
