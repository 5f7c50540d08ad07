"""Models and conversations."""

from __future__ import annotations

import asyncio
import json
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, overload

from . import _native
from ._errors import make
from ._messages import Messages, Shown, media, messages
from ._options import LoadOptions, Options, Schema, Wishes, load_json
from ._stream import MAX_ROUNDS, AsyncStream, Stream, Turn, Work
from ._types import Metrics, ModelInfo, Plan, Reply, read

if TYPE_CHECKING:
    import numpy
    import numpy.typing
    from typing_extensions import Unpack

T = TypeVar("T")

Prompt = str | Sequence[int]
"""What is continued: text, or token ids."""


def _plan(text: str) -> Plan:
    return read(Plan, json.loads(text))


def plan(model: str | os.PathLike[str] = "pebble", **options: Unpack[LoadOptions]) -> Plan:
    """What loading a model would take. Nothing is loaded."""
    return _plan(_native.Model.open(model, load_json(options)).plan())


class Model:
    """A model on a device.

    ``model`` is a path, the name of a model that was downloaded (``pull``), or ``pebble``, which is built
    in. It may be used from any thread, by any number of them at once.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] = "pebble",
        *,
        progress: Callable[[int, int], object] | None = None,
        **options: Unpack[LoadOptions],
    ) -> None:
        self._engine = _native.Model.open(model, load_json(options)).load(progress)
        self._window = max(32, 4 * self.plan().sequences)

    def close(self) -> None:
        """Ends all answers and frees the memory. Whoever still uses the model gets ``UnloadedError``."""
        self._engine.close()

    @property
    def is_closed(self) -> bool:
        """Whether it was closed."""
        return self._engine.is_closed

    def __enter__(self) -> Model:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        if self.is_closed:
            return "<lapidary.Model, closed>"
        info = self.info
        return f"<lapidary.Model {info.name} on {info.device}>"

    # What it is

    @property
    def info(self) -> ModelInfo:
        """Facts about it."""
        return read(ModelInfo, json.loads(self._engine.info()))

    def plan(self, **options: Unpack[LoadOptions]) -> Plan:
        """What was decided at loading; with options, what loading with them would take."""
        return _plan(self._engine.plan(load_json(options) if options else None))

    @property
    def metrics(self) -> Metrics:
        """What it does and has done."""
        return read(Metrics, json.loads(self._engine.metrics()))

    # Conversations in messages

    def _chat(
        self,
        given: Messages,
        images: Sequence[Any] | None,
        audio: Sequence[Any] | None,
        video: Sequence[Any] | None,
        wishes: Wishes,
        max_rounds: int,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> Turn:
        said = messages(given, images, audio, video)

        def ask() -> _native.Answer:
            shown = Shown()
            return self._engine.chat(shown.json(said), shown.media, wishes.json)

        def again(new: list[dict[str, Any]], results: list[dict[str, Any]]) -> _native.Answer:
            said.extend(new + results)
            return ask()

        # Of what was said before there may be answers, and calls in them.
        n = sum(message.get("role") == "assistant" for message in said)
        return Turn(ask, again, wishes, max_rounds, loop, f"answer_{n}_")

    @overload
    def chat(
        self,
        messages: Messages,
        *,
        schema: type[T],
        images: Sequence[Any] | None = None,
        audio: Sequence[Any] | None = None,
        video: Sequence[Any] | None = None,
        max_rounds: int = MAX_ROUNDS,
        **options: Unpack[Options],
    ) -> Reply[T]: ...

    @overload
    def chat(
        self,
        messages: Messages,
        *,
        schema: Schema | None = None,
        images: Sequence[Any] | None = None,
        audio: Sequence[Any] | None = None,
        video: Sequence[Any] | None = None,
        max_rounds: int = MAX_ROUNDS,
        **options: Unpack[Options],
    ) -> Reply[Any]: ...

    def chat(
        self,
        messages: Messages,
        *,
        schema: Any = None,
        images: Sequence[Any] | None = None,
        audio: Sequence[Any] | None = None,
        video: Sequence[Any] | None = None,
        max_rounds: int = MAX_ROUNDS,
        **options: Unpack[Options],
    ) -> Reply[Any]:
        """Answers messages, or a text.

        Functions among ``tools`` are called, and the model is told what they return, up to
        ``max_rounds`` times; with 0, and for tools that are declared as dicts, the reply has the calls.
        """
        wishes = Wishes(options, schema)
        return self._chat(messages, images, audio, video, wishes, max_rounds).reply()

    @overload
    async def achat(
        self,
        messages: Messages,
        *,
        schema: type[T],
        images: Sequence[Any] | None = None,
        audio: Sequence[Any] | None = None,
        video: Sequence[Any] | None = None,
        max_rounds: int = MAX_ROUNDS,
        **options: Unpack[Options],
    ) -> Reply[T]: ...

    @overload
    async def achat(
        self,
        messages: Messages,
        *,
        schema: Schema | None = None,
        images: Sequence[Any] | None = None,
        audio: Sequence[Any] | None = None,
        video: Sequence[Any] | None = None,
        max_rounds: int = MAX_ROUNDS,
        **options: Unpack[Options],
    ) -> Reply[Any]: ...

    async def achat(
        self,
        messages: Messages,
        *,
        schema: Any = None,
        images: Sequence[Any] | None = None,
        audio: Sequence[Any] | None = None,
        video: Sequence[Any] | None = None,
        max_rounds: int = MAX_ROUNDS,
        **options: Unpack[Options],
    ) -> Reply[Any]:
        """The same as ``chat``, for ``await``. Tools may be coroutines."""
        wishes = Wishes(options, schema)

        def run(work: Work[Reply[Any]]) -> Reply[Any]:
            turn = self._chat(messages, images, audio, video, wishes, max_rounds, work.loop)
            work.add(turn)
            return turn.reply()

        return await Work(run).result()

    def stream(
        self,
        messages: Messages,
        *,
        schema: Schema | None = None,
        images: Sequence[Any] | None = None,
        audio: Sequence[Any] | None = None,
        video: Sequence[Any] | None = None,
        max_rounds: int = MAX_ROUNDS,
        **options: Unpack[Options],
    ) -> Stream:
        """Answers in pieces, as they come. Whoever leaves the loop ends the answer."""
        wishes = Wishes(options, schema)
        return Stream(self._chat(messages, images, audio, video, wishes, max_rounds))

    def astream(
        self,
        messages: Messages,
        *,
        schema: Schema | None = None,
        images: Sequence[Any] | None = None,
        audio: Sequence[Any] | None = None,
        video: Sequence[Any] | None = None,
        max_rounds: int = MAX_ROUNDS,
        **options: Unpack[Options],
    ) -> AsyncStream:
        """The same as ``stream``, for ``async for``. Tools may be coroutines."""
        wishes = Wishes(options, schema)
        return AsyncStream(
            lambda loop: Stream(
                self._chat(messages, images, audio, video, wishes, max_rounds, loop)
            )
        )

    def chat_all(
        self,
        conversations: Sequence[Messages],
        *,
        schema: Schema | None = None,
        max_rounds: int = MAX_ROUNDS,
        **options: Unpack[Options],
    ) -> list[Reply[Any]]:
        """Answers many conversations, several at once, in their order."""
        wishes = Wishes(options, schema)
        return self._all(
            lambda i: self._chat(conversations[i], None, None, None, wishes, max_rounds),
            len(conversations),
        )

    def count_tokens(self, messages: Messages, **options: Unpack[Options]) -> int:
        """Tokens of a prompt, media included. Nothing is run."""
        return self._count(messages, Wishes(options))

    def _count(self, given: Messages, wishes: Wishes) -> int:
        shown = Shown()
        return self._engine.count_tokens(shown.json(messages(given)), shown.media, wishes.json)

    def apply_chat_template(self, messages: Messages, **options: Unpack[Options]) -> list[int]:
        """Token ids of a prompt in the model's chat format."""
        return self._render(messages, Wishes(options))

    def _render(self, given: Messages, wishes: Wishes) -> list[int]:
        return self._engine.prompt(Shown().json(messages(given)), wishes.json)

    # Plain text

    def _complete(
        self,
        prompt: Prompt,
        images: Sequence[Any] | None,
        audio: Sequence[Any] | None,
        wishes: Wishes,
    ) -> Turn:
        def ask() -> _native.Answer:
            if not isinstance(prompt, str):
                return self._engine.continue_ids(list(prompt), wishes.json)
            shown = [media("image", image) for image in images or ()]
            shown += [media("audio", sound) for sound in audio or ()]
            return self._engine.complete(prompt, shown, wishes.json)

        return Turn(ask, None, wishes)

    def _all(
        self,
        begin: Callable[[int], Turn],
        n: int,
        work: Work[list[Reply[Any]]] | None = None,
    ) -> list[Reply[Any]]:
        """As many turns as there are, a window of them at once."""
        open_turns: deque[Turn] = deque()
        replies: list[Reply[Any]] = []
        try:
            for i in range(n):
                while len(open_turns) >= self._window:
                    replies.append(open_turns[0].reply())
                    open_turns.popleft()
                while True:
                    if work is not None and work.cancelled:
                        raise make("cancelled", "cancelled")
                    try:
                        turn = begin(i)
                        break
                    except Exception as e:
                        # Other threads have filled the queue; ours make room in it.
                        if getattr(e, "code", "") != "queue_full" or not open_turns:
                            raise
                        replies.append(open_turns[0].reply())
                        open_turns.popleft()
                if work is not None:
                    work.add(turn)
                open_turns.append(turn)
            while open_turns:
                replies.append(open_turns[0].reply())
                open_turns.popleft()
        finally:
            for turn in open_turns:
                turn.close()
        return replies

    @overload
    def generate(  # type: ignore[overload-overlap]
        self,
        prompt: Prompt,
        *,
        schema: Schema | None = None,
        images: Sequence[Any] | None = None,
        audio: Sequence[Any] | None = None,
        **options: Unpack[Options],
    ) -> Reply[Any]: ...

    @overload
    def generate(
        self,
        prompt: Sequence[str] | Sequence[Sequence[int]],
        *,
        schema: Schema | None = None,
        **options: Unpack[Options],
    ) -> list[Reply[Any]]: ...

    def generate(
        self,
        prompt: Any,
        *,
        schema: Schema | None = None,
        images: Sequence[Any] | None = None,
        audio: Sequence[Any] | None = None,
        **options: Unpack[Options],
    ) -> Reply[Any] | list[Reply[Any]]:
        """Continues plain text, or token ids, without a chat template. A list of prompts is one batch,
        and gives a list of replies in its order."""
        wishes = Wishes(options, schema)
        if _is_one(prompt):
            return self._complete(prompt, images, audio, wishes).reply()
        prompts = list(prompt)
        if images or audio:
            raise make("invalid_argument", "images and audio belong to one prompt, not to a batch")
        return self._all(
            lambda i: self._complete(prompts[i], None, None, wishes), len(prompts)
        )

    @overload
    async def agenerate(  # type: ignore[overload-overlap]
        self, prompt: Prompt, *, schema: Schema | None = None, **options: Unpack[Options]
    ) -> Reply[Any]: ...

    @overload
    async def agenerate(
        self,
        prompt: Sequence[str] | Sequence[Sequence[int]],
        *,
        schema: Schema | None = None,
        **options: Unpack[Options],
    ) -> list[Reply[Any]]: ...

    async def agenerate(
        self, prompt: Any, *, schema: Schema | None = None, **options: Unpack[Options]
    ) -> Reply[Any] | list[Reply[Any]]:
        """The same as ``generate``, for ``await``."""
        wishes = Wishes(options, schema)
        one = _is_one(prompt)
        prompts = [prompt] if one else list(prompt)

        def run(work: Work[list[Reply[Any]]]) -> list[Reply[Any]]:
            begin = lambda i: self._complete(prompts[i], None, None, wishes)  # noqa: E731
            return self._all(begin, len(prompts), work)

        replies = await Work(run).result()
        return replies[0] if one else replies

    def stream_generate(
        self,
        prompt: Prompt,
        *,
        schema: Schema | None = None,
        images: Sequence[Any] | None = None,
        audio: Sequence[Any] | None = None,
        **options: Unpack[Options],
    ) -> Stream:
        """Continues plain text, or token ids, in pieces, as they come."""
        return Stream(self._complete(prompt, images, audio, Wishes(options, schema)))

    # Numbers

    def tokenize(self, text: str, *, begin: bool = True) -> list[int]:
        """Token ids of a text, after the one that begins a sequence if the model has one and ``begin``."""
        return self._engine.tokenize(text, begin)

    def detokenize(self, tokens: Sequence[int], *, keep_special: bool = False) -> str:
        """The text of token ids."""
        return self._engine.detokenize(list(tokens), keep_special)

    def logits(
        self, prompt: Prompt, *, last: bool = False
    ) -> numpy.typing.NDArray[numpy.float32]:
        """What the model says of each next token: a row after each token, or the last row alone.

        It waits until no answer is under way. Needs numpy.
        """
        import numpy

        ids = self.tokenize(prompt) if isinstance(prompt, str) else [int(id) for id in prompt]
        data, width = self._engine.logits(ids, not last)
        return numpy.frombuffer(data, numpy.float32).reshape(-1, width)

    @overload
    def embed(  # type: ignore[overload-overlap]
        self, text: str
    ) -> list[float]: ...

    @overload
    def embed(self, text: Sequence[str]) -> list[list[float]]: ...

    def embed(self, text: str | Sequence[str]) -> list[float] | list[list[float]]:
        """The embedding of a text, or of each: the mean of the last hidden rows of its tokens."""
        texts = [text] if isinstance(text, str) else list(text)
        answers: deque[_native.Answer] = deque()
        rows: list[list[float]] = []

        def take() -> None:
            row = answers.popleft().reply()[4]
            if row is None:
                raise make("internal_error", "no embedding was made")
            rows.append(row)

        for one in texts:
            if len(answers) >= self._window:
                take()
            answers.append(self._engine.embed(one))
        while answers:
            take()
        return rows[0] if isinstance(text, str) else rows

    async def aembed(self, text: str | Sequence[str]) -> list[float] | list[list[float]]:
        """The same as ``embed``, for ``await``."""
        return await Work(lambda _: self.embed(text)).result()

    # The rest

    def conversation(self, system: str | None = None, **options: Unpack[Options]) -> Conversation:
        """Begins a conversation, whose turns are kept."""
        return Conversation(self._engine.conversation(system), options)

    def chat_completion(
        self, messages: Sequence[Any], *, stream: bool = False, **options: Any
    ) -> dict[str, Any] | Iterator[dict[str, Any]]:
        """OpenAI's chat completion: its parameters in, its dicts out."""
        from ._openai import completion

        return completion(self, messages, stream, options)

    def forget(self) -> None:
        """Forgets all cached tokens that no answer uses."""
        self._engine.forget()


