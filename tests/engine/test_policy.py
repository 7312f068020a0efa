"""The drafting policy inside the engine: what the host tells itself about proposals is what the device did, dear rows are
not bought, cheap ones are, and prices survive a restart."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from radiance_jax.bench import policy_traces
from radiance_jax.config import EngineConfig
from radiance_jax.engine import engine as engine_
from radiance_jax.engine import prices
from radiance_jax.engine import results as results_
from radiance_jax.engine.engine import Engine
from radiance_jax.engine.request import SamplingParams
from radiance_jax.engine.state import DECODE, LOOKUP, PREFILL, SLOT_FIELDS, Capacity, Results
from radiance_jax.mesh import make_mesh
from radiance_jax.spec.cost import CostTable
from radiance_jax.spec.planner import Rules
from radiance_jax.spec.shadow import Shadow
from tests.engine.conftest import Answer
from tests.engine.test_exact import prompt

GREEDY = dict(temperature=0.0, max_tokens=60, ignore_eos=True, logprobs=0)


@pytest.fixture(scope="module")
def adaptive(harness):
    return harness(draft_window="adaptive")


def test_the_host_knows_what_the_device_found(adaptive):
    """The planner's shadow of lookup and the depths sent explain every draft that the device verified."""
    planner, seen = adaptive.engine._planner, []
    verified = planner.verified

    def checked(key, tokens, allowed, cap, drafted, accepted, **more):
        shadow = planner._tracks[key].shadow
        room = 256 - len(shadow.tokens) - 1
        expected = min(shadow.count, allowed[shadow.level], room) if shadow.count else 0
        seen.append((drafted, expected, allowed))
        return verified(key, tokens, allowed, cap, drafted, accepted, **more)

    planner.verified = checked
    try:
        adaptive.ask_all([(prompt(seed), GREEDY | dict(seed=seed, temperature=0.5 * (seed % 3))) for seed in range(8)])
    finally:
        del planner.verified
    assert all(drafted == expected for drafted, expected, _ in seen)
    assert sum(drafted > 0 for drafted, _, _ in seen) > 10 and len({allowed for _, _, allowed in seen}) > 1


def test_adaptive_answers_are_those_without_drafts_and_are_counted(adaptive):
    before = adaptive.engine.stats()
    for seed in range(3):
        on, off = (adaptive.ask(prompt(seed), **GREEDY, max_draft_tokens=most) for most in (None, 0))
        assert on.record() == off.record()
    now = adaptive.engine.stats()
    assert sum(now.chosen_depth.values()) - sum(before.chosen_depth.values()) > 60
    assert now.chosen_depth[0] > before.chosen_depth.get(0, 0) and len(now.chosen_depth) > 1
    assert sum(now.reached_per_position) >= now.num_accepted_tokens > 0
    assert now.draft_rate > 0 and set(now.constant_depth_rate) == set(range(8)) and 0 <= now.draft_regret < 50


def test_a_request_chooses_its_window(adaptive, harness):
    for one in (adaptive, harness()):
        fixed = one.ask(prompt(2), **GREEDY, draft_window="fixed")
        again = one.ask(prompt(2), **GREEDY, draft_window="adaptive")
        assert fixed.record() == again.record() and fixed.stats.num_deferred_proposals == 0 < fixed.stats.num_draft_tokens


def test_prices_survive_a_restart(adaptive, monkeypatch):
    """The engine of the fixture again: its programs are compiled, its prices are kept when it closes."""
    monkeypatch.setattr(prices, "hold", lambda *_: True)  # other programs may run beside the tests
    lines: list[str] = []
    for told in ("measured in", "kept from before"):
        engine = Engine.load(adaptive.engine.config, lines.append)
        assert any("prices: ms by rows" in line and told in line for line in lines), lines
        assert len(engine._planner.cost.measured()) >= 2 and min(engine._planner.cost.measured().values()) > 0
        lines.clear()
        engine.close()


@pytest.mark.parametrize("bare, deep, holds", ((1.0, 2.0, True), (3.0, 6.5, True), (1.0, 1.2, False), (1.0, 3.0, False)))
def test_kept_prices_hold_while_they_are_in_proportion(bare, deep, holds):
    """Three times as slow as a whole moves no decision; drafts that became cheap or dear do. Single slow steps do not count."""
    capacity = Capacity(slots=2, length=64, rows=16, pages=9, page_size=16, depth=7)
    (table, _), calls = prices.tables(capacity, None, 4, (2, 8, 16)), []
    for rows, seconds in ((1, 1.0), (8, 2.0), (16, 2.5)):
        table.observe(rows, seconds)

    def time_decode(drafts):
        calls.append(drafts)
        return (deep if drafts[0] else bare) * (5 if len(calls) % 3 == 1 else 1)

    assert prices.hold(table, SimpleNamespace(time_decode=time_decode), capacity) == holds and [0] in calls and [7] in calls


def test_prices_are_kept_apart_by_whatever_makes_steps_dear(tmp_path):
    capacity = Capacity(slots=2, length=64, rows=16, pages=9, page_size=16, depth=3)
    parts = {"model": "a", "dtype": "f32", "tiles": ((2, 1),), "capacity": capacity}
    changed = [parts | change for change in ({}, {"model": "b"}, {"dtype": "bf16"}, {"tiles": None},
                                             {"capacity": replace(capacity, slots=3)})]
    places = [prices.place(tmp_path, make_mesh(1), each) for each in changed]
    assert len(set(places)) == len(places) and prices.place(tmp_path, make_mesh(1), dict(parts)) == places[0]


