"""A laboratory: one engine of one mesh and target, in which a request is run under any circumstances.

Circumstances that need no other program are set from the host: chunk size, pool, slot, preemption, drafting. The oracle
of a request is its record when it runs alone, one token a step, in one prefill chunk, without a drafter.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from radiance_jax.bench import forced
from radiance_jax.config import EngineConfig
from radiance_jax.container.source import open_model
from radiance_jax.engine.build import Built, build
from radiance_jax.engine.choices import DTYPES
from radiance_jax.engine.compile import CompileGuard
from radiance_jax.engine.engine import Engine
from radiance_jax.engine.hooks import Hooks
from radiance_jax.engine.pages import PagePool
from radiance_jax.engine.request import Delta, SamplingParams
from radiance_jax.engine.scheduler import Plan
from radiance_jax.mesh import make_mesh
from radiance_jax.models.load import load_params
from radiance_jax.models.partition import partition
from tests.exactness import targets

SLOTS, ROWS, PAGE, LENGTH, DEPTH = 8, 96, 16, 256, 31
SCRIPTS, ENTRIES = 32, 64  # requests with proposals of their own, and tokens of theirs
VOCAB = targets.VOCAB


class Difference(AssertionError):
    """Two records of one request that should be one."""


@dataclass(frozen=True)
class Request:
    """`params["seed"]` is unique among the requests of a test: it also names the proposals."""

    prompt: tuple[int, ...]
    params: dict[str, Any]
    choice: int = 0

    @property
    def seed(self) -> int:
        return self.params["seed"]

    def but(self, **changes) -> "Request":
        return replace(self, params=self.params | changes)

    def key(self) -> tuple:
        return self.prompt, self.choice, tuple(sorted(self.params.items()))


class Answer:
    """All deltas of one answer."""

    def __init__(self) -> None:
        self.deltas: list[Delta] = []
        self.done = threading.Event()

    def __call__(self, delta: Delta) -> None:
        self.deltas.append(delta)
        if delta.finish_reason:
            self.done.set()

    def wait(self, seconds: float = 60) -> "Answer":
        assert self.done.wait(seconds), "no answer in time"
        return self

    @property
    def ids(self) -> list[int]:
        return [token for delta in self.deltas for token in delta.token_ids]

    @property
    def stats(self):
        return self.deltas[-1].stats

    @property
    def steps(self) -> list[int]:
        """Tokens of each step that emitted some, the prompt's own step left out."""
        return [len(delta.token_ids) for delta in self.deltas if delta.token_ids][1:]

    def record(self) -> dict[str, Any]:
        """Everything the promise covers."""
        prompt = next((d.prompt_logprobs for d in self.deltas if d.prompt_logprobs is not None), None)
        last = self.deltas[-1]
        return {
            "ids": self.ids, "scores": [_score(s) for d in self.deltas for s in d.logprobs],
            "prompt scores": prompt and [s and _score(s) for s in prompt], "text": "".join(d.text for d in self.deltas),
            "ending": (last.finish_reason, last.stop_reason, last.error),
            "usage": (self.stats.prompt_tokens, self.stats.completion_tokens)}


def _score(score) -> tuple:
    values = [score.logprob, *(x for _, x in score.top)]
    if not np.isfinite(values).all():
        raise Difference(f"a logprob that is no number: {values}")
    return score.token_id, score.logprob.hex(), tuple((i, x.hex()) for i, x in score.top)


def same(found: dict[str, Any], expected: dict[str, Any], what: str) -> None:
    """Raises `Difference` naming the part and the place."""
    for name, value in expected.items():
        if found[name] != value:
            at = ""
            if isinstance(value, list) and isinstance(found[name], list):
                at = next((i for i, (a, b) in enumerate(zip(found[name], value, strict=False)) if a != b),
                          min(len(value), len(found[name])))
                raise Difference(f"{what}: {name} differ at {at}: {found[name][at:at + 2]} unlike {value[at:at + 2]}")
            raise Difference(f"{what}: {name} {found[name]!r} unlike {value!r}")


def options_of(model: Path, kind: str, tp: int, cache: Path | None, **changes) -> EngineConfig:
    return EngineConfig(**dict(
        model=str(model), mesh=f"tp={tp}", dtype=targets.KINDS[kind][1], max_model_len=LENGTH, max_num_seqs=SLOTS,
        max_num_batched_tokens=ROWS, page_size=PAGE, num_speculative_tokens=DEPTH, draft_window="fixed", cache_dir=str(cache),
        compile_cache=cache is not None) | changes)


