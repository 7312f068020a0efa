"""`LLM`: the engine as a Python object, for scripts and batches."""

import os
import queue
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Self

from radiance_jax.config import EngineConfig, known_defaults
from radiance_jax.engine.request import Delta, RequestStats, SamplingParams, TokenLogprob
from radiance_jax.errors import RadianceError, UserError
from radiance_jax.flags import default_cache_dir
from radiance_jax.host_devices import ensure_host_devices
from radiance_jax.text.chat import no_template

Message = dict[str, Any]


@dataclass(kw_only=True)
class CompletionOutput:
    """One answer. `logprobs` is None unless `SamplingParams.logprobs` asked for them."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    stats: RequestStats | None = None


@dataclass(kw_only=True)
class RequestOutput:
    """A prompt and its answers. `prompt` is None where token ids were given."""

    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None


class LLM:
    """Loads a model and answers prompts until closed; a context manager.

    Options are the fields of `EngineConfig`. Raises `UserError` for a wrong one, `ModelError` for a
    model that cannot be served.
    """

    def __init__(self, model: str | os.PathLike | None = None, *, mesh: str = "tp=1",
                 log: Callable[[str], None] = print, **options: Any):
        options.setdefault("cache_dir", default_cache_dir(os.environ))
        self.config = EngineConfig.of(model=None if model is None else os.fspath(model), mesh=mesh, **options)
        ensure_host_devices(self.config.mesh_size)
        from radiance_jax.engine.engine import Engine  # after the environment is set
        self.engine: Engine = Engine.load(self.config, log)

    def default_params(self, **changes: Any) -> SamplingParams:
        """The model's own sampling defaults, with `changes`."""
        return SamplingParams(**(known_defaults(self.engine.defaults) | changes))

    def generate(self, prompts: str | Sequence[str] | Sequence[Sequence[int]],
                 params: SamplingParams | Sequence[SamplingParams] | None = None, *, n: int = 1) -> list[RequestOutput]:
        """Answers every prompt `n` times, in order. One `params` serves all prompts; a list gives each its own."""
        encode = partial(self.engine.tokenizer.encode, add_special_tokens=True)
        return self._run(_prompt_list(prompts), encode, params, n)

    def chat(self, messages: Sequence[Message] | Sequence[Sequence[Message]],
             params: SamplingParams | Sequence[SamplingParams] | None = None, *, n: int = 1,
             **template: Any) -> list[RequestOutput]:
        """Like `generate`, over one conversation or a list of them; `template` goes to the chat template."""
        conversations = [messages] if messages and isinstance(messages[0], dict) else messages
        if not conversations or not all(isinstance(each, (list, tuple)) and each for each in conversations):
            raise UserError("messages must be a list of messages or a list of such lists, none empty", param="messages")
        if self.engine.chat is None:
            raise no_template("use generate")
        texts = [self.engine.chat.render(list(each), **template) for each in conversations]
        return self._run(texts, partial(self.engine.tokenizer.encode, add_special_tokens=False), params, n)

    def _run(self, prompts: Sequence[str | Sequence[int]], encode: Callable[[str], list[int]],
             params: SamplingParams | Sequence[SamplingParams] | None, n: int) -> list[RequestOutput]:
        if not isinstance(n, int) or n < 1:
            raise UserError(f"n must be a whole number, at least 1; got {n!r}", param="n")
        each = _params_list(params, len(prompts), self.default_params)
        results = [
            RequestOutput(prompt=prompt if isinstance(prompt, str) else None,
                          prompt_token_ids=list(encode(prompt) if isinstance(prompt, str) else prompt),
                          outputs=[CompletionOutput(index=index, logprobs=None if mine.logprobs is None else [])
                                   for index in range(n)])
            for prompt, mine in zip(prompts, each, strict=True)]
        news: queue.SimpleQueue[tuple[tuple[int, int], Delta]] = queue.SimpleQueue()
        running: dict[tuple[int, int], int] = {}
        try:
            for number, (result, mine) in enumerate(zip(results, each, strict=True)):
                for choice in range(n):
                    key = (number, choice)
                    running[key] = self.engine.submit(result.prompt_token_ids, mine, partial(_put, news, key),
                                                      choice=choice)
            while running:
                key, delta = news.get()
                if delta.finish_reason is not None:
                    del running[key]
                _add(results[key[0]], results[key[0]].outputs[key[1]], delta)
        finally:
            for sequence in running.values():
                self.engine.abort(sequence)
        return results

    def close(self) -> None:
        """Frees the engine. Safe to call twice."""
        engine, self.engine = getattr(self, "engine", None), None
        if engine is not None:
            engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


def _put(news: queue.SimpleQueue, key: tuple[int, int], delta: Delta) -> None:
    news.put((key, delta))


def _add(result: RequestOutput, output: CompletionOutput, delta: Delta) -> None:
    output.text += delta.text
    output.token_ids += delta.token_ids
    if output.logprobs is not None:
        output.logprobs += delta.logprobs
    if delta.prompt_logprobs is not None:
        result.prompt_logprobs = delta.prompt_logprobs
    if delta.finish_reason is not None:
        output.finish_reason, output.stop_reason, output.stats = delta.finish_reason, delta.stop_reason, delta.stats
    if delta.finish_reason == "error":
        raise RadianceError(delta.error or "the engine failed on this request")


def _prompt_list(prompts: Any) -> list[str | Sequence[int]]:
    if isinstance(prompts, str):
        return [prompts]
    items = list(prompts)
    if items and all(isinstance(each, int) for each in items):
        raise UserError("prompts must be a string, a list of strings, or a list of lists of token ids; wrap the ids of "
                        "one prompt in a list", param="prompts")
    for each in items:
        if not isinstance(each, str) and not (isinstance(each, Sequence) and all(isinstance(i, int) for i in each)):
            raise UserError(f"a prompt must be a string or a list of token ids; got {type(each).__name__}",
                            param="prompts")
    return items


def _params_list(params: Any, count: int, default: Callable[[], SamplingParams]) -> list[SamplingParams]:
    if params is None:
        params = default()
    if isinstance(params, SamplingParams):
        return [params] * count
    items = list(params)
    if len(items) != count:
        raise UserError(f"params must be one for all prompts or one for each; got {len(items)} for {count} prompts",
                        param="params")
    return items
