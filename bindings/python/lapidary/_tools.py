"""Tools: Python functions as declarations, and their calls."""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import inspect
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from ._errors import make
from ._messages import dumps
from ._types import ToolCall

Tool: TypeAlias = "Callable[..., Any] | Mapping[str, Any]"
"""A function with type hints, or a declaration in OpenAI's words."""

_PLAIN: dict[Any, dict[str, Any]] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    type(None): {"type": "null"},
    list: {"type": "array"},
    dict: {"type": "object"},
    Any: {},
    inspect.Parameter.empty: {},
}


def schema_of(hint: Any) -> dict[str, Any]:
    """The JSON schema of a type hint."""
    if isinstance(hint, type) and hasattr(hint, "model_json_schema"):
        return dict(hint.model_json_schema())
    try:
        if hint in _PLAIN:
            return dict(_PLAIN[hint])
    except TypeError:
        pass
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        schema = schema_of(arguments[0])
        said = [word for word in arguments[1:] if isinstance(word, str)]
        return {**schema, "description": " ".join(said)} if said else schema
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [schema_of(argument) for argument in arguments]}
    if origin is typing.Literal:
        return {"enum": list(arguments)}
    if origin in (list, set, frozenset, Sequence, typing.Sequence):
        return {"type": "array", "items": schema_of(arguments[0]) if arguments else {}}
    if origin is tuple:
        items = [schema_of(argument) for argument in arguments if argument is not ...]
        if len(arguments) == 2 and arguments[1] is ...:
            return {"type": "array", "items": items[0]}
        return {"type": "array", "prefixItems": items, "minItems": len(items), "items": False}
    if origin in (dict, Mapping, typing.Mapping):
        return {
            "type": "object",
            "additionalProperties": schema_of(arguments[1]) if arguments else {},
        }
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return {"enum": [member.value for member in hint]}
    if dataclasses.is_dataclass(hint):
        hints = typing.get_type_hints(hint, include_extras=True)
        missing = dataclasses.MISSING
        return _object(
            {field.name: hints[field.name] for field in dataclasses.fields(hint)},
            {
                field.name
                for field in dataclasses.fields(hint)
                if field.default is missing and field.default_factory is missing
            },
        )
    if typing.is_typeddict(hint):
        hints = typing.get_type_hints(hint, include_extras=True)
        return _object(hints, set(hint.__required_keys__))
    raise make("invalid_argument", f"{hint!r} has no JSON schema; declare the tool as a dict")


def _object(hints: Mapping[str, Any], required: set[str]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {name: schema_of(hint) for name, hint in hints.items()},
        "required": [name for name in hints if name in required],
        "additionalProperties": False,
    }


def _described(doc: str) -> tuple[str, dict[str, str]]:
    """What a docstring says of a function, and of its arguments."""
    what = doc.partition("\n\n")[0]
    section = re.search(r"^(?:Args|Arguments|Parameters):\n((?:[ \t]+.*\n?)+)", doc, re.MULTILINE)
    line = r"^\s+\*{0,2}(\w+)(?:\s*\([^)]*\))?:\s*(.+)$"
    found = re.findall(line, section[1] if section else "", re.MULTILINE)
    return " ".join(what.split()), dict(found)


def declaration(tool: Tool) -> dict[str, Any]:
    """A tool in OpenAI's words."""
    if isinstance(tool, Mapping):
        if "function" in tool:
            return dict(tool)
        if "name" in tool:
            return {"type": "function", "function": dict(tool)}
        raise make("invalid_argument", "a tool is a function, or a dict with a `function` or `name`")
    if not callable(tool):
        raise make("invalid_argument", f"{tool!r} is neither a function nor a declaration of one")
    parameters = inspect.signature(tool).parameters
    function = tool if inspect.isroutine(tool) else type(tool).__call__
    hints = typing.get_type_hints(function, include_extras=True)
    what, words = _described(inspect.getdoc(tool) or "")
    properties: dict[str, Any] = {}
    required: list[str] = []
    for name, parameter in parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        properties[name] = schema_of(hints.get(name, Any))
        if name in words:
            properties[name].setdefault("description", words[name])
        if parameter.default is parameter.empty:
            required.append(name)
    return {
        "type": "function",
        "function": {
            "name": _name(tool),
            "description": what,
            "parameters": {
                "type": "object",
                "properties": properties,
                "required": required,
                "additionalProperties": False,
            },
        },
    }


def _name(tool: Callable[..., Any]) -> str:
    return str(getattr(tool, "__name__", type(tool).__name__))


def functions(tools: Sequence[Tool]) -> dict[str, Callable[..., Any]]:
    """The functions among tools, by name."""
    return {_name(tool): tool for tool in tools if not isinstance(tool, Mapping)}


def _value(hint: Any, value: Any) -> Any:
    """An argument as the function wants it."""
    if typing.get_origin(hint) is typing.Annotated:
        hint = typing.get_args(hint)[0]
    if isinstance(hint, type):
        if hasattr(hint, "model_validate"):
            return hint.model_validate(value)
        if issubclass(hint, enum.Enum):
            return hint(value)
        if dataclasses.is_dataclass(hint) and isinstance(value, Mapping):
            return hint(**value)
        if hint is float and isinstance(value, int):
            return float(value)
    return value


def call(
    function: Callable[..., Any],
    asked: ToolCall,
    loop: asyncio.AbstractEventLoop | None,
) -> str:
    """Calls a tool, and returns what the model is told. A coroutine runs in ``loop``, or alone."""
    routine = function if inspect.isroutine(function) else type(function).__call__
    hints = typing.get_type_hints(routine, include_extras=True)
    arguments = {
        name: _value(hints.get(name, Any), value) for name, value in asked.arguments.items()
    }
    result = function(**arguments)
    if inspect.iscoroutine(result):
        if loop is None:
            result = asyncio.run(result)
        else:
            result = asyncio.run_coroutine_threadsafe(result, loop).result()
    if isinstance(result, str):
        return result
    if hasattr(result, "model_dump_json"):
        return str(result.model_dump_json())
    if dataclasses.is_dataclass(result) and not isinstance(result, type):
        result = dataclasses.asdict(result)
    return dumps(result)
