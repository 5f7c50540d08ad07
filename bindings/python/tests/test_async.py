"""The same for `await`."""

import asyncio
import time

from asked import LONG, SHORT, STORY

import lapidary


def test_streams_go_on_beside_each_other(model):
    want = model.chat(STORY, **SHORT).text

    async def one():
        stream = model.astream(STORY, **SHORT)
        text = "".join([chunk.text async for chunk in stream])
        assert stream.reply.text == text
        return text

    async def all():
        ticks = 0

        async def tick():
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0)

        ticking = asyncio.create_task(tick())
        said = await asyncio.gather(*(one() for _ in range(40)))
        ticking.cancel()
        return said, ticks

    said, ticks = asyncio.run(all())
    assert said == [want] * 40 and ticks > 100


def test_the_rest_is_the_same(model):
    async def all():
        reply = await model.achat(STORY, **SHORT)
        assert reply.text == model.chat(STORY, **SHORT).text
        one = await model.agenerate("Once", **SHORT)
        many = await model.agenerate(["Once", "Once"], **SHORT)
        assert [r.text for r in many] == [one.text] * 2
        assert await model.aembed("a fox") == model.embed("a fox")
        chat = model.conversation(**SHORT)
        first = await chat.asay("What can you do?")
        said = [chunk.text async for chunk in chat.astream("What is 2 + 2?")]
        assert first.text and "".join(said) == chat.messages[3]["content"]

    asyncio.run(all())


def test_tools_may_be_coroutines(model):
    seen = []

    async def get_weather(city: str) -> dict[str, str]:
        """Get the current weather in a city."""
        seen.append(asyncio.current_task() is not None)
        await asyncio.sleep(0)
        return {"city": city, "sky": "clear"}

    question = "What is the weather in Auckland?"
    reply = asyncio.run(model.achat(question, tools=[get_weather], **LONG))
    assert seen == [True] and reply.text
    assert model.chat(question, tools=[get_weather], **LONG).text == reply.text


def test_cancelling_a_task_ends_its_answer(model):
    before = model.metrics.cancelled

    async def all():
        async def read():
            async for chunk in model.astream(STORY, ignore_eos=True, **LONG):
                began.set()

        began = asyncio.Event()
        streaming = asyncio.create_task(read())
        await began.wait()
        streaming.cancel()
        waiting = asyncio.create_task(model.achat(STORY, ignore_eos=True, **LONG))
        while not model.metrics.open:
            await asyncio.sleep(0.001)
        waiting.cancel()
        ended = await asyncio.gather(streaming, waiting, return_exceptions=True)
        assert all_are(ended, asyncio.CancelledError)
        async with model.astream(STORY, ignore_eos=True, **LONG) as stream:
            async for _ in stream:
                break

    asyncio.run(all())
    for _ in range(6000):
        if not model.metrics.open:
            break
        time.sleep(0.01)
    assert model.metrics.open == 0 and model.metrics.cancelled > before


def test_errors_come_where_it_is_awaited(model):
    async def all():
        for wrong in (model.achat(STORY, temperature=-1.0), model.achat("fox " * 5000)):
            try:
                await wrong
            except lapidary.InvalidArgumentError as e:
                assert e.code
            else:
                raise AssertionError("it went well")
        try:
            async for _ in model.astream(STORY, regex="("):
                pass
        except ValueError:
            return
        raise AssertionError("it went well")

    asyncio.run(all())


def all_are(values, kind):
    return all(isinstance(value, kind) for value in values)
