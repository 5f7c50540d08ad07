"""Holds answers to many schemas: each one validates, or the server says 400 and why.

    schemas.py --suite FOLDER   the schemas of a JSON-Schema-Test-Suite draft, and random ones
"""

import argparse
import collections
import concurrent.futures
import json
import os
import pathlib
import random
import re
import sys
import time
import urllib.error
import urllib.request

import jsonschema
import referencing.exceptions
from random_schemas import rooted

URL = os.environ["LAPIDARY_URL"]
MAX_TOKENS = 250


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--suite", type=pathlib.Path)
    arguments.add_argument("--random", type=int, default=200)
    arguments.add_argument("--seed", type=int, default=1)
    arguments = arguments.parse_args()
    cases = []
    if arguments.suite:
        cases += of_suite(arguments.suite)
    for i in range(arguments.random):
        cases.append((f"random {arguments.seed}.{i}", rooted(random.Random(f"{arguments.seed}.{i}"))))
    start = time.monotonic()
    jobs = [(name, schema, way) for name, schema in cases for way in (answered, called)]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        outcomes = list(pool.map(lambda job: outcome(*job), jobs))
    counts = collections.Counter((job[2].__name__, kind) for job, (kind, _) in zip(jobs, outcomes))
    for (way, kind), n in sorted(counts.items()):
        print(f"{way}: {kind} {n}")
    print(f"{len(cases)} schemas, {len(jobs)} requests in {time.monotonic() - start:.0f} s")
    faults = [(job, said) for job, (kind, said) in zip(jobs, outcomes) if kind == "FAULT"]
    for (name, schema, way), said in faults:
        print(f"FAULT {name}, {way.__name__}: {json.dumps(schema)}\n  {said}")
    missing = [way.__name__ for way in (answered, called) if not counts[way.__name__, "valid"]]
    if missing:
        print(f"FAULT nothing was valid: {missing}")
    sys.exit(bool(faults or missing))


def of_suite(folder):
    """Every schema of a draft, once."""
    seen = {}
    for path in sorted(folder.rglob("*.json")):
        for group in json.loads(path.read_text(encoding="utf-8")):
            seen.setdefault(json.dumps(group["schema"]), f"{path.stem}: {group['description']}")
    return [(name, json.loads(text)) for text, name in seen.items()]


def ask(body):
    body = {"model": "pebble", "temperature": 1, "seed": 7, "max_tokens": MAX_TOKENS,
            "messages": [{"role": "user", "content": "Tell me about a fox."}], **body}
    request = urllib.request.Request(
        f"{URL}/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:
            return reply.status, json.load(reply)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def answered(schema):
    """The answer is held to the schema."""
    status, reply = ask({"response_format": {
        "type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": schema}}})
    if status != 200:
        return status, reply, []
    choice = reply["choices"][0]
    return status, choice["finish_reason"], [choice["message"]["content"]]


def called(schema):
    """Arguments of a tool that must be called are: an object with a field of the schema."""
    status, reply = ask({"tool_choice": "required", "tools": [{"type": "function", "function": {
        "name": "tell", "strict": True, "parameters": field(schema)}}]})
    if status != 200:
        return status, reply, []
    choice = reply["choices"][0]
    calls = choice["message"].get("tool_calls") or []
    texts = [call["function"]["arguments"] for call in calls]
    if choice["finish_reason"] == "length" and reply["usage"]["completion_tokens"] < MAX_TOKENS:
        return status, "half a call", texts
    return status, choice["finish_reason"], texts


def field(schema):
    parameters = {"type": "object", "properties": {"it": schema}, "required": ["it"],
                  "additionalProperties": False}
    if isinstance(schema, dict) and "$defs" in schema and "$id" not in schema:
        inner = {key: value for key, value in schema.items() if key != "$defs"}
        parameters |= {"properties": {"it": inner}, "$defs": schema["$defs"]}
    return parameters


def outcome(name, schema, way):
    try:
        status, reason, texts = way(schema)
    except Exception as error:
        return "FAULT", repr(error)
    if status == 400:
        message = reason["error"]["message"]
        return ("refused", message) if message else ("FAULT", "a 400 without a reason")
    if status != 200:
        return "FAULT", f"{status}: {reason}"
    if reason == "length":
        return "cut off", texts
    if reason == "half a call":
        # Known: the grammar allows a name that stands twice in an object, and more than 32 levels; who
        # reads the call does not, so it ends there with `length`. Counted until that is mended.
        return "KNOWN: half a call, before its limit", texts
    if not texts:
        return "FAULT", f"nothing was said: {reason}"
    whole = field(schema) if way is called else schema
    validator = jsonschema.validators.validator_for(whole, jsonschema.Draft202012Validator)
    for text in texts:
        try:
            validator(whole).validate(json.loads(text, object_pairs_hook=once))
        except (ValueError, jsonschema.ValidationError) as error:
            return "FAULT", f"{text!r}: {str(error).splitlines()[0]}"
        except referencing.exceptions.Unresolvable as error:
            return "FAULT", f"{text!r} refers to nothing: {error!r}"
        except re.error:
            return "not checked, Python has no such pattern", texts
    return "valid", texts


def once(pairs):
    """An object, each of whose names stands there once."""
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError(f"a name stands there twice: {[name for name, _ in pairs]}")
    return made


if __name__ == "__main__":
    main()
