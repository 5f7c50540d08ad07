"""OpenAI's API over Ray Serve.

Two deployments: one reads requests and writes answers, the other holds engines, so that the router sees
prompts when it chooses an engine. Requests are answered in the engine's own process by this package, and
not by a ``lapidary serve`` beside it: then a wheel is all that a worker needs, and a replica that dies
takes no server along or leaves one behind. Chat completions, completions, embeddings and the list of
models are there; the whole API of ``lapidary serve`` is not.
"""

# Annotations are not put off here: FastAPI reads them where their names are not known.

import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

from fastapi import FastAPI, Request
from ray import serve
from ray.serve.config import RequestRouterConfig
from starlette.responses import JSONResponse, Response, StreamingResponse

from .. import _openai
from .._errors import make
from .._model import Model
from ._router import PrefixRouter

_app = FastAPI(title="lapidary", docs_url=None, redoc_url=None, openapi_url=None)


class _Engine:
    """One engine. What it yields is a status and an object each; the first says how it goes."""

    def __init__(self, model: str, load: Mapping[str, Any]) -> None:
        self._model = Model(model, **load)
        self._name = self._model.info.name

    def check_health(self) -> None:
        """Raises if the engine is gone."""
        _ = self._model.info

    def replica(self) -> str:
        """Which replica this is."""
        return str(serve.get_replica_context().replica_id.unique_id)

    async def answer(self, body: dict[str, Any], what: str) -> AsyncIterator[tuple[int, Any]]:
        """Answers one request."""
        head = {"replica": self.replica()}
        try:
            if what == "embeddings":
                yield 200, head
                yield 200, await self._embeddings(body)
                return
            found = _openai.options(body, is_chat=what == "chat")
            schema = found.pop("schema", None)
            if what == "completions":
                if body.get("stream"):
                    raise make("unsupported", "completions come as a whole here; chat streams")
                prompt = body["prompt"]
                one = isinstance(prompt, str) or bool(prompt) and isinstance(prompt[0], int)
                prompts = [prompt] if one else prompt
                replies = await self._model.agenerate(prompts, schema=schema, **found)
                yield 200, head
                yield 200, _openai.text_object(self._name, replies)
                return
            if not body.get("stream"):
                reply = await self._model.achat(
                    body["messages"], schema=schema, max_rounds=0, **found
                )
                yield 200, head
                yield 200, _openai.chat_object(self._model, self._name, reply)
                return
            usage = bool((body.get("stream_options") or {}).get("include_usage"))
            chunks = _openai.ChatChunks(self._model, self._name, usage)
            stream = self._model.astream(body["messages"], schema=schema, max_rounds=0, **found)
            began = False
            async with stream:
                last = None
                async for chunk in stream:
                    if not began:
                        began = True
                        yield 200, head
                    if chunk.finish_reason is not None:
                        last = chunk
                        continue
                    for piece in chunks.of(chunk, None):
                        yield 200, piece
                if last is not None:
                    for piece in chunks.of(last, stream.reply):
                        yield 200, piece
        except Exception as e:
            yield _openai.error(e)

    async def _embeddings(self, body: dict[str, Any]) -> dict[str, Any]:
        given = body["input"]
        texts = [given] if isinstance(given, str) else list(given)
        rows = await self._model.aembed(texts)
        data = [{"object": "embedding", "index": i, "embedding": row} for i, row in enumerate(rows)]
        n = sum(len(self._model.tokenize(text)) for text in texts)
        usage = {"prompt_tokens": n, "total_tokens": n}
        return {"object": "list", "data": data, "model": self._name, "usage": usage}


async def _events(pieces: Any) -> AsyncIterator[str]:
    """Server-sent events. `ingress` keeps what stands before it. Whoever goes cancels the answer."""
    try:
        async for _, piece in pieces:
            yield f"data: {json.dumps(piece)}\n\n"
        yield "data: [DONE]\n\n"
    finally:
        pieces.cancel()


@serve.ingress(_app)
class _Api:
    """Reads requests and writes answers."""

    def __init__(self, engine: Any, name: str) -> None:
        self._engine = engine.options(stream=True)
        self._name = name

    async def _answer(self, request: Request, what: str) -> Response:
        try:
            body = await request.json()
            if not isinstance(body, dict):
                raise make("invalid_argument", "a request is a JSON object")
        except Exception as e:
            status, said = _openai.error(make("invalid_argument", str(e)))
            return JSONResponse(said, status)
        pieces = self._engine.answer.remote(body, what)
        status, head = await anext(pieces)
        if status != 200:
            return JSONResponse(head, status)
        headers = {"x-lapidary-replica": head["replica"]}
        if body.get("stream"):
            events = _events(pieces)
            return StreamingResponse(events, media_type="text/event-stream", headers=headers)
        status, said = await anext(pieces)
        return JSONResponse(said, status, headers)

    @_app.post("/v1/chat/completions")
    async def chat(self, request: Request) -> Response:
        """OpenAI's chat completions."""
        return await self._answer(request, "chat")

    @_app.post("/v1/completions")
    async def completions(self, request: Request) -> Response:
        """OpenAI's completions."""
        return await self._answer(request, "completions")

    @_app.post("/v1/embeddings")
    async def embeddings(self, request: Request) -> Response:
        """OpenAI's embeddings."""
        return await self._answer(request, "embeddings")

    @_app.get("/v1/models")
    async def models(self) -> dict[str, Any]:
        """The one model."""
        model = {"id": self._name, "object": "model", "created": 0, "owned_by": "lapidary"}
        return {"object": "list", "data": [model]}


def openai_app(
    model: str,
    *,
    name: str | None = None,
    replicas: int = 1,
    num_cpus: float = 1,
    num_gpus: float = 0,
    api_cpus: float = 0.1,
    most_ahead: int = 8,
    max_ongoing_requests: int = 64,
    load: Mapping[str, Any] | None = None,
    engine_options: Mapping[str, Any] | None = None,
) -> Any:
    """An application for ``serve.run``: OpenAI's API for a model on so many engines.

    Each engine has so many cores, or GPUs. A request goes to the engine that has read the longest
    beginning of its prompt, unless it has ``most_ahead`` requests more than another.
    """
    router = RequestRouterConfig(
        request_router_class=PrefixRouter, request_router_kwargs={"most_ahead": most_ahead}
    )
    options: dict[str, Any] = {
        "num_replicas": replicas,
        "ray_actor_options": {"num_cpus": num_cpus, "num_gpus": num_gpus},
        "max_ongoing_requests": max_ongoing_requests,
        "request_router_config": router,
        **(engine_options or {}),
    }
    engine = serve.deployment(_Engine).options(**options).bind(model, dict(load or {}))
    api = serve.deployment(_Api).options(
        ray_actor_options={"num_cpus": api_cpus}, max_ongoing_requests=1000
    )
    return api.bind(engine, name or str(model))
