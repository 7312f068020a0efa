"""The circumstances of an answer as axes, so that they can be combined.

A later part (a cache, trees, another drafter) is one more entry of `AXES`: what it does around a request, what it asks
of the request, and how its activity is proven.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import combinations, count
from typing import Any

import numpy as np

from radiance_jax.spec.policies import POLICIES
from tests.exactness.lab import DRAFTERS, Answer, Lab, Request
from tests.exactness.requests import ALL, LONG


@dataclass(frozen=True)
class Facts:
    """What was seen while a request was answered: its answer, its steps, and preemptions in the whole engine."""

    answer: Answer
    steps: int
    preemptions: int


@dataclass(frozen=True, kw_only=True)
class Axis:
    """`around(lab, request, value)` is entered first; `asks(value)` are changes to the request;
    `active(value, facts, lab)` proves that the circumstance was there."""

    values: tuple[Any, ...]
    around: Callable[[Lab, Request, Any], AbstractContextManager] = lambda lab, request, value: nullcontext()
    asks: Callable[[Any], dict[str, Any]] = lambda value: {}
    active: Callable[[Any, Facts, Lab], bool] = lambda value, facts, lab: True


@contextmanager
def _drafter(lab: Lab, request: Request, name: str) -> Iterator[None]:
    lab.drafting(name, request)
    yield


@contextmanager
def _mates(lab: Lab, request: Request, count: int) -> Iterator[None]:
    """Others that start before it and draft."""
    with lab.held():
        started = [lab.start(each)[1] for each in ALL if each.seed != request.seed][:count]
        lab.busy.append(started)
    yield
    for each in lab.busy.pop():
        each.wait()


# Steps with room for drafts after which a policy that changes its mind must have shown two depths.
CHANCES = 6


@contextmanager
def _policy(lab: Lab, request: Request, name: str) -> Iterator[None]:
    """A drafting policy that decides anew before every step of the request."""
    planner, turn, chance = lab.engine._planner, count(), random.Random(request.seed)
    rules, lab.depths, lab.roomy = planner.rules, set(), 0

    def anything(bids, *_):
        return [tuple(chance.randint(0, cap) for cap in bid.caps) for bid in bids]

    every = [*POLICIES.values(), anything]

    def choose(*bargain):
        policy = {"random": anything, "switching": every[next(turn) % len(every)]}.get(name) or POLICIES[name]
        plan = policy(*bargain)
        lab.depths |= set(plan)
        lab.roomy += any(max(bid.caps) for bid in bargain[0])
        return plan

    planner.rules = replace(rules, policy=choose)
    try:
        yield
    finally:
        lab.idle()
        planner.rules = rules


def _policy_active(name: str, facts: "Facts", lab: Lab) -> bool:
    """What never drafts did not; what changes its mind did so while the request ran, if enough steps had room for drafts.

    An answer of two steps may well get the same depth twice, and where no step had room for a draft nobody was asked.
    """
    if name == "off":
        return facts.answer.stats.num_draft_tokens == 0
    return len(lab.depths) > 1 if name in ("random", "switching") and lab.roomy > CHANCES else bool(lab.depths) or not lab.roomy


AXES: dict[str, Axis] = {
    "drafter": Axis(values=tuple(DRAFTERS), around=_drafter),
    "depth": Axis(values=(0, 1, 3, 7, 16, 31), asks=lambda depth: {"max_draft_tokens": depth},
                  active=lambda depth, facts, lab: (facts.answer.stats.num_draft_tokens == 0) if depth == 0 else True),
    "chunk": Axis(values=(1, 7, 16, 64), around=lambda lab, request, rows: lab.chunks(rows),
                  active=lambda rows, facts, lab: facts.steps - len(facts.answer.steps)
                  >= -(-facts.answer.stats.prompt_tokens // rows)),
    "mates": Axis(values=(1, 3, 6), around=_mates),
    "slot": Axis(values=(1, 4, 7), around=lambda lab, request, slot: lab.slot(slot)),
    "policy": Axis(values=(*POLICIES, "random", "switching"), around=_policy, active=_policy_active,
                   asks=lambda name: {"draft_window": "adaptive"}),
    "preempted": Axis(values=(1, 2), around=lambda lab, request, step: lab.preempting(step, step + 2),
                      active=lambda step, facts, lab: facts.preemptions > 0),
    "pool": Axis(values=(9, 14), around=lambda lab, request, pages: lab.pool(pages),
                 active=lambda pages, facts, lab: lab.scheduler.pool.total == pages),
}
# Of entering: what needs an idle engine comes first.
ORDER = ("pool", "slot", "drafter", "chunk", "preempted", "mates", "depth")


def run(lab: Lab, request: Request, circumstances: dict[str, Any]) -> Answer:
    """Answers `request` under all of them at once; checks it against its oracle and each circumstance's activity."""
    lab.oracle(request)
    lab.idle()
    changes: dict[str, Any] = {}
    with ExitStack() as stack:
        before = lab.engine.stats()
        for name in sorted(circumstances, key=lambda name: ORDER.index(name) if name in ORDER else -1):
            stack.enter_context(AXES[name].around(lab, request, circumstances[name]))
            changes |= AXES[name].asks(circumstances[name])
        answer = lab.ask(request, **changes)
        lab.check(request, answer, str(circumstances))
        now = lab.engine.stats()
        facts = Facts(answer, now.steps - before.steps, lab.scheduler.preemptions - before.preemptions)
        for name, value in circumstances.items():
            assert AXES[name].active(value, facts, lab), f"{name}={value} was not there: {facts}"
    return answer


def pairs(count: int, seed: int) -> list[tuple[Request, dict[str, Any]]]:
    """Every pair of axes at least once, then more at random: a request and a value of each of the two."""
    chance = np.random.default_rng(seed)
    names = list(combinations(AXES, 2))
    chosen = names + [names[i] for i in chance.integers(0, len(names), max(count - len(names), 0))]

    def one(items: Sequence[Any]) -> Any:
        return items[int(chance.integers(0, len(items)))]

    return [(one([*ALL, *LONG]), {name: one(AXES[name].values) for name in pair}) for pair in chosen]
