"""Runs requests through an engine with a fixed number of them live, and keeps what came out."""

import queue
from collections.abc import Sequence
from functools import partial
from typing import Any

from radiance_jax.bench.figures import Answer, Pass
from radiance_jax.bench.prompt_sets import Prompt
from radiance_jax.engine.request import Delta, SamplingParams
from radiance_jax.errors import RadianceError


def greedy(max_tokens: int, max_draft_tokens: int | None, window: str | None = None) -> SamplingParams:
    """Greedy, of exactly `max_tokens` tokens, with the logprob of each chosen token."""
    return SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True, logprobs=0, seed=0,
                          max_draft_tokens=max_draft_tokens, draft_window=window)


def serve(engine: Any, prompts: Sequence[Prompt], params: SamplingParams, *, live: int, round: int) -> Pass:
    """Answers all prompts, `live` at a time: when one ends the next is sent."""
    news: queue.SimpleQueue[tuple[int, Delta]] = queue.SimpleQueue()
    deltas: list[list[Delta]] = [[] for _ in prompts]
    running: dict[int, int] = {}
    waiting = list(reversed(range(len(prompts))))
    try:
        while running or waiting:
            while waiting and len(running) < live:
                number = waiting.pop()
                running[number] = engine.submit(prompts[number].ids, params, partial(_put, news, number))
            number, delta = news.get()
            deltas[number].append(delta)
            if delta.finish_reason is not None:
                del running[number]
            if delta.finish_reason == "error":
                raise RadianceError(delta.error or "the engine failed on this request")
    finally:
        for sequence in running.values():
            engine.abort(sequence)
    return Pass(round=round, answers=tuple(map(_answer, prompts, deltas)))


def _put(news: queue.SimpleQueue, number: int, delta: Delta) -> None:
    news.put((number, delta))


def _answer(prompt: Prompt, deltas: Sequence[Delta]) -> Answer:
    return Answer(prompt=prompt.id, ids=tuple(token for delta in deltas for token in delta.token_ids),
                  bits=tuple(score.logprob.hex() for delta in deltas for score in delta.logprobs),
                  stats=deltas[-1].stats)
