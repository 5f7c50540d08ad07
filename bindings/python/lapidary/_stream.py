"""Answers while they come: one turn with its tools, as a whole or in pieces."""

from __future__ import annotations

import asyncio
import contextvars
import json
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Generic, TypeVar

from . import _native
from ._options import Wishes
from ._tools import call
from ._types import Chunk, Logprob, Reply, ToolCall, assistant, reply, tool_call

T = TypeVar("T")

Again = Callable[[list[dict[str, Any]], list[dict[str, Any]]], _native.Answer]
"""Asks for what follows: after the assistant's message, and the results of its calls."""

MAX_ROUNDS = 8
"""How often tools are called for one answer, unless told."""


def _peak_memory() -> float:
    try:
        import resource
    except ImportError:
        return 0.0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    import sys

    return peak / (1e9 if sys.platform == "darwin" else 1e6)


class Turn:
    """One answer with the calls of tools that it takes."""

    def __init__(
        self,
        ask: Callable[[], _native.Answer],
        again: Again | None,
        wishes: Wishes,
        max_rounds: int = MAX_ROUNDS,
        loop: asyncio.AbstractEventLoop | None = None,
        prefix: str = "",
    ) -> None:
        self._prefix = prefix
        self.wishes = wishes
        self._again = again if wishes.functions else None
        self._rounds = max_rounds
        self._loop = loop
        self._lock = threading.Lock()
        self._cancelled = False
        self._round = 0
        self.messages: list[dict[str, Any]] = []
        self.answer = ask()

    def cancel(self) -> None:
        """Ends it early: what was said stays."""
        with self._lock:
            self._cancelled = True
            self.answer.cancel()

    def close(self) -> None:
        """Ends it and forgets it."""
        with self._lock:
            self._cancelled = True
            self.answer.close()

    def call(self, text: str) -> ToolCall:
        """A call as the library tells it, with an id that no other has."""
        found = tool_call(json.loads(text))
        if not self._prefix:
            return found
        return ToolCall(f"{self._prefix}{self._round}_{found.id}", found.name, found.arguments)

    def after(self) -> Reply[Any] | None:
        """What was answered; nothing if tools were called and there is more to come."""
        found = reply(self.answer.so_far(), self.wishes.stop, self.wishes.validate)
        if self._prefix:
            # Alone, the library tells the calls of one answer apart, not those of several.
            found.tool_calls[:] = [
                ToolCall(f"{self._prefix}{self._round}_{c.id}", c.name, c.arguments)
                for c in found.tool_calls
            ]
        said = assistant(found)
        functions = self.wishes.functions
        goes_on = (
            self._again is not None
            and found.finish_reason == "tool_calls"
            and self._round < self._rounds
            and not self._cancelled
            and all(c.name in functions for c in found.tool_calls)
        )
        if not goes_on or self._again is None:
            self.messages.append(said)
            found.messages.extend(self.messages)
            return found
        results = [
            {
                "role": "tool",
                "tool_call_id": c.id,
                "name": c.name,
                "content": call(functions[c.name], c, self._loop),
            }
            for c in found.tool_calls
        ]
        self._round += 1
        self.messages += [said, *results]
        answer = self._again([said], results)
        with self._lock:
            self.answer = answer
            if self._cancelled:
                answer.cancel()
        return None

    def reply(self) -> Reply[Any]:
        """Waits for the whole."""
        try:
            while True:
                self.answer.reply()
                found = self.after()
                if found is not None:
                    return found
        except BaseException:
            self.close()
            raise


class Stream(Iterator[Chunk]):
    """An answer in pieces. Leaving the loop, ``close`` or ``with`` end it early.

    After the end, ``reply`` is the whole answer.
    """

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self.reply: Reply[Any] | None = None
        self._ended = False
        self._began = time.perf_counter()
        self._first = 0.0
        self._tokens = 0
        self._last = -1
        self._prompt_tps = 0.0
        self._memory = _peak_memory()

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> Chunk:
        if self._ended:
            raise StopIteration
        try:
            return self._next()
        except BaseException:
            self._ended = True
            self._turn.close()
            raise

    def _next(self) -> Chunk:
        while True:
            answer = self._turn.answer
            for kind, text, tokens in answer:
                if kind == "text":
                    return self._chunk(answer, tokens, text)
                if kind == "thinking":
                    return self._chunk(answer, tokens, "", thinking=text)
                if kind == "call":
                    return self._chunk(answer, tokens, "", tool_call=self._turn.call(text))
                if kind == "progress":
                    read = json.loads(text)
                    return self._chunk(answer, tokens, "", progress=(read["done"], read["total"]))
                if kind == "finished":
                    found = self._turn.after()
                    if found is None:
                        break
                    return self._last_chunk(answer, tokens, found)
                # Begun and failed calls are of interest to no reader of chunks; their tokens count.
                self._count(answer, tokens)
            else:
                # It was closed.
                self._ended = True
                raise StopIteration

    def _count(self, answer: _native.Answer, tokens: list[Any]) -> None:
        if tokens:
            if not self._tokens:
                self._first = time.perf_counter()
                took = self._first - self._began
                self._prompt_tps = answer.prompt_tokens / took if took > 0 else 0.0
            self._tokens += len(tokens)
            self._last = tokens[-1][0]

    def _chunk(
        self,
        answer: _native.Answer,
        tokens: list[Any],
        text: str,
        thinking: str = "",
        tool_call: ToolCall | None = None,
        progress: tuple[int, int] | None = None,
    ) -> Chunk:
        self._count(answer, tokens)
        took = time.perf_counter() - self._first
        more = self._tokens - 1
        return Chunk(
            text,
            self._last,
            None,
            answer.prompt_tokens,
            self._prompt_tps,
            self._tokens,
            more / took if more > 0 and took > 0 else 0.0,
            self._memory,
            thinking,
            tool_call,
            [token[0] for token in tokens],
            [Logprob(id, p, top) for id, p, top in tokens if p is not None],
            progress,
        )

    def _last_chunk(
        self, answer: _native.Answer, tokens: list[Any], found: Reply[Any]
    ) -> Chunk:
        self._memory = _peak_memory()
        chunk = self._chunk(answer, tokens, "")
        stats = found.stats
        chunk.finish_reason = found.finish_reason
        chunk.prompt_tokens = stats.prompt_tokens
        chunk.generation_tokens = stats.new_tokens
        chunk.prompt_tps = stats.prefill_tokens_per_second or chunk.prompt_tps
        chunk.generation_tps = stats.decode_tokens_per_second or chunk.generation_tps
        self.reply = found
        self._ended = True
        return chunk

    def cancel(self) -> None:
        """Ends the answer early, from any thread: what was said stays, and the last chunk says so."""
        self._turn.cancel()

    def close(self) -> None:
        """Ends the answer, from any thread. Nothing comes any more."""
        self._turn.close()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        turn = getattr(self, "_turn", None)
        if turn is not None and not self._ended:
            turn.close()


