"""What schemathesis can't guess from `/openapi.json`: the model's name and what a conversation is.

Half of the requests are left as they were generated; the others get a model that is served and something
to answer, so that they come past the first check.
"""

import random

import schemathesis

MESSAGES = [
    [{"role": "user", "content": "Hi"}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": [{"type": "text", "text": "Hi"}]}],
    [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello!"}, {"role": "user", "content": ""}],
]
TEXTS = {"prompt": "A fox", "input": "A fox", "content": "A fox"}
#: No answer may take long.
LENGTHS = ("max_tokens", "max_completion_tokens", "max_output_tokens")


def known(case):
    """The fields that the route describes. Others are refused before all else."""
    root = case.operation.schema.raw_schema
    operation = root["paths"][case.operation.path][case.operation.method.lower()]
    name = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"].split("/")[-1]
    return root["components"]["schemas"][name]["properties"]


@schemathesis.hook
def before_call(context, case, kwargs):
    if not isinstance(case.body, dict):
        return
    dice = random.Random(repr(case.body))
    for name in LENGTHS:
        if isinstance(case.body.get(name), int):
            case.body[name] = min(case.body[name], 4)
    if dice.random() < 0.5:
        return
    fields = known(case)
    case.body = {name: value for name, value in case.body.items() if name in fields}
    case.body["model"] = "pebble"
    if "messages" in fields:
        case.body["messages"] = dice.choice(MESSAGES)
    if "max_tokens" in fields:
        case.body.setdefault("max_tokens", 4)
    for name, text in TEXTS.items():
        if name in fields and dice.random() < 0.5:
            case.body[name] = text
