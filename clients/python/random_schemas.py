"""Random JSON schemas: the same ones for the same seed."""

import random

WORDS = ["name", "age", "tags", "size", "a b", "naïve", "ключ", "x-1", "", "$id2", "quo\"te", "back\\slash"]
PATTERNS = ["^[a-z]{1,5}$", "^\\d{3}-\\d{4}$", "[aeiou]", "^(foo|bar)+$", "^\\S+$", "^.{2,4}$", "x$"]
FORMATS = ["date", "time", "date-time", "email", "uuid", "ipv4", "hostname", "nobody-knows-it"]
VALUES = [None, True, 0, -1, 2.5, 1e3, "", "two words", "ü\n\"", [], [1, "x"], {}, {"a": [None]}]


def schema(rng: random.Random, depth: int = 3):
    """A schema that most often has an answer."""
    leaves = [string, integer, number, boolean, null, enum, const]
    inner = [array, prefix, obj, obj, obj, any_of, one_of, all_of, dictionary, nullable, reference]
    made = rng.choice(leaves if depth == 0 or rng.random() < 0.35 else inner)(rng, depth)
    if isinstance(made, dict) and rng.random() < 0.15:
        made = {**made, "title": "T", "description": "what it is", "default": None}
    return made


def string(rng, _):
    made = {"type": "string"}
    kind = rng.randrange(6)
    if kind < 2:
        low = rng.randrange(4)
        made |= {"minLength": low, "maxLength": low + rng.randrange(9)}
    elif kind == 2:
        made["pattern"] = rng.choice(PATTERNS)
    elif kind == 3:
        made["format"] = rng.choice(FORMATS)
    else:
        made["maxLength"] = rng.randrange(1, 20)
    return made


def bounds(rng, made, whole):
    low = rng.choice([-1000, -7, -1, 0, 1, 3, 99]) if whole else rng.choice([-10.5, -0.25, 0, 0.1, 7.5])
    if rng.random() < 0.5:
        made[rng.choice(["minimum", "exclusiveMinimum"])] = low
    if rng.random() < 0.5:
        made[rng.choice(["maximum", "exclusiveMaximum"])] = low + rng.choice([2, 10, 12345])
    return made


def integer(rng, _):
    made = bounds(rng, {"type": "integer"}, True)
    if rng.random() < 0.2:
        made["multipleOf"] = rng.choice([1, 2, 5, 10])
    return made


def number(rng, _):
    return bounds(rng, {"type": "number"}, False)


def boolean(rng, _):
    return {"type": "boolean"}


def null(rng, _):
    return {"type": "null"}


def enum(rng, _):
    return {"enum": rng.sample(VALUES, rng.randrange(1, 5))}


def const(rng, _):
    return {"const": rng.choice(VALUES)}


def array(rng, depth):
    made = {"type": "array", "items": schema(rng, depth - 1), "maxItems": rng.randrange(1, 5)}
    if rng.random() < 0.5:
        made["minItems"] = rng.randrange(0, made["maxItems"] + 1)
    return made


def prefix(rng, depth):
    items = [schema(rng, depth - 1) for _ in range(rng.randrange(1, 4))]
    rest = rng.choice([False, False, {"type": "boolean"}])
    return {"type": "array", "prefixItems": items, "items": rest, "minItems": len(items),
            "maxItems": len(items) + (2 if rest else 0)}


def obj(rng, depth):
    names = rng.sample(WORDS, rng.randrange(0, 5))
    made = {"type": "object", "properties": {name: schema(rng, depth - 1) for name in names},
            "required": [name for name in names if rng.random() < 0.7]}
    rng.shuffle(made["required"])
    made["additionalProperties"] = rng.choice([False, False, False, {"type": "integer", "minimum": 0,
                                                                    "maximum": 9}])
    if rng.random() < 0.1:
        made["minProperties"] = len(made["required"])
    return made


def dictionary(rng, depth):
    made = {"type": "object", "additionalProperties": schema(rng, depth - 1)}
    kind = rng.randrange(4)
    if kind == 0:
        made["patternProperties"] = {"^x": {"type": "integer", "minimum": 0, "maximum": 9}}
    elif kind == 1:
        made["maxProperties"] = rng.randrange(0, 4)
    elif kind == 2:
        made["propertyNames"] = {"pattern": "^[a-z]+$"}
    return made


def any_of(rng, depth):
    return {"anyOf": [schema(rng, depth - 1) for _ in range(rng.randrange(1, 4))]}


def one_of(rng, depth):
    return {"oneOf": [schema(rng, depth - 1) for _ in range(rng.randrange(1, 4))]}


def all_of(rng, depth):
    parts = [{"type": "object", "properties": {name: schema(rng, depth - 1)}, "required": [name]}
             for name in rng.sample(WORDS, 2)]
    return {"allOf": parts} if rng.random() < 0.7 else {"allOf": [schema(rng, depth - 1)]}


def nullable(rng, depth):
    return {**string(rng, depth), "type": ["string", "null"]}


def reference(rng, depth):
    made = {"$ref": "#/$defs/it", "$defs": {"it": schema(rng, 0)}}
    if rng.random() < 0.5:
        node = {"type": "object", "properties": {"next": {"anyOf": [{"type": "null"},
                                                                    {"$ref": "#/$defs/node"}]}},
                "required": ["next"], "additionalProperties": False}
        made = {"$ref": "#/$defs/node", "$defs": {"node": node}}
    return made


def rooted(rng: random.Random):
    """A schema with its definitions at its root, where `#/$defs/…` finds them."""
    made = schema(rng)
    definitions = {}

    def lift(part, path):
        if isinstance(part, dict):
            if "$defs" in part and "$ref" in part:
                name = part["$ref"].rsplit("/", 1)[1]
                unique = f"{name}{len(definitions)}"
                inner = part.pop("$defs")[name]
                definitions[unique] = None
                part["$ref"] = f"#/$defs/{unique}"
                rename(inner, f"#/$defs/{name}", f"#/$defs/{unique}")
                definitions[unique] = inner
            for value in list(part.values()):
                lift(value, path)
        elif isinstance(part, list):
            for value in part:
                lift(value, path)

    def rename(part, old, new):
        if isinstance(part, dict):
            if part.get("$ref") == old:
                part["$ref"] = new
            for value in part.values():
                rename(value, old, new)
        elif isinstance(part, list):
            for value in part:
                rename(value, old, new)

    lift(made, "#")
    return {**made, "$defs": definitions} if definitions else made
