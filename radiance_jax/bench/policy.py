"""`python -m radiance_jax.bench policy [flags]`: drafting policies over recorded answers and prices, in seconds.

Every policy replays the same answers (`--traces`, written by `bench speed --trace-out`; else made-up ones) under the same
prices of steps, one after the other or several at a time. A policy is a function in a file of its own and a line in
`radiance_jax/spec/policies.py`; `fixed:3` caps one at three drafts.
"""

import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from radiance_jax.bench import policy_traces, record
from radiance_jax.bench.config import BENCH, numbers, words
from radiance_jax.bench.door import door
from radiance_jax.bench.policy_replay import Outcome, replay
from radiance_jax.bench.policy_traces import Prices, Trace
from radiance_jax.bench.record import log
from radiance_jax.config import MAX_DRAFT_DEPTH
from radiance_jax.errors import UserError, nearest
from radiance_jax.flags import read_config
from radiance_jax.settings import Config, setting
from radiance_jax.spec.planner import Rules
from radiance_jax.spec.policies import POLICIES

PROG = "python -m radiance_jax.bench policy"
OFF, FIXED = "off", "fixed"


@dataclass(frozen=True, kw_only=True)
class PolicyConfig(Config):
    """What is replayed, and through which policies."""

    traces: str | None = setting(str, None, "file of `bench speed --trace-out` (default: made-up answers)", BENCH)
    prices: str = setting(str, "auto", "seconds of steps: recorded (with the traces), or made up: "
                          + ", ".join(policy_traces.MADE_UP) + "; auto: recorded if there are any, else dear", BENCH)
    policies: str = setting(str, "off,fixed:1,fixed:3,fixed,copies,adaptive", "policies by name; name:N caps one at N drafts",
                            BENCH)
    sequences: str = setting(str, "1,4", "answers under way at once", BENCH)
    depth: int = setting(int, 15, "most drafts of a proposal", BENCH, low=1, high=MAX_DRAFT_DEPTH)
    spec_ngram_max: int = setting(int, 4, "longest n-gram looked up", BENCH, low=1, high=32)
    spec_ngram_min: int = setting(int, 2, "shortest n-gram looked up", BENCH, low=1, high=32)
    limit: int | None = setting(int, None, "answers of each set, at most (default: all)", BENCH, low=1)
    tokens: int = setting(int, 300, "tokens of a made-up answer", BENCH, low=8)
    count: int = setting(int, 6, "made-up answers of each kind", BENCH, low=1)
    seed: int = setting(int, 0, "seed of made-up answers", BENCH, low=0)
    out: str | None = setting(str, None, "JSON file to write (default: none)", BENCH)

    def __post_init__(self) -> None:
        super().__post_init__()
        numbers("sequences", self.sequences)
        if self.spec_ngram_min > self.spec_ngram_max:
            raise UserError(f"spec_ngram_min must be at most spec_ngram_max ({self.spec_ngram_max}); got {self.spec_ngram_min}",
                            param="spec_ngram_min")
        for each in words("policies", self.policies):
            name, colon, cap = each.partition(":")
            if name not in POLICIES:
                raise UserError(f"policies are {', '.join(POLICIES)}; got {name!r}{nearest(name, POLICIES)}", param="policies")
            if colon and not (cap.isascii() and cap.isdigit()):
                raise UserError(f"a policy's cap must be a whole number, as in fixed:3; got {each!r}", param="policies")


@door
def main(argv: Sequence[str]) -> int:
    """A table on stdout, everything in `--out`."""
    config, _ = read_config(PolicyConfig, argv, prog=PROG, environ=os.environ,
                            description="Drafting policies over recorded answers and prices.")
    record.check_writable(config.out)
    started = time.monotonic()
    cells = compare(config)
    show(cells)
    log(f"{time.monotonic() - started:.1f} s")
    if config.out is not None:
        record.write(config.out, {"command": f"{PROG} {' '.join(map(str, map(record.portable, argv)))}",
                                  "configuration": {k: record.portable(v) for k, v in vars(config).items() if v is not None},
                                  "cells": cells})
    return 0


def load(config: PolicyConfig) -> tuple[list[Trace], Prices]:
    """Answers and prices that the flags ask for."""
    recorded = None
    if config.traces is None:
        traces = policy_traces.made_up(config.count, config.tokens, config.seed)
    else:
        traces, recorded = policy_traces.read(config.traces)
    kept = [each for name in dict.fromkeys(each.set for each in traces)
            for each in [one for one in traces if one.set == name][:config.limit]]
    name = ("recorded" if recorded else "dear") if config.prices == "auto" else config.prices
    most = max(numbers("sequences", config.sequences)) * (1 + config.depth) + 1
    prices = policy_traces.prices(name, recorded, most)
    if len(prices.seconds) < most:
        raise UserError(f"prices go up to {len(prices.seconds) - 1} rows; these sequences at this depth may need {most - 1}: "
                        "lower --sequences or --depth", param="sequences")
    return kept, prices


def compare(config: PolicyConfig) -> list[dict[str, Any]]:
    """One entry for each set and number of sequences: what every policy came to, beside off and the best constant depth."""
    traces, prices = load(config)
    cells = []
    for name in dict.fromkeys(each.set for each in traces):
        mine = [each for each in traces if each.set == name]
        for live in numbers("sequences", config.sequences):
            outcomes = {each: run(each, mine, prices, config, live) for each in words("policies", config.policies)}
            cells.append({"set": name, "live": live, "prices": prices.name, "policies": _figures(outcomes)})
    return cells


def run(policy: str, traces: Sequence[Trace], prices: Prices, config: PolicyConfig, live: int) -> Outcome:
    name, _, cap = policy.partition(":")
    rules = Rules(depth=config.depth, longest=config.spec_ngram_max, shortest=config.spec_ngram_min,
                  as_planned=prices.as_planned, policy=POLICIES[name])
    return replay(traces, prices, rules, live=live, cap=int(cap) if cap else None)


def _figures(outcomes: dict[str, Outcome]) -> dict[str, dict[str, Any]]:
    off = outcomes.get(OFF)
    constant = [each.rate for name, each in outcomes.items() if name.partition(":")[0] in (OFF, FIXED)]
    return {name: {
        "tokens_per_s": each.rate, "tokens_per_step": each.tokens / each.steps, "drafted": each.drafted,
        "accepted": each.accepted, "deferred": each.deferred, "depths": each.depths, "regret": each.regret,
        "over_off": each.rate / off.rate if off else None,
        "over_best_constant": each.rate / max(constant) if constant else None} for name, each in outcomes.items()}


def show(cells: Sequence[dict[str, Any]]) -> None:
    from rich.console import Console

    from radiance_jax.bench.speed_report import table

    def ratio(value: float | None) -> str:
        return "" if value is None else f"{value:.2f}"

    rows = [(cell["set"], str(cell["live"]), name, f"{each['tokens_per_s']:.2f}", ratio(each["over_off"]),
             ratio(each["over_best_constant"]), f"{each['tokens_per_step']:.2f}", f"{each['accepted']}/{each['drafted']}",
             str(each["deferred"]), f"{each['regret']:.2f}") for cell in cells for name, each in cell["policies"].items()]
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 140
    console.print(table(f"Policies, prices: {cells[0]['prices']}", (
        "set", "live", "policy", "tokens/s", "over off", "over best constant", "tokens/step", "accepted", "deferred", "regret"),
        rows))


if __name__ == "__main__":
    sys.exit(main())