def hooks_of(depth: int = DEPTH) -> Hooks:
    return forced.hooks(SCRIPTS, ENTRIES, depth)


@dataclass(eq=False)
class Lab:
    """Answers requests under circumstances, and keeps oracles."""

    config: EngineConfig
    kind: str
    folder: Path
    hooks: Hooks
    built: Built = None
    engine: Engine = None
    knobs: dict[str, Any] = None
    oracles: dict[tuple, tuple[Answer, dict]] = field(default_factory=dict)
    weights: dict[bool, Any] = field(default_factory=dict)
    scripted: bool = False
    busy: list[list[Answer]] = field(default_factory=list)  # mates that were started and are to be waited for

    @classmethod
    def open(cls, kind: str, tp: int, folder: Path, hooks: Hooks | None = None, **changes) -> "Lab":
        models = folder / kind
        if not models.exists():
            targets.make(models, kind)
        config = options_of(models, kind, tp, folder / "cache", **changes)
        lab = cls(config, kind, folder, hooks or hooks_of(config.num_speculative_tokens))
        lab.built = build(config, lambda line: None, lab.hooks)
        lab.weights[False] = lab.built.device._params
        lab.knobs = jax.tree.map(np.copy, lab.hooks.knobs)
        lab.restart()
        return lab

    # ---- the engine ----

    def restart(self) -> None:
        """Another engine around the same programs; the pool and the state keep what they hold."""
        if self.engine is not None:
            self.engine.close()
            self.built = replace(self.built, guard=CompileGuard())
        self.built.guard.strict = True  # a compile after warm-up ends the engine
        self.engine = Engine(self.built, self.config)

    def close(self) -> None:
        self.engine.close()

    def idle_or_restart(self) -> None:
        """Clears up behind a test that broke off."""
        if self.engine.healthy():
            for number in list(self.engine._sequences):
                self.engine.abort(number)
            self.idle()
        else:
            self.restart()

    @property
    def depth(self) -> int:
        return self.built.capacity.depth

    @property
    def scheduler(self):
        return self.engine._scheduler

    @contextmanager
    def script(self) -> Iterator[None]:
        """Within, the target writes the script (same programs, other weights)."""
        if True not in self.weights:
            model = open_model(targets.make(self.folder / f"{self.kind}-script", self.kind, scripted=True))
            settings = self.built.model_config
            mesh, dtype = make_mesh(self.config.mesh_size), DTYPES[self.config.dtype]
            self.weights[True] = load_params(settings, partition(settings, mesh.size), model, mesh, dtype)
        try:
            self.built.device._params, self.scripted = self.weights[True], True
            yield
        finally:
            self.built.device._params, self.scripted = self.weights[False], False

    def turn(self, **knobs) -> None:
        self.knobs |= knobs
        self.built.device.turn(self.knobs)

    # ---- asking ----

    def start(self, request: Request, **changes) -> tuple[int, Answer]:
        answer = Answer()
        params = SamplingParams(**(request.params | changes))
        return self.engine.submit(request.prompt, params, answer, choice=request.choice), answer

    def ask(self, request: Request, **changes) -> Answer:
        return self.start(request, **changes)[1].wait()

    def ask_all(self, requests: Sequence[Request], **changes) -> list[Answer]:
        """All at once: nothing is planned before the last one is queued."""
        with self.held():
            started = [self.start(request, **changes)[1] for request in requests]
        return [answer.wait() for answer in started]

    @contextmanager
    def held(self) -> Iterator[None]:
        """The engine hears of nothing until the end of the block."""
        with self.engine._news:
            yield

    def oracle(self, request: Request) -> Answer:
        """The answer all others must equal."""
        key = (self.scripted, *request.key())
        if key not in self.oracles:
            whole = self.built.capacity.budget or self.built.capacity.rows
            assert self.scheduler.budget == whole, "an oracle is made in as few chunks as there can be"
            answer = self.ask(request, max_draft_tokens=0)
            assert answer.stats.num_draft_tokens == 0 and answer.stats.preemptions == 0
            assert set(answer.steps) <= {1}, "the oracle is made one token a step"
            self.oracles[key] = answer, answer.record()
        return self.oracles[key][0]

    def check(self, request: Request, answer: Answer, what: str) -> Answer:
        self.oracle(request)
        same(answer.record(), self.oracles[self.scripted, *request.key()][1], what)
        return answer

    # ---- circumstances ----

    def propose(self, request: Request, row: forced.Row) -> None:
        """What is proposed to this request from now on."""
        drafts, count = row
        self.knobs["drafts"][request.seed % SCRIPTS], self.knobs["count"][request.seed % SCRIPTS] = drafts, count
        self.turn()

    def accepting(self, request: Request, *pattern: int) -> None:
        """Proposals of which exactly `pattern` is accepted, step by step, again and again."""
        self.propose(request, forced.accepting(pattern, self.oracle(request).ids, ENTRIES, self.depth, VOCAB))

    def drafting(self, drafter: str, request: Request) -> None:
        """Proposals of the drafter of that name."""
        self.propose(request, DRAFTERS[drafter](self, request))

    def forget(self) -> None:
        """Lookup again, for everyone."""
        self.turn(**forced.table(SCRIPTS, ENTRIES, self.depth))

    @contextmanager
    def chunks(self, rows: int) -> Iterator[None]:
        """Within, a step has at most so many rows, and so has a prefill chunk."""
        whole, self.scheduler.budget = self.scheduler.budget, rows
        try:
            yield
        finally:
            self.scheduler.budget = whole

    def idle(self) -> None:
        """Waits until the engine has put everything away; the last delta comes a moment before."""
        for _ in range(20_000):
            if not self.engine._sequences and self.scheduler.idle():
                return
            time.sleep(5e-4)
        raise AssertionError("the engine does not come to rest")

    @contextmanager
    def pool(self, pages: int) -> Iterator[None]:
        """Within, the pool has so many pages."""
        self.idle()
        whole, self.scheduler.pool = self.scheduler.pool, PagePool(pages + 1)
        try:
            yield
        finally:
            self.idle()
            self.scheduler.pool = whole

    @contextmanager
    def slot(self, number: int) -> Iterator[None]:
        """Within, the next request sits in this slot."""
        self.idle()
        slots = self.scheduler.free_slots
        slots.remove(number)
        slots.append(number)
        yield

    @contextmanager
    def preempting(self, *steps: int) -> Iterator[list[int]]:
        """Within, the youngest sequence is sent away before the steps of these numbers; yields those where it was."""
        self.idle()
        scheduler, plan, number, done = self.scheduler, self.scheduler.plan, iter(range(10**9)), []

        def planned() -> Plan:
            now = next(number)
            if now in steps and scheduler.running:
                scheduler._preempt(scheduler.running[-1])
                done.append(now)
            return plan()

        scheduler.plan = planned
        try:
            yield done
        finally:
            del scheduler.plan


