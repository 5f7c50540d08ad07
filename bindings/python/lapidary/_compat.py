"""Names that people know from other packages: mlx_lm's functions and vLLM's class."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from ._model import Model, Prompt
from ._types import Chunk, Reply

# mlx_lm


class Tokenizer:
    """The tokenizer of a model, as mlx_lm's ``load`` gives one."""

    def __init__(self, model: Model) -> None:
        self._model = model

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text."""
        return self._model.tokenize(text, begin=add_special_tokens)

    def decode(self, tokens: Sequence[int], skip_special_tokens: bool = False) -> str:
        """The text of token ids."""
        return self._model.detokenize(tokens, keep_special=not skip_special_tokens)

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        tokenize: bool = True,
        **variables: Any,
    ) -> list[int]:
        """Token ids of messages in the model's chat format. It always asks for an answer, in tokens."""
        if not (add_generation_prompt and tokenize):
            raise NotImplementedError("a prompt is made of tokens, and asks for an answer")
        return self._model.apply_chat_template(
            messages, tools=tools, template_variables=variables or None
        )


def load(path_or_name: str | os.PathLike[str], **options: Any) -> tuple[Model, Tokenizer]:
    """A model and its tokenizer."""
    model = Model(path_or_name, **options)
    return model, Tokenizer(model)


def stream_generate(
    model: Model,
    tokenizer: Tokenizer,
    prompt: Prompt,
    max_tokens: int = 256,
    **options: Any,
) -> Iterator[Chunk]:
    """Continues a prompt in pieces."""
    return model.stream_generate(prompt, max_tokens=max_tokens, **options)


def generate(
    model: Model,
    tokenizer: Tokenizer,
    prompt: Prompt,
    verbose: bool = False,
    max_tokens: int = 256,
    **options: Any,
) -> str:
    """Continues a prompt, and returns the text."""
    text = ""
    chunk: Chunk | None = None
    for chunk in stream_generate(model, tokenizer, prompt, max_tokens, **options):
        text += chunk.text
        if verbose:
            print(chunk.text, end="", flush=True)
    if verbose and chunk is not None:
        print(
            f"\n==========\nPrompt: {chunk.prompt_tokens} tokens, {chunk.prompt_tps:.3f} "
            f"tokens-per-sec\nGeneration: {chunk.generation_tokens} tokens, "
            f"{chunk.generation_tps:.3f} tokens-per-sec\nPeak memory: {chunk.peak_memory:.3f} GB"
        )
    return text


@dataclass
class BatchResponse:
    """What ``batch_generate`` returns."""

    texts: list[str]
    stats: dict[str, float]


def batch_generate(
    model: Model,
    tokenizer: Tokenizer,
    prompts: Sequence[Sequence[int]] | Sequence[str],
    max_tokens: int = 128,
    verbose: bool = False,
    **options: Any,
) -> BatchResponse:
    """Continues many prompts at once."""
    began = time.perf_counter()
    replies = model.generate(prompts, max_tokens=max_tokens, **options)
    took = time.perf_counter() - began
    n = sum(reply.stats.new_tokens for reply in replies)
    stats = {"generation_tokens": n, "generation_time": took, "generation_tps": n / took}
    if verbose:
        print(f"Generation: {n} tokens, {n / took:.3f} tokens-per-sec")
    return BatchResponse([reply.text for reply in replies], stats)


# vLLM


@dataclass
class SamplingParams:
    """How tokens are chosen, in vLLM's names."""

    n: int = 1
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    max_tokens: int | None = 16
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    skip_special_tokens: bool = True
    logit_bias: dict[int, float] | None = None

    def options(self) -> dict[str, Any]:
        """The same in this package's names."""
        if self.n != 1:
            raise NotImplementedError("one answer a prompt; give the prompt several times")
        options = {field.name: getattr(self, field.name) for field in fields(self)}
        del options["n"]
        options["keep_special"] = not options.pop("skip_special_tokens")
        # -1 is all, which is 0 here.
        if options["top_k"] == -1:
            options["top_k"] = 0
        return options


@dataclass
class CompletionOutput:
    """One answer."""

    index: int
    text: str
    token_ids: list[int]
    finish_reason: str | None
    stop_reason: str | None
    cumulative_logprob: float | None = None
    logprobs: list[dict[int, float]] | None = None


@dataclass
class RequestOutput:
    """What is answered to one prompt."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int] | None
    outputs: list[CompletionOutput]
    finished: bool = True


class LLM:
    """A model with vLLM's methods."""

    def __init__(self, model: str | os.PathLike[str], **options: Any) -> None:
        if "max_model_len" in options:
            options["context"] = options.pop("max_model_len")
        if "max_num_seqs" in options:
            options["sequences"] = options.pop("max_num_seqs")
        self.model = Model(model, **options)
        self._asked = 0

    def get_tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return Tokenizer(self.model)

    def _outputs(
        self, prompts: Sequence[Any], replies: Sequence[Reply[Any]]
    ) -> list[RequestOutput]:
        outputs = []
        for prompt, reply in zip(prompts, replies):
            logprobs = [{l.token: l.logprob, **dict(l.top)} for l in reply.logprobs]
            output = CompletionOutput(
                index=0,
                text=reply.text,
                token_ids=reply.tokens,
                finish_reason=reply.finish_reason,
                stop_reason=reply.stop_string,
                cumulative_logprob=sum(l.logprob for l in reply.logprobs) if logprobs else None,
                logprobs=logprobs or None,
            )
            text = prompt if isinstance(prompt, str) else None
            ids = list(prompt) if text is None and prompt is not None else None
            outputs.append(RequestOutput(str(self._asked), text, ids, [output]))
            self._asked += 1
        return outputs

    def _replies(
        self, n: int, params: SamplingParams | Sequence[SamplingParams] | None, turn: Any
    ) -> list[Reply[Any]]:
        from ._options import Wishes

        one = params or SamplingParams()
        every = [one] * n if isinstance(one, SamplingParams) else list(one)
        if len(every) != n:
            raise ValueError(f"{n} prompts and {len(every)} sampling parameters")
        wishes = [Wishes(p.options()) for p in every]
        return self.model._all(lambda i: turn(i, wishes[i]), n)

    def generate(
        self,
        prompts: Any,
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = False,
    ) -> list[RequestOutput]:
        """Continues prompts: texts, token ids, or dicts with ``prompt`` or ``prompt_token_ids``."""
        single = isinstance(prompts, (str, Mapping)) or bool(prompts) and isinstance(prompts[0], int)
        given = [prompts] if single else list(prompts)
        given = [_prompt(prompt) for prompt in given]
        begin = lambda i, wishes: self.model._complete(given[i], None, None, wishes)  # noqa: E731
        return self._outputs(given, self._replies(len(given), sampling_params, begin))

    def chat(
        self,
        messages: Sequence[Any],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = False,
    ) -> list[RequestOutput]:
        """Answers one conversation, or many."""
        single = bool(messages) and isinstance(messages[0], Mapping)
        given = [messages] if single else list(messages)
        begin = lambda i, wishes: self.model._chat(  # noqa: E731
            given[i], None, None, None, wishes, 0
        )
        return self._outputs([None] * len(given), self._replies(len(given), sampling_params, begin))


def _prompt(prompt: Any) -> Prompt:
    if isinstance(prompt, Mapping):
        found = prompt.get("prompt", prompt.get("prompt_token_ids"))
        if found is None:
            raise ValueError("a prompt has `prompt` or `prompt_token_ids`")
        prompt = found
    return prompt if isinstance(prompt, str) else list(prompt)
