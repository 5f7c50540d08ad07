"""How an answer is to be, and how a model is loaded."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, TypedDict

from ._errors import make
from ._messages import dumps
from ._tools import Tool, declaration, functions

Schema: TypeAlias = "Mapping[str, Any] | bool | type[Any] | Any"


class Options(TypedDict, total=False):
    """How an answer is to be. What is not given is as the model's makers recommend."""

    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    repetition_penalty: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    seed: int | None
    logit_bias: Mapping[int, float] | None
    max_tokens: int | None
    stop: str | Sequence[str] | None
    stop_token_ids: Sequence[int] | None
    ignore_eos: bool
    keep_special: bool
    thinking: bool | None
    thinking_budget: int | None
    tools: Sequence[Tool] | None
    tool_choice: str | Mapping[str, Any] | None
    parallel_tool_calls: bool
    json: bool
    regex: str | None
    grammar: str | None
    """In llguidance's variant of Lark."""
    deadline: float | None
    """Seconds after which the answer ends with what there is."""
    logprobs: int | bool | None
    """How likely each token was, and so many that were likeliest."""
    prompt_logprobs: int | None
    progress: bool
    template_variables: Mapping[str, Any] | None
    scope: int
    """Only answers of the same scope share cached tokens."""
    image_tokens: int | None
    pan_and_scan: bool


class LoadOptions(TypedDict, total=False):
    """How a model is loaded. Every choice has a good default."""

    backend: str | None
    device: str | int | None
    context: int | None
    sequences: int | None
    """Answers at once; else 4."""
    kv: str | None
    """``f32``, ``bf16`` or ``int8``."""
    kv_memory: int | None
    precision: str | None
    """``fast`` or ``exact``."""
    threads: int | None
    chunk: int | None
    text_only: bool
    draft: str | None
    """``auto``, ``off``, ``lookup``, ``model``, or the path or name of a drafter."""
    pack_cache: str | None
    queue: int | None
    mmproj: str | None
    quant: str | None
    no_mmap: bool


def _check(given: Mapping[str, Any], known: type) -> dict[str, Any]:
    names = known.__annotations__
    for name in given:
        if name not in names:
            raise TypeError(f"there is no option `{name}`; there are {', '.join(names)}")
    return {name: value for name, value in given.items() if value is not None}


def load_json(given: Mapping[str, Any]) -> str:
    """Options of loading, as the library reads them."""
    options = _check(given, LoadOptions)
    for name in ("device", "pack_cache", "mmproj", "quant", "draft"):
        if name in options:
            options[name] = str(options[name])
    return dumps(options)


class Wishes:
    """Options that were read."""

    def __init__(self, given: Mapping[str, Any], schema: Schema | None = None) -> None:
        options = _check(given, Options)
        self.functions: dict[str, Callable[..., Any]] = {}
        self.validate: Callable[[str], Any] | None = None
        if isinstance(options.get("stop"), str):
            options["stop"] = [options["stop"]]
        self.stop: list[str] = list(options.get("stop", []))
        if "tools" in options:
            tools = list(options["tools"])
            self.functions = functions(tools)
            options["tools"] = [declaration(tool) for tool in tools]
        if "logit_bias" in options:
            bias = options["logit_bias"]
            options["logit_bias"] = [[int(token), value] for token, value in bias.items()]
        if "logprobs" in options:
            if options["logprobs"] is False:
                del options["logprobs"]
            else:
                options["logprobs"] = int(options["logprobs"] is not True and options["logprobs"])
        if options.pop("json", False):
            options["json_object"] = True
            self.validate = json.loads
        if "grammar" in options:
            options["lark"] = options.pop("grammar")
        if schema is not None:
            options["schema"], self.validate = _schema(schema)
        for name in ("stop_token_ids", "template_variables"):
            if name in options:
                kind = list if name == "stop_token_ids" else dict
                options[name] = kind(options[name])
        self.json = dumps(options)


def _schema(schema: Schema) -> tuple[Any, Callable[[str], Any]]:
    """A schema as JSON, and what makes an object of an answer."""
    if isinstance(schema, (Mapping, bool)):
        return schema, json.loads
    if hasattr(schema, "model_json_schema") and hasattr(schema, "model_validate_json"):
        return schema.model_json_schema(), schema.model_validate_json
    # A pydantic TypeAdapter.
    if hasattr(schema, "json_schema") and hasattr(schema, "validate_json"):
        return schema.json_schema(), schema.validate_json
    raise make("invalid_argument", "a schema is a dict, a pydantic class or a TypeAdapter")