def _hostile(at: int, k: int) -> int:
    """The model's end token, ids outside the vocabulary and its padding, negative ones, the least and the greatest."""
    return (2, VOCAB, VOCAB + 41, -1, -7, 2**31 - 1, -(2**31), 0, 191, 4096)[(3 * at + k) % 10]


def _self(lab: Lab, request: Request) -> forced.Row:
    """The target as its own drafter, without noise: the likeliest token of each place of the answer."""
    best = [s.top[0][0] for d in lab.oracle(request).deltas for s in d.logprobs]
    return forced.always(lambda at, k: best[at + k] if at + k < len(best) else 0, ENTRIES, lab.depth)


def _pattern(pattern: Callable[[int], Sequence[int]]) -> Callable[[Lab, Request], forced.Row]:
    return lambda lab, request: forced.accepting(pattern(lab.depth), lab.oracle(request).ids, ENTRIES, lab.depth, VOCAB)


# A later drafter is one more entry: the lab and the request to proposals by output index.
DRAFTERS: dict[str, Callable[[Lab, Request], forced.Row]] = {
    "lookup": lambda lab, request: (np.zeros((ENTRIES, lab.depth), np.int32),
                                    np.full(ENTRIES, forced.LOOKUP, np.int32)),
    "oracle": _pattern(lambda depth: (depth,)),
    "liar": _pattern(lambda depth: (0,)),
    "pattern": _pattern(lambda depth: (3, 0, depth, 1)),
    "self": _self,
    "evil": lambda lab, request: forced.always(_hostile, ENTRIES, lab.depth),
}
