"""OpenAI's words for questions and answers, as dicts."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from . import _native
from ._errors import LapidaryError, make
from ._types import Chunk, Logprob, Reply, ToolCall

if TYPE_CHECKING:
    from ._model import Model

_SAME = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
    "stop",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
)
_IGNORED = ("model", "stream", "stream_options", "user", "metadata", "store", "n", "safety_identifier")
_EFFORT = {"none": 0, "minimal": 256, "low": 1024, "medium": 4096, "high": 16384}


def options(body: Mapping[str, Any], is_chat: bool = True) -> dict[str, Any]:
    """OpenAI's parameters in this package's names. One that would change the answer and is not known is
    refused."""
    found: dict[str, Any] = {}
    for name, value in body.items():
        if value is None or name in _IGNORED or name in ("messages", "prompt"):
            continue
        if name in _SAME:
            found[name] = value
        elif name in ("max_tokens", "max_completion_tokens"):
            found["max_tokens"] = value
        elif name == "logit_bias":
            found["logit_bias"] = {int(token): bias for token, bias in value.items()}
        elif name == "logprobs" and is_chat:
            if value:
                found["logprobs"] = body.get("top_logprobs") or 0
        elif name == "top_logprobs" and is_chat:
            pass
        elif name == "logprobs":
            found["logprobs"] = value
        elif name == "reasoning_effort":
            if value not in _EFFORT:
                raise make("invalid_argument", f"reasoning_effort is none to high, not `{value}`")
            found["thinking_budget"] = _EFFORT[value]
        elif name == "response_format":
            _format(value, found)
        else:
            raise make("unsupported", f"the parameter `{name}` is not supported here")
    if body.get("n", 1) not in (None, 1):
        raise make("unsupported", "n: one answer a request is given")
    if isinstance(found.get("logprobs"), bool):
        raise make("invalid_argument", "logprobs is a number here")
    return found


def _format(value: Mapping[str, Any], found: dict[str, Any]) -> None:
    kind = value.get("type")
    if kind == "json_object":
        found["json"] = True
    elif kind == "json_schema":
        found["schema"] = value["json_schema"]["schema"]
    elif kind != "text":
        raise make("invalid_argument", f"response_format: `{kind}` is not known")


def usage(prompt: int, cached: int, new: int) -> dict[str, Any]:
    """What it took, in tokens."""
    return {
        "prompt_tokens": prompt,
        "completion_tokens": new,
        "total_tokens": prompt + new,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def _usage(reply: Reply[Any]) -> dict[str, Any]:
    return usage(reply.stats.prompt_tokens, reply.stats.reused_tokens, reply.stats.new_tokens)


def _reason(reason: str | None) -> str | None:
    return "length" if reason == "deadline" else "stop" if reason == "cancelled" else reason


def _calls(calls: Sequence[ToolCall], numbered: int | None = None) -> list[dict[str, Any]]:
    found = []
    for i, call in enumerate(calls):
        function = {"name": call.name, "arguments": json.dumps(call.arguments)}
        one: dict[str, Any] = {"id": call.id, "type": "function", "function": function}
        found.append(one if numbered is None else {"index": numbered + i, **one})
    return found


def _logprobs(model: Model, found: Sequence[Logprob]) -> dict[str, Any] | None:
    def spelled(token: int, logprob: float) -> dict[str, Any]:
        text = model.detokenize([token], keep_special=True)
        return {"token": text, "logprob": logprob, "bytes": list(text.encode())}

    if not found:
        return None
    content = [
        {**spelled(one.token, one.logprob), "top_logprobs": [spelled(*top) for top in one.top]}
        for one in found
    ]
    return {"content": content, "refusal": None}


class Head:
    """What all objects of one answer begin with."""

    def __init__(self, kind: str, model: str) -> None:
        prefix = "cmpl" if kind == "text_completion" else "chatcmpl"
        self.head = {
            "id": f"{prefix}-{uuid.uuid4().hex}",
            "object": kind,
            "created": int(time.time()),
            "model": model,
        }

    def of(self, **more: Any) -> dict[str, Any]:
        return {**self.head, **more}


def chat_object(model: Model, name: str, reply: Reply[Any]) -> dict[str, Any]:
    """A whole answer."""
    message: dict[str, Any] = {"role": "assistant", "content": reply.text or None, "refusal": None}
    if reply.thinking:
        message["reasoning_content"] = reply.thinking
    if reply.tool_calls:
        message["tool_calls"] = _calls(reply.tool_calls)
    else:
        message["content"] = reply.text
    choice = {
        "index": 0,
        "message": message,
        "logprobs": _logprobs(model, reply.logprobs),
        "finish_reason": _reason(reply.finish_reason),
    }
    return Head("chat.completion", name).of(choices=[choice], usage=_usage(reply))


class ChatChunks:
    """The pieces of an answer, one after another."""

    def __init__(self, model: Model, name: str, with_usage: bool) -> None:
        self._model = model
        self._head = Head("chat.completion.chunk", name)
        self._with_usage = with_usage
        self._calls = 0
        self._began = False

    def _piece(
        self, delta: dict[str, Any], logprobs: Any = None, reason: str | None = None
    ) -> dict[str, Any]:
        if not self._began:
            self._began = True
            delta = {"role": "assistant", "content": "", **delta}
        choice = {"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
        more = {"usage": None} if self._with_usage else {}
        return self._head.of(choices=[choice], **more)

    def of(self, chunk: Chunk, reply: Reply[Any] | None) -> Iterator[dict[str, Any]]:
        """What is sent for a chunk; with ``reply`` after the last."""
        delta: dict[str, Any] = {}
        if chunk.text:
            delta["content"] = chunk.text
        if chunk.thinking:
            delta["reasoning_content"] = chunk.thinking
        if chunk.tool_call is not None:
            delta["tool_calls"] = _calls([chunk.tool_call], self._calls)
            self._calls += 1
        logprobs = _logprobs(self._model, chunk.logprobs)
        if delta or logprobs:
            yield self._piece(delta, logprobs)
        if chunk.finish_reason is not None:
            yield self._piece({}, None, _reason(chunk.finish_reason))
            if self._with_usage and reply is not None:
                yield self._head.of(choices=[], usage=_usage(reply))


def text_object(name: str, replies: Sequence[Reply[Any]]) -> dict[str, Any]:
    """Whole continuations of plain text."""
    choices = [
        {
            "index": i,
            "text": reply.text,
            "logprobs": None,
            "finish_reason": _reason(reply.finish_reason),
        }
        for i, reply in enumerate(replies)
    ]
    stats = [reply.stats for reply in replies]
    took = usage(
        sum(s.prompt_tokens for s in stats),
        sum(s.reused_tokens for s in stats),
        sum(s.new_tokens for s in stats),
    )
    return Head("text_completion", name).of(choices=choices, usage=took)


def completion(
    model: Model, messages: Sequence[Any], stream: bool, given: Mapping[str, Any]
) -> dict[str, Any] | Iterator[dict[str, Any]]:
    """OpenAI's chat completion of a model in this process."""
    found = options(given)
    schema = found.pop("schema", None)
    name = model.info.name
    if not stream:
        reply = model.chat(messages, schema=schema, max_rounds=0, **found)
        return chat_object(model, name, reply)
    usage_too = bool((given.get("stream_options") or {}).get("include_usage"))

    def pieces() -> Iterator[dict[str, Any]]:
        chunks = ChatChunks(model, name, usage_too)
        with model.stream(messages, schema=schema, max_rounds=0, **found) as pieces:
            for chunk in pieces:
                yield from chunks.of(chunk, pieces.reply)

    return pieces()


_TABLE = {row["code"]: row for row in json.loads(_native.error_table())}


def error(e: BaseException) -> tuple[int, dict[str, Any]]:
    """The HTTP status of an error, and OpenAI's object for it."""
    code = e.code if isinstance(e, LapidaryError) else "internal_error"
    if isinstance(e, (TypeError, KeyError, ValueError)) and not isinstance(e, LapidaryError):
        code = "invalid_argument"
    row = _TABLE.get(code, _TABLE["internal_error"])
    said = {"message": str(e), "type": row["type"], "param": None, "code": code}
    return row["http"], {"error": said}
