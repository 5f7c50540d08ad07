"""What comes back: replies, chunks, plans and facts."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from ._native import _Whole

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class ToolCall:
    """A tool that the model calls."""

    id: str
    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class Logprob:
    """How likely a token was, and the likeliest instead of it, by id."""

    token: int
    logprob: float
    top: list[tuple[int, float]]


@dataclass(frozen=True)
class Stats:
    """What an answer took."""

    prompt_tokens: int = 0
    reused_tokens: int = 0
    """Tokens of the prompt that were in the caches already."""
    new_tokens: int = 0
    """Tokens that were sampled, the one that ended the answer included."""
    first_token_seconds: float | None = None
    encode_seconds: float = 0.0
    """Seconds that images and audio took."""
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    prefill_tokens_per_second: float | None = None
    decode_tokens_per_second: float | None = None
    seed: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0


@dataclass(frozen=True)
class Reply(Generic[T]):
    """A whole answer. As a string it is its text."""

    text: str
    thinking: str
    tool_calls: list[ToolCall]
    tokens: list[int]
    """Its tokens, without the one that ended it."""
    logprobs: list[Logprob]
    prompt_logprobs: list[tuple[float, list[tuple[int, float]]] | None]
    finish_reason: str
    """``stop``, ``length``, ``tool_calls``, ``cancelled`` or ``deadline``."""
    stop_string: str | None
    """The stop string that ended it."""
    stats: Stats
    messages: list[dict[str, Any]] = field(default_factory=list)
    """What to add to the messages for the next turn: calls of tools, their results, the answer."""
    validate: Callable[[str], T] | None = field(default=None, repr=False, compare=False)

    def __str__(self) -> str:
        return self.text

    @property
    def parsed(self) -> T:
        """The text as what its schema says: JSON, or an object of the pydantic class that was given.

        An answer that was cut is a ``ValueError``.
        """
        if self.validate is None:
            raise ValueError("the answer was asked for without a schema")
        return self.validate(self.text)


@dataclass
class Chunk:
    """A piece of an answer while it comes. The names are those of mlx_lm, and some more."""

    text: str
    token: int
    """The last token of this piece; -1 before the first."""
    finish_reason: str | None
    """Given with the last chunk."""
    prompt_tokens: int
    prompt_tps: float
    generation_tokens: int
    generation_tps: float
    peak_memory: float
    """The most memory that this process took until now, in GB."""
    thinking: str = ""
    tool_call: ToolCall | None = None
    tokens: list[int] = field(default_factory=list)
    """All tokens of this piece."""
    logprobs: list[Logprob] = field(default_factory=list)
    progress: tuple[int, int] | None = None
    """Tokens of the prompt that were read, and all; told if ``progress`` was asked for."""


@dataclass(frozen=True)
class Plan:
    """What loading takes, and what was decided. As a string it is for people."""

    model: str
    backend: str
    device: str
    device_name: str
    passed_over: list[str]
    """Why each better backend was passed over."""
    context: int
    model_context: int
    sequences: int
    positions: int
    kv: str
    precision: str
    weight_bytes: int
    kv_bytes: int
    activation_bytes: int
    total_bytes: int
    fits: bool
    shortage: str | None
    """Why it does not fit, and what to do."""
    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class ModelInfo:
    """Facts about a model."""

    name: str
    modalities: list[str]
    """What it takes besides text."""
    context: int
    parameters: int
    vocab_size: int
    has_drafter: bool
    can_think: bool
    can_call_tools: bool
    quantised_weights: int
    notices: list[str]
    device: str = ""
    load_seconds: float = 0.0


@dataclass(frozen=True)
class Metrics:
    """What an engine does and has done."""

    open: int
    running: int
    waiting: int
    pages_in_use: int
    pages: int
    preempted: int
    finished: int
    cancelled: int
    failed: int
    prompt_tokens: int
    reused_tokens: int
    new_tokens: int


@dataclass(frozen=True)
class DownloadedModel:
    """A model on this machine."""

    name: str
    commit: str
    path: str
    bytes: int


@dataclass(frozen=True)
class KnownVariant:
    """One way to have a model."""

    name: str
    repo: str
    recipe: str | None
    is_default: bool
    is_drafter: bool
    download_bytes: int | None


@dataclass(frozen=True)
class KnownModel:
    """A released model."""

    name: str
    title: str
    parameters: int
    input: list[str]
    licence: str
    gated: bool
    variants: list[KnownVariant]


@dataclass(frozen=True)
class Backend:
    """A backend of this build, with its devices."""

    name: str
    is_auto: bool
    devices: list[dict[str, Any]]
    problem: str | None


def read(kind: Callable[..., R], values: Mapping[str, Any]) -> R:
    """An object of the values that it has."""
    known = {f.name for f in fields(kind)}  # type: ignore[arg-type]
    return kind(**{name: value for name, value in values.items() if name in known})


def tool_call(value: Mapping[str, Any]) -> ToolCall:
    """A call as the library tells it."""
    return read(ToolCall, value)


def reply(
    whole: _Whole,
    stop: list[str],
    validate: Callable[[str], Any] | None,
) -> Reply[Any]:
    """A reply as the library tells it."""
    text, tokens, logprobs, prompt_logprobs, _ = whole
    said = json.loads(text)
    finish = said["finish"] or {"reason": "cancelled", "stop_string": None, "stats": {}}
    calls = [tool_call(call) for call in said["tool_calls"]]
    number = finish["stop_string"]
    return Reply(
        text=said["text"],
        thinking=said["thinking"],
        tool_calls=calls,
        tokens=tokens,
        logprobs=[Logprob(t, l, top) for t, (l, top) in zip(tokens, logprobs)],
        prompt_logprobs=prompt_logprobs,
        finish_reason="tool_calls" if calls and finish["reason"] == "stop" else finish["reason"],
        stop_string=stop[number] if number is not None and number < len(stop) else None,
        stats=read(Stats, finish["stats"]),
        validate=validate,
    )


def assistant(reply: Reply[Any]) -> dict[str, Any]:
    """A reply as a message."""
    message: dict[str, Any] = {"role": "assistant", "content": reply.text}
    if reply.thinking:
        message["reasoning"] = reply.thinking
    if reply.tool_calls:
        message["content"] = reply.text or None
        message["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in reply.tool_calls
        ]
    return message