def _is_one(prompt: Any) -> bool:
    """Whether it is one prompt, not several."""
    return isinstance(prompt, str) or (len(prompt) > 0 and not _is_prompt(prompt[0]))


def _is_prompt(value: Any) -> bool:
    return isinstance(value, (str, Sequence)) or hasattr(value, "__array__") and value.ndim > 0


class Conversation:
    """A conversation whose turns are kept. It gives one answer at a time."""

    def __init__(self, native: _native.Conversation, options: Options) -> None:
        self._native = native
        self._options = options
        Wishes(options)

    def _wishes(self, options: Options, schema: Schema | None) -> Wishes:
        return Wishes({**self._options, **options}, schema)

    def _turn(
        self,
        given: Messages,
        images: Sequence[Any] | None,
        audio: Sequence[Any] | None,
        video: Sequence[Any] | None,
        wishes: Wishes,
        max_rounds: int,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> Turn:
        def ask(said: list[dict[str, Any]]) -> _native.Answer:
            shown = Shown()
            return self._native.answer(shown.json(said), shown.media, wishes.json)

        said = messages(given, images, audio, video)
        return Turn(lambda: ask(said), lambda _, results: ask(results), wishes, max_rounds, loop)

    def say(
        self,
        message: Messages,
        *,
        schema: Schema | None = None,
        images: Sequence[Any] | None = None,
        audio: Sequence[Any] | None = None,
        video: Sequence[Any] | None = None,
        max_rounds: int = MAX_ROUNDS,
        **options: Unpack[Options],
    ) -> Reply[Any]:
        """Says something, and waits for the answer. If that fails, nothing was said."""
        wishes = self._wishes(options, schema)
        return self._turn(message, images, audio, video, wishes, max_rounds).reply()

    async def asay(
        self,
        message: Messages,
        *,
        schema: Schema | None = None,
        images: Sequence[Any] | None = None,
        audio: Sequence[Any] | None = None,
        video: Sequence[Any] | None = None,
        max_rounds: int = MAX_ROUNDS,
        **options: Unpack[Options],
    ) -> Reply[Any]:
        """The same as ``say``, for ``await``."""
        wishes = self._wishes(options, schema)

        def run(work: Work[Reply[Any]]) -> Reply[Any]:
            turn = self._turn(message, images, audio, video, wishes, max_rounds, work.loop)
            work.add(turn)
            return turn.reply()

        return await Work(run).result()

    def stream(
        self,
        message: Messages,
        *,
        schema: Schema | None = None,
        images: Sequence[Any] | None = None,
        audio: Sequence[Any] | None = None,
        video: Sequence[Any] | None = None,
        max_rounds: int = MAX_ROUNDS,
        **options: Unpack[Options],
    ) -> Stream:
        """Says something, and gives the answer in pieces. What was said until the loop is left stays."""
        wishes = self._wishes(options, schema)
        return Stream(self._turn(message, images, audio, video, wishes, max_rounds))

    def astream(
        self,
        message: Messages,
        *,
        schema: Schema | None = None,
        images: Sequence[Any] | None = None,
        audio: Sequence[Any] | None = None,
        video: Sequence[Any] | None = None,
        max_rounds: int = MAX_ROUNDS,
        **options: Unpack[Options],
    ) -> AsyncStream:
        """The same as ``stream``, for ``async for``."""
        wishes = self._wishes(options, schema)
        return AsyncStream(
            lambda loop: Stream(
                self._turn(message, images, audio, video, wishes, max_rounds, loop)
            )
        )

    def tool_result(self, id: str, result: str, name: str | None = None) -> dict[str, Any]:
        """The message that tells what a tool returned; give it to ``say`` or ``stream``."""
        message = {"role": "tool", "tool_call_id": id, "content": result}
        return message if name is None else {**message, "name": name}

    def regenerate(self, **options: Unpack[Options]) -> Reply[Any]:
        """Answers the last question once more, in place of what was answered."""
        wishes = self._wishes(options, None)
        return Turn(lambda: self._native.regenerate(wishes.json), None, wishes).reply()

    @property
    def messages(self) -> list[dict[str, Any]]:
        """What was said, without the instructions. Media are bytes, as far as they are known."""
        text, bytes_of = self._native.messages()
        said: list[dict[str, Any]] = json.loads(text)
        for message, shown in zip(said, bytes_of):
            left = iter(shown)
            parts = message.get("content")
            for part in parts if isinstance(parts, list) else ():
                if part["type"] != "text":
                    part[part["type"]] = next(left, None)
        return said

    @messages.setter
    def messages(self, given: Messages) -> None:
        shown = Shown()
        said = shown.json(messages(given)) if given else "[]"
        self._native.replace(said, shown.media)

    @property
    def system(self) -> str | None:
        """The instructions, if there are any."""
        return self._native.system

    @system.setter
    def system(self, text: str | None) -> None:
        self._native.set_system(text)

    def truncate(self, length: int) -> None:
        """Keeps the first messages, so many."""
        self._native.truncate(length)

    def clear(self) -> None:
        """Forgets what was said."""
        self._native.clear()

    def count_tokens(self) -> int:
        """Tokens of what was said, as a prompt."""
        return self._native.count_tokens()

    def fork(self) -> Conversation:
        """Another conversation that goes on from here."""
        return Conversation(self._native.fork(), self._options)

    def save(self, path: str | os.PathLike[str]) -> int:
        """Writes it to a file, and beside it what was computed of it. Returns how many tokens those were."""
        return self._native.save(path)

    def resume(self, path: str | os.PathLike[str]) -> int:
        """Goes on with what ``save`` wrote. Returns how many tokens need not be computed again."""
        return self._native.resume(path)
