"""Engines of a tiny model, shared between tests: compiling one takes seconds."""

import threading
import time
from collections.abc import Iterable, Sequence

import pytest

from radiance_jax.config import EngineConfig
from radiance_jax.engine.engine import Engine
from radiance_jax.engine.request import Delta, SamplingParams
from tests import tiny_model


class Answer:
    """All deltas of one answer, put together."""

    def __init__(self) -> None:
        self.deltas: list[Delta] = []
        self.done = threading.Event()

    def __call__(self, delta: Delta) -> None:
        self.deltas.append(delta)
        if delta.finish_reason:
            self.done.set()

    def wait(self) -> "Answer":
        assert self.done.wait(600), "no answer in time"
        return self

    @property
    def ids(self) -> tuple[int, ...]:
        return tuple(token for delta in self.deltas for token in delta.token_ids)

    @property
    def text(self) -> str:
        return "".join(delta.text for delta in self.deltas)

    @property
    def stats(self):
        return self.deltas[-1].stats

    def record(self) -> tuple:
        """All that must not depend on how the answer was made: ids, logprob bits, text, ending, usage."""
        scores = tuple((s.token_id, s.logprob.hex(), tuple((i, x.hex()) for i, x in s.top)) for d in self.deltas for s in d.logprobs)
        prompt = next((d.prompt_logprobs for d in self.deltas if d.prompt_logprobs is not None), None)
        prompt = prompt and tuple(s and (s.token_id, s.logprob.hex(), tuple((i, x.hex()) for i, x in s.top)) for s in prompt)
        last = self.deltas[-1]
        return (self.ids, scores, prompt, self.text, last.finish_reason, last.stop_reason, self.stats.prompt_tokens,
                self.stats.completion_tokens)


class Harness:
    def __init__(self, engine: Engine):
        self.engine = engine
        engine._guard.strict = True  # any compile after warm-up fails the engine

    def start(self, prompt: Sequence[int], choice: int = 0, **params) -> tuple[int, Answer]:
        answer = Answer()
        return self.engine.submit(prompt, SamplingParams(**params), answer, choice=choice), answer

    def ask(self, prompt: Sequence[int], choice: int = 0, **params) -> Answer:
        return self.start(prompt, choice, **params)[1].wait()

    def ask_all(self, requests: Iterable[tuple[Sequence[int], dict]]) -> list[Answer]:
        started = [self.start(prompt, **params)[1] for prompt, params in requests]
        return [answer.wait() for answer in started]


def until(holds, seconds: float = 5.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it did not come true"
        time.sleep(0.002)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    return tiny_model.make(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def config(tiny, tmp_path_factory):
    """`config(mesh="tp=2", ...)`: these options over defaults. Whoever keeps the defaults that shape a program finds it compiled."""
    cache = tmp_path_factory.mktemp("cache")

    def make(**options) -> EngineConfig:
        return EngineConfig(**dict(
            model=str(tiny), cache_dir=str(cache), dtype="f32", max_model_len=256, max_num_seqs=4, max_num_batched_tokens=32,
            page_size=16, num_speculative_tokens=7, draft_window="fixed") | options)

    return make


@pytest.fixture(scope="session")
def harness(config):
    """`harness(mesh="tp=2", ...)`: an engine with these options over the defaults, made once."""
    made: dict[tuple, Harness] = {}

    def make(**options) -> Harness:
        key = tuple(sorted(options.items()))
        if key not in made:
            made[key] = Harness(Engine.load(config(**options), lambda line: None))
        return made[key]

    yield make
    for one in made.values():
        one.engine.close()
