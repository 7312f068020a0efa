"""Asking an engine many requests with so many live, and keeping everything the promise covers."""

import hashlib
import queue
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from radiance_jax.engine.request import Delta, RequestStats, SamplingParams
from radiance_jax.errors import RadianceError

TOPS = 20
WAYS: dict[str, dict[str, Any]] = {"greedy": {"temperature": 0.0}, "temperature 1": {"temperature": 1.0}}


class OutOfTime(RadianceError):
    """The run has reached `--limit-minutes`."""


@dataclass(frozen=True, kw_only=True)
class Ask:
    """One request. `seed` is its number in the run: it also names its forced proposals."""

    name: str
    ids: tuple[int, ...]
    seed: int
    way: str
    max_tokens: int

    def params(self, **changes: Any) -> SamplingParams:
        return SamplingParams(**(dict(max_tokens=self.max_tokens, ignore_eos=True, logprobs=TOPS, seed=self.seed)
                                 | WAYS[self.way] | changes))


@dataclass
class Told:
    """What came back: ids, raw logprob bits, and a digest of the top 20 by token; ending, usage, and how it was made."""

    ids: list[int] = field(default_factory=list)
    bits: list[str] = field(default_factory=list)
    tops: list[str] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    ending: str | None = None
    stats: RequestStats | None = None

    def hear(self, delta: Delta) -> None:
        self.ids += delta.token_ids
        self.steps += [len(delta.token_ids)] if delta.token_ids else []
        self.bits += [score.logprob.hex() for score in delta.logprobs]
        self.tops += [digest([(i, x.hex()) for i, x in score.top]) for score in delta.logprobs]
        if delta.finish_reason is not None:
            self.ending, self.stats = delta.finish_reason, delta.stats
        if delta.finish_reason == "error":
            raise RadianceError(delta.error or "the engine failed on this request")

    def record(self) -> dict[str, Any]:
        return {"ids": self.ids, "logprob bits": self.bits, "top-20 bits": self.tops, "ending": self.ending,
                "usage": [self.stats.prompt_tokens, self.stats.completion_tokens] if self.stats else None}


def digest(value: Any) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()[:16]


def ask_all(engine: Any, asks: Sequence[Ask], live: int, until: float | None = None, **changes: Any) -> list[Told]:
    """Answers all, `live` at a time: when one ends the next is sent. Raises `OutOfTime` past `until` (of `time.monotonic`)."""
    news: queue.SimpleQueue[tuple[int, Delta]] = queue.SimpleQueue()
    told = [Told() for _ in asks]
    running: dict[int, int] = {}
    waiting = list(reversed(range(len(asks))))
    try:
        while running or waiting:
            while waiting and len(running) < live:
                number = waiting.pop()
                running[number] = engine.submit(asks[number].ids, asks[number].params(**changes), partial(_put, news, number))
            number, delta = news.get()
            check(until)
            told[number].hear(delta)
            if delta.finish_reason is not None:
                del running[number]
    finally:
        for sequence in running.values():
            engine.abort(sequence)
    return told


def check(until: float | None) -> None:
    if until is not None and time.monotonic() >= until:
        raise OutOfTime("out of time (--limit-minutes)")


def _put(news: queue.SimpleQueue, number: int, delta: Delta) -> None:
    news.put((number, delta))


def differences(asks: Sequence[Ask], told: Sequence[dict[str, Any]], oracle: Sequence[dict[str, Any]],
                whole: bool = True) -> list[dict[str, Any]]:
    """The first difference of each answer. With `whole` False what there is must be a beginning of the oracle's."""
    found = []
    for ask, mine, expected in zip(asks, told, oracle, strict=True):
        for what in expected if whole else ("ids", "logprob bits", "top-20 bits"):
            a, b = mine[what], expected[what] if whole else expected[what][:len(mine[what])]
            if a != b:
                at = None
                if isinstance(b, list):
                    at = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
                found.append({"prompt": ask.name, "way": ask.way, "what": what, "first_at": at})
                break
    return found