class Work(Generic[T]):
    """Something that takes long, on a thread of its own, for whoever awaits it.

    ``run`` is given this, and adds what is to be cancelled when nobody awaits it any more.
    """

    def __init__(self, run: Callable[[Work[T]], T]) -> None:
        self._run = run
        self._lock = threading.Lock()
        self._turns: list[Turn | Stream] = []
        self.cancelled = False
        self.loop = asyncio.get_running_loop()

    def add(self, turn: Turn | Stream) -> None:
        with self._lock:
            self._turns.append(turn)
            if self.cancelled:
                turn.cancel()

    def cancel(self) -> None:
        with self._lock:
            self.cancelled = True
            turns = list(self._turns)
        for turn in turns:
            turn.cancel()

    def tell(self, function: Callable[..., object], *arguments: object) -> bool:
        """Has the loop do something; whether it can still do anything."""
        try:
            self.loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:
            self.cancel()
            return False
        return True

    async def result(self) -> T:
        future: asyncio.Future[T] = self.loop.create_future()

        def end(result: T | None, error: BaseException | None) -> None:
            if future.done():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)  # type: ignore[arg-type]

        def run() -> None:
            try:
                result = self._run(self)
            except BaseException as e:
                self.tell(end, None, e)
            else:
                self.tell(end, result, None)

        self.start(run)
        try:
            return await future
        except asyncio.CancelledError:
            self.cancel()
            raise

    def start(self, run: Callable[[], object]) -> None:
        # With the variables of whoever asks, which tools may want to see.
        context = contextvars.copy_context()
        threading.Thread(target=context.run, args=(run,), name="lapidary").start()


class AsyncStream(AsyncIterator[Chunk]):
    """An answer in pieces, for ``async for``. Leaving the loop or ``aclose`` end it early."""

    def __init__(self, make: Callable[[asyncio.AbstractEventLoop], Stream]) -> None:
        self._make = make
        self._work: Work[None] | None = None
        self._came: deque[Chunk | Reply[Any] | BaseException | None] = deque()
        self._news = asyncio.Event()
        self.reply: Reply[Any] | None = None
        self._ended = False

    def __aiter__(self) -> AsyncStream:
        return self

    def _begin(self) -> None:
        make, came, news = self._make, self._came, self._news

        def put(what: Chunk | BaseException | None, whole: Reply[Any] | None) -> None:
            came.append(what)
            if whole is not None:
                came.append(whole)
            news.set()

        def run(work: Work[None]) -> None:
            try:
                stream = make(work.loop)
                work.add(stream)
                for chunk in stream:
                    if not work.tell(put, chunk, stream.reply):
                        return
                work.tell(put, None, None)
            except BaseException as e:
                work.tell(put, e, None)

        work: Work[None] = Work(run)
        self._work = work
        work.start(lambda: run(work))

    async def __anext__(self) -> Chunk:
        if self._ended:
            raise StopAsyncIteration
        if self._work is None:
            self._begin()
        while True:
            while self._came:
                what = self._came.popleft()
                if isinstance(what, Chunk):
                    return what
                if isinstance(what, Reply):
                    self.reply = what
                    continue
                self._ended = True
                if what is None:
                    raise StopAsyncIteration
                raise what
            self._news.clear()
            try:
                await self._news.wait()
            except asyncio.CancelledError:
                self.cancel()
                raise

    def cancel(self) -> None:
        """Ends the answer early: what was said stays, and the last chunk says so."""
        if self._work is not None:
            self._work.cancel()

    async def aclose(self) -> None:
        """Ends the answer. Nothing comes any more."""
        self._ended = True
        self.cancel()

    async def __aenter__(self) -> AsyncStream:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __del__(self) -> None:
        if not getattr(self, "_ended", True):
            self.cancel()