# ---- an engine without a model, on a clock of its own -----------------------------------------------------------


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


class MockDevice:
    """Draws a given text, looks up as the device does, and takes `seconds(rows)` for a step."""

    def __init__(self, capacity: Capacity, clock: Clock, text: list[int], seconds):
        self.capacity, self.clock, self.text, self.seconds = capacity, clock, text, seconds
        self.shadows, self.given, self.limit = {}, {}, {}

    def admit(self, sequence) -> None:
        self.shadows[sequence.slot] = Shadow(longest=4, shortest=2, window=self.capacity.depth)
        self.shadows[sequence.slot].read(sequence.tokens[:-1])
        self.shadows[sequence.slot].push(sequence.tokens[-1], lambda *_: None)
        self.given[sequence.slot], self.limit[sequence.slot] = 0, sequence.limit - len(sequence.tokens)

    def send(self, plan):
        slots, tokens, row = np.zeros((self.capacity.slots, SLOT_FIELDS), np.int32), [], 0
        for entry in plan.entries:
            shadow, at = self.shadows[entry.slot], self.given[entry.slot]
            left = self.limit[entry.slot] - at
            if entry.mode == PREFILL:
                row += entry.chunk - 1
                tokens += [0] * (entry.chunk - 1)
            if left <= 0 or (entry.mode == PREFILL and not entry.last):
                continue
            drafts = []
            if entry.mode == DECODE and shadow.count:
                drafts = shadow.proposal()[:min(entry.depths[shadow.level], left - 1)]
            accepted = next((i for i, draft in enumerate(drafts) if draft != self.text[at + i]), len(drafts))
            out = self.text[at:at + accepted + 1]
            for token in out:
                shadow.push(token, lambda *_: None)
            self.given[entry.slot] += len(out)
            ended = 2 if self.given[entry.slot] >= self.limit[entry.slot] else 0
            slots[entry.slot] = (row, len(out), ended, len(drafts), accepted, len(shadow.tokens), LOOKUP)
            tokens += (out + [0] * len(drafts))[:1 + len(drafts)]
            row += 1 + len(drafts)
        rows = max(row, 1)
        sent, self.free = self.clock.now, max(getattr(self, "free", 0.0), self.clock.now) + self.seconds(rows)
        results = Results(slots, np.array(tokens + [0], np.int32), np.zeros(len(tokens) + 1, np.float32))
        return SimpleNamespace(plan=plan, rows=rows, sent_at=sent, there=self.free, results=results)

    def read(self, pending):
        self.clock.now = max(self.clock.now, pending.there)
        return pending.results, None, None


class Words:
    special_ids, byte_level = frozenset(), True

    def decode(self, ids, skip_special_tokens=True) -> str:
        return ""

    def token_bytes(self, token: int) -> bytes:
        return b""


class Guard:
    count, strict = 0, True

    def watch_this_thread(self) -> None: ...
    def check(self) -> None: ...
    def close(self) -> None: ...


def mock_seconds(monkeypatch, text: list[int], prompt_: list[int], seconds, **params) -> float:
    """Seconds of decoding one answer by the real engine over a mock device."""
    clock = Clock()
    for module in (engine_, results_):
        monkeypatch.setattr(module, "time", clock)
    capacity = Capacity(slots=2, length=2000, rows=64, pages=300, page_size=16, depth=15)
    cost = CostTable(tuple(range(65)))
    for rows in range(1, 33):
        cost.observe(rows, seconds(rows))
    built = SimpleNamespace(
        name="mock", capacity=capacity, tokenizer=Words(), chat=None, defaults={}, model_config=SimpleNamespace(vocab_size=2000),
        device=MockDevice(capacity, clock, text, seconds), guard=Guard(), eos=(), tiles=((1, 1),), exact=True, kept=0, cost=cost,
        cost_file=None,
        drafting_cost=CostTable(cost.charge),
        rules=Rules(depth=15, longest=4, shortest=2, as_planned=False))
    engine = Engine(built, EngineConfig(num_speculative_tokens=15))
    answer = Answer()
    try:
        engine.submit(prompt_, SamplingParams(max_tokens=len(text), **params), answer)
        answer.wait()
        assert list(answer.ids) == text
        return answer.stats.finished - answer.stats.first_token
    finally:
        engine.close()


@pytest.mark.parametrize("kind", ("chatter", "copy"))
def test_where_rows_are_dear_the_engine_keeps_what_fixed_loses(monkeypatch, kind):
    """Each row costs a third of a step. Text that cannot be foreseen: fixed 15 loses more than half of the speed, automatic at
    most three hundredths. Text that is copied: both win."""
    trace = next(each for each in policy_traces.made_up(1, 300, seed=5) if each.set == kind)
    text, given = list(trace.answer), list(trace.prompt)
    off, fixed, automatic = (mock_seconds(monkeypatch, text, given, lambda n: 1 + 0.34 * (n - 1), **params) for params in (
        dict(max_draft_tokens=0), dict(draft_window="fixed"), dict(draft_window="adaptive")))
    if kind == "chatter":
        assert off / fixed < 0.5 and off / automatic >= 0.97
    else:
        assert off / fixed > 1.5 and off / automatic > 1.5
