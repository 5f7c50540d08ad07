"""Messages to Gemma 4's chat text, in pieces that know whether the model wrote them.

`chat_template.jinja` says the same thing for everybody else; `check.py` holds the two together.
"""

Message = dict
Piece = tuple[str, bool]  # text with special tokens spelled out; True where the model must learn to write it

QUOTE = '<|"|>'


def value(v: object) -> str:
    """One argument or result in Gemma 4's notation."""
    if isinstance(v, bool):
        return "true" if v else "false"
    if isinstance(v, str):
        return QUOTE + v + QUOTE
    if isinstance(v, dict):
        return "{" + ",".join(f"{k}:{value(v[k])}" for k in sorted(v)) + "}"
    if isinstance(v, list):
        return "[" + ",".join(value(x) for x in v) + "]"
    return str(v)


def declaration(tool: dict) -> str:
    """One tool as the system turn shows it."""
    f = tool["function"]
    params = f["parameters"]
    props = []
    for name in sorted(params["properties"]):
        p = params["properties"][name]
        enum = f",enum:{value(p['enum'])}" if "enum" in p else ""
        props.append(f"{name}:{{description:{value(p['description'])}{enum},type:{value(p['type'].upper())}}}")
    required = ",".join(value(r) for r in params["required"])
    return (f"<|tool>declaration:{f['name']}{{description:{value(f['description'])},parameters:{{"
            f"properties:{{{','.join(props)}}},required:[{required}],type:{value('OBJECT')}}}}}<tool|>")


def call(name: str, arguments: dict) -> str:
    """One tool call as the model writes it."""
    body = ",".join(f"{k}:{value(arguments[k])}" for k in sorted(arguments))
    return f"<|tool_call>call:{name}{{{body}}}<tool_call|>"


def response(name: str, result: object) -> str:
    """What follows `<|tool_response>` when a tool has answered."""
    body = result if isinstance(result, dict) else {"value": result}
    inner = ",".join(f"{k}:{value(body[k])}" for k in sorted(body))
    return f"response:{name}{{{inner}}}<tool_response|>"


def content(message: Message, image: str) -> str:
    """A message's text; each picture part becomes `image`."""
    c = message.get("content") or ""
    if isinstance(c, str):
        return c.strip()
    return "".join(image if p["type"] == "image" else p["text"].strip() for p in c)


def pieces(messages: list[Message], tools: list[dict] | None = None, image: str = "<|image|>") -> list[Piece]:
    """The whole conversation. `image` is what a picture part expands to."""
    out: list[Piece] = [("<bos>", False)]
    if tools or messages[0]["role"] == "system":
        system = content(messages[0], image) if messages[0]["role"] == "system" else ""
        out.append(("<|turn>system\n" + system + "".join(declaration(t) for t in tools or []) + "<turn|>\n", False))
    rest = messages[1:] if messages[0]["role"] == "system" else messages
    in_model_turn = False
    for i, m in enumerate(rest):
        if m["role"] == "user":
            out.append(("<|turn>user\n" + content(m, image) + "<turn|>\n", False))
            in_model_turn = False
        elif m["role"] == "assistant":
            if not in_model_turn:
                out.append(("<|turn>model\n", False))
            in_model_turn = True
            if m.get("tool_calls"):
                calls = [t["function"] for t in m["tool_calls"]]
                out.append(("".join(call(f["name"], f["arguments"]) for f in calls) + "<|tool_response>", True))
                if i + 1 < len(rest):
                    out.append((response(calls[0]["name"], rest[i + 1]["content"]), False))
            else:
                out += [(content(m, image) + "<turn|>", True), ("\n", False)]
    return out


def prompt(messages: list[Message], tools: list[dict] | None = None, image: str = "<|image|>") -> str:
    """The text up to where the model must speak."""
    text = "".join(t for t, _ in pieces(messages, tools, image))
    return text if messages[-1]["role"] == "tool" else text + "<|turn>model\n"


def ask(question: str, answer: str, system: str | None = None) -> list[Message]:
    """One question with its answer."""
    head = [{"role": "system", "content": system}] if system else []
    return head + [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
