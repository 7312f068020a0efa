"""The policy simulator: the engine's loop without an engine. A step's time is its price; everything else is as it would be:
the planner is the engine's own, it plans a step before it has read the last one, and a draft is accepted iff it is the
answer's token. Prompts cost nothing here: only decoding is compared.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from radiance_jax.bench.policy_traces import Prices, Trace
from radiance_jax.spec.cost import CostTable
from radiance_jax.spec.evidence import Depths
from radiance_jax.spec.planner import Planner, Rules, Want
from radiance_jax.spec.shadow import Shadow


@dataclass
class Running:
    """One answer under way, as the device has it (`shadow`, `given`) and as the host does (`read` tokens of the answer)."""

    key: int
    trace: Trace
    shadow: Shadow
    given: int = 1  # tokens of the answer that exist; the prompt's step drew the first
    read: int = 1
    certain: int = 0  # that steps in flight will add at least

    @property
    def left(self) -> int:
        return len(self.trace.answer) - self.given


@dataclass
class Step:
    """(sequence, allowed, cap, drafted, accepted, tokens emitted) of each sequence, and the rows and seconds of all."""

    parts: list[tuple[Running, Depths, int, int, int, int]]
    rows: int
    seconds: float


@dataclass
class Outcome:
    """`depths`: most drafts allowed -> sequence steps."""

    tokens: int = 0
    seconds: float = 0.0
    steps: int = 0
    drafted: int = 0
    accepted: int = 0
    deferred: int = 0
    regret: float = 0.0
    depths: dict[int, int] = field(default_factory=dict)
    decisions: list[tuple[int, ...]] = field(default_factory=list)  # depths of each step

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds


def replay(traces: Sequence[Trace], prices: Prices, rules: Rules, *, live: int, cap: int | None = None,
           known: bool = True) -> Outcome:
    """All traces, `live` at a time. `cap`: most drafts of each request; `known`: the planner starts with the true prices,
    as after a profile (else it learns them as it goes)."""
    rules = replace(rules, as_planned=prices.as_planned)
    planner, out = Planner(rules, CostTable(prices.charge)), Outcome()
    if known:
        for rows in sorted(set(prices.charge[1:])):
            planner.cost.observe(rows, float(prices.seconds[rows]))
    waiting = deque(enumerate(traces))
    running: list[Running] = []
    flying: deque[Step] = deque()
    while waiting or running or flying:
        while waiting and len(running) < live:
            running.append(_start(planner, rules, *waiting.popleft()))
        wants = [(each, min(rules.depth, len(each.trace.answer) - each.read - each.certain - 1)) for each in running
                 if len(each.trace.answer) - each.read - each.certain > 0]
        if cap is not None:
            wants = [(each, min(most, cap)) for each, most in wants]
        if wants:
            plan = planner.plan([Want(each.key, most) for each, most in wants])
            out.decisions.append(tuple(max(depths) for depths in plan))
            flying.append(_send(wants, plan, prices))
        if flying and (len(flying) > 1 or not wants):
            step = flying.popleft()
            _read(planner, step, out)
            running = [each for each in running if each.read < len(each.trace.answer)]
    counts = planner.counts
    out.deferred, out.depths, out.regret = counts.deferred, dict(sorted(counts.chosen.items())), counts.regret()
    return out


def _start(planner: Planner, rules: Rules, key: int, trace: Trace) -> Running:
    shadow = Shadow(longest=rules.longest, shortest=rules.shortest, window=rules.depth)
    shadow.read(trace.prompt)
    shadow.push(trace.answer[0], _unheard)
    planner.read(key, trace.prompt)
    planner.drawn(key, (*trace.prompt, trace.answer[0]))
    return Running(key, trace, shadow)


def _send(wants: Sequence[tuple[Running, int]], plan: Sequence[Depths], prices: Prices) -> Step:
    """Runs the step on the device's side at once; the host will read it a step later."""
    parts, live = [], 0
    for (each, cap), depths in zip(wants, plan, strict=True):
        each.certain += 1
        if each.left <= 0:  # it ended in the step before, which the host has not read yet
            parts.append((each, depths, cap, 0, 0, 0))
            continue
        proposal = each.shadow.proposal()
        drafts = proposal[:min(depths[each.shadow.level], each.left - 1)] if proposal else []
        answer = each.trace.answer
        accepted = next((i for i, draft in enumerate(drafts) if draft != answer[each.given + i]), len(drafts))
        for token in answer[each.given:each.given + accepted + 1]:
            each.shadow.push(token, _unheard)
        each.given += accepted + 1
        live += 1 + len(drafts)
        parts.append((each, depths, cap, len(drafts), accepted, accepted + 1))
    rows = sum(1 + max(depths) for depths in plan) if prices.as_planned else live
    rows = prices.charge[rows] if rows < len(prices.charge) else rows
    return Step(parts, rows, float(prices.seconds[rows]))


def _read(planner: Planner, step: Step, out: Outcome) -> None:
    for each, depths, cap, drafted, accepted, emitted in step.parts:
        each.certain -= 1
        if not emitted:
            continue
        each.read += emitted
        planner.verified(each.key, (*each.trace.prompt, *each.trace.answer[:each.read]), depths, cap, drafted, accepted)
        out.tokens, out.drafted, out.accepted = out.tokens + emitted, out.drafted + drafted, out.accepted + accepted
        if each.read >= len(each.trace.answer):
            planner.forget(each.key)
    planner.stepped(step.rows, step.seconds, 0)
    out.steps, out.seconds = out.steps + 1, out.seconds + step.seconds


def _unheard(level: int, place: int, right: bool) -> None:
    """The device keeps no record."""
