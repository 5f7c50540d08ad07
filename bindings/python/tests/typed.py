"""What mypy --strict must make of the package's types. It is not run."""

from pydantic import BaseModel

import lapidary


class Fox(BaseModel):
    """A schema."""

    name: str


def sync(model: lapidary.Model) -> tuple[str, Fox, list[float], list[str]]:
    """Replies know the class of their schema."""
    reply = model.chat("Hello.", temperature=0.0, stop=["a"], max_tokens=3)
    fox: Fox = model.chat("Hello.", schema=Fox).parsed
    for chunk in model.stream("Hello.", seed=1):
        print(chunk.text, chunk.generation_tps)
    many: list[lapidary.Reply[object]] = list(model.generate(["a", "b"]))
    one = model.generate("a")
    rows = model.embed(["a"])
    return reply.text, fox, rows[0], [one.text, *(reply.text for reply in many)]


async def later(model: lapidary.Model) -> Fox:
    """The same for await."""
    async for chunk in model.astream("Hello."):
        print(chunk.text)
    return (await model.achat("Hello.", schema=Fox)).parsed
