"""Batches over Ray Data: an actor per GPU or per so many cores holds an engine."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from .._model import Model
from .._types import Reply


def seed_of(seed: int, key: Any) -> int:
    """The seed of a row: of the seed of all and the row's key, wherever and how often it is answered."""
    told = f"{seed}:{key}".encode()
    return int.from_bytes(hashlib.blake2b(told, digest_size=8).digest(), "little")


class Answers:
    """Answers the prompts of a batch, for ``map_batches``. It holds an engine as long as it lives.

    A row is answered by its own prompt and seed, so the answer does not depend on which actor gives it,
    on what else is in its batch, or on how often it was tried.
    """

    def __init__(
        self,
        model: str,
        *,
        prompt: str = "prompt",
        answer: str = "answer",
        key: str | None = None,
        seed: int = 0,
        chat: bool = True,
        load: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.model = Model(model, **(load or {}))
        self._prompt, self._answer, self._key = prompt, answer, key or prompt
        self._seed, self._is_chat = seed, chat
        self._options = dict(options or {})

    def _begin(self, prompt: Any, key: Any) -> Any:
        from .._options import Wishes

        wishes = Wishes({**self._options, "seed": seed_of(self._seed, key)})
        if self._is_chat:
            return self.model._chat(_plain(prompt), None, None, None, wishes, 0)
        return self.model._complete(_plain(prompt), None, None, wishes)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        prompts, keys = list(batch[self._prompt]), list(batch[self._key])
        replies: list[Reply[Any]] = self.model._all(
            lambda i: self._begin(prompts[i], keys[i]), len(prompts)
        )
        return {
            **batch,
            self._answer: [reply.text for reply in replies],
            "finish_reason": [reply.finish_reason for reply in replies],
            "prompt_tokens": [reply.stats.prompt_tokens for reply in replies],
            "new_tokens": [reply.stats.new_tokens for reply in replies],
        }


def _plain(value: Any) -> Any:
    """A prompt as a row has it: Arrow gives lists as arrays."""
    if isinstance(value, str):
        return value
    listed = value.tolist() if hasattr(value, "tolist") else value
    return str(listed) if isinstance(listed, (bytes, int, float)) else listed


def map_prompts(
    dataset: Any,
    model: str,
    *,
    prompt: str = "prompt",
    answer: str = "answer",
    key: str | None = None,
    seed: int = 0,
    chat: bool = True,
    concurrency: int | tuple[int, int] = 1,
    batch_size: int = 64,
    num_cpus: float | None = None,
    num_gpus: float | None = None,
    load: Mapping[str, Any] | None = None,
    ray_options: Mapping[str, Any] | None = None,
    **options: Any,
) -> Any:
    """The dataset with an answer in each row.

    ``prompt`` and ``key`` name columns; a key is different in each row, and without one the prompt itself
    is the key. ``concurrency`` is the number of actors, or the least and the most of them; each holds an
    engine, on so many cores (``num_cpus``) or on a GPU (``num_gpus=1``). An actor that is lost is
    replaced, and its batches are answered again, with the same answers. ``load`` are options of loading,
    ``options`` of answers.
    """
    from ray.data import ActorPoolStrategy

    if isinstance(concurrency, tuple):
        actors = ActorPoolStrategy(min_size=concurrency[0], max_size=concurrency[1])
    else:
        actors = ActorPoolStrategy(size=concurrency)
    load = dict(load or {})
    if num_cpus is not None and num_cpus >= 1:
        # As many threads as it may use, where other actors use the rest.
        load.setdefault("threads", int(num_cpus))
    # What is answered together shares the device.
    load.setdefault("sequences", min(batch_size, 16))
    arguments = dict(ray_options or {})
    arguments.setdefault("max_restarts", -1)
    arguments.setdefault("max_task_retries", -1)
    return dataset.map_batches(
        Answers,
        fn_constructor_kwargs={
            "model": model,
            "prompt": prompt,
            "answer": answer,
            "key": key,
            "seed": seed,
            "chat": chat,
            "load": load,
            "options": options,
        },
        batch_size=batch_size,
        compute=actors,
        num_cpus=num_cpus,
        num_gpus=num_gpus,
        **arguments,
    )
