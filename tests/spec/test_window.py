"""The chosen depths against brute force over random acceptances and prices."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radiance_jax.spec import window
from radiance_jax.spec.policies import adaptive
from radiance_jax.spec.window import Bid, expected, live, planned, products, runner_up, speed

RATE = st.floats(0.0, 1.0)


def rises(draw, length: int) -> np.ndarray:
    """Seconds that never fall as rows grow, with plateaus and jumps; none is a straight line."""
    steps = draw(st.lists(st.one_of(st.just(0.0), st.floats(0.0, 1.5)), min_size=length, max_size=length))
    return np.cumsum([draw(st.floats(0.2, 2.0)), *steps])


@st.composite
def bargains(draw, most: int, levels: int = 2, deepest: int = 3):
    """Bids of one to `most` sequences and a price list for all that they can ask for."""
    bids = []
    for _ in range(draw(st.integers(1, most))):
        chances = [draw(st.floats(0.0, 1.0)) for _ in range(levels)]
        total = max(sum(chances), 1.0)
        gains = tuple(products(draw(st.lists(RATE, min_size=cap, max_size=cap)))
                      for cap in [draw(st.integers(0, deepest))] * levels)
        bids.append(Bid(chance=tuple(c / total for c in chances), gains=gains))
    return bids, rises(draw, most * (1 + deepest) + 4)


@given(st.lists(RATE, max_size=6))
def test_expected_tokens_equal_enumeration(rates):
    """Over all outcomes of independent drafts: 1 + the run of right ones at the front."""
    total = 0.0
    for outcome in product((True, False), repeat=len(rates)):
        chance = np.prod([rate if right else 1 - rate for rate, right in zip(rates, outcome, strict=True)])
        run = next((i for i, right in enumerate(outcome) if not right), len(rates))
        total += chance * (1 + run)
    assert expected(rates) == pytest.approx(total)


def every_plan(bids):
    return product(*(product(*(range(cap + 1) for cap in bid.caps)) for bid in bids))


@settings(max_examples=60, deadline=None)
@given(bargains(1, levels=2, deepest=4))
def test_a_lone_sequence_takes_the_best_depths_of_all(bargain):
    """Live rows: over all pairs of depths, tokens over seconds."""
    bids, curve = bargain
    best = max(speed(bids, plan, curve) for plan in every_plan(bids))
    assert speed(bids, live(bids, curve, margin=0.0), curve) == pytest.approx(best)


@settings(max_examples=60, deadline=None)
@given(bargains(3, levels=1, deepest=3))
def test_planned_rows_are_the_best_of_all(bargain):
    bids, curve = bargain

    def rate(plan) -> float:
        tokens = sum(1 + sum(chance * sum(gains[:depth]) for chance, gains, depth in zip(bid.chance, bid.gains, depths, strict=True))
                     for bid, depths in zip(bids, plan, strict=True))
        return tokens / curve[sum(1 + max(depths) for depths in plan)]

    assert rate(planned(bids, curve, margin=0.0)) == pytest.approx(max(map(rate, every_plan(bids))))


@settings(max_examples=40, deadline=None)
@given(bargains(3, levels=2, deepest=2))
def test_live_plans_are_no_worse_than_all_or_nothing_and_stable(bargain):
    """No sequence could do better alone; and nearly as good as the best plan there is."""
    bids, curve = bargain
    plan = live(bids, curve, margin=0.0)
    mine = speed(bids, plan, curve)
    assert mine >= speed(bids, [(0,) * len(b.caps) for b in bids], curve) * (1 - 1e-9)
    assert mine >= speed(bids, [b.caps for b in bids], curve) * (1 - 1e-9)
    for i, bid in enumerate(bids):
        for depths in product(*(range(cap + 1) for cap in bid.caps)):
            assert speed(bids, [*plan[:i], depths, *plan[i + 1:]], curve) <= mine * (1 + 1e-6)


@settings(max_examples=40, deadline=None)
@given(bargains(3, levels=2, deepest=3), st.booleans(), st.integers(0, 3))
def test_equal_inputs_give_equal_decisions(bargain, as_planned, prompts):
    bids, curve = bargain
    curve = np.concatenate([curve, curve[-1] + np.arange(1, 8)])
    again = [Bid(chance=bid.chance, gains=bid.gains) for bid in bids]
    assert adaptive(bids, curve, prompts, as_planned) == adaptive(again, curve.copy(), prompts, as_planned)


def lone(*rates: float, last=None) -> Bid:
    return Bid(chance=(1.0,), gains=(products(rates),), last=last)


def test_depth_follows_the_plateaus_of_the_price():
    """Tiles of 2 and 8 rows: one draft is free, and then seven cost what two cost."""
    curve = np.array([1, 1, 1] + [2] * 6 + [3] * 8, float)
    assert live([lone(*[0.3] * 7)], curve) == [(1,)]
    assert live([lone(*[0.9] * 7)], curve) == [(7,)]
    assert live([lone(*[0.0] * 7)], curve) == [(0,)]


def test_what_pays_nobody_is_not_drafted_and_a_program_is_filled_once_it_is_paid():
    dear, flat = np.arange(40, dtype=float), np.repeat([1.0, 1.01], [9, 31])
    bids = [lone(*[0.5] * 7) for _ in range(4)]
    assert planned(bids, dear) == [(0,)] * 4
    assert sum(depth for depth, in planned(bids, flat)) == 28, "the larger program costs one hundredth more"
    assert planned(bids[:2], np.repeat([1.0, 9.0], [9, 31])) == [(3,), (3,)], "eight rows are paid in any case"


@pytest.mark.parametrize("sure", (0.05, 0.95))
def test_a_crowd_settles_within_a_few_steps_where_many_sweeps_would(sure, monkeypatch):
    """Twelve sequences of mixed acceptance, rows in tiles of eight, plans carried from step to step."""
    curve = np.array([2 + rows // 8 for rows in range(200)], float)
    rates = [[min(sure + 0.03 * i, 0.99)] * 5 for i in range(12)]
    plan = [None] * 12
    for _ in range(4):
        plan = live([lone(*each, last=last) for each, last in zip(rates, plan, strict=True)], curve)
    monkeypatch.setattr(window, "CROWD", 12)
    bids = [lone(*each) for each in rates]
    best = live(bids, curve)
    assert speed(bids, plan, curve) >= 0.98 * speed(bids, best, curve)
    assert sum(depth for depth, in plan) > 50 if sure > 0.5 else sum(depth for depth, in plan) < 8, "the rest of a tile is free"


def test_last_depths_stay_unless_others_are_clearly_better():
    curve = np.arange(10, dtype=float) * 0.5 + 1
    edge = next(rate for rate in np.arange(0.2, 0.9, 0.002) if live([lone(rate)], curve, margin=0.0) == [(1,)])
    assert live([lone(edge, last=(0,))], curve) == [(0,)] and live([lone(edge - 0.01, last=(1,))], curve) == [(1,)]
    assert live([lone(edge + 0.1, last=(0,))], curve) == [(1,)] and live([lone(edge - 0.1, last=(1,))], curve) == [(0,)]


def test_fixed_sequences_draft_beside_others_that_do_not():
    curve = 1 + np.arange(40, dtype=float)
    bids = [Bid(chance=(1.0,), gains=(products([0.1] * 3),), fixed=True), lone(0.1, 0.1, 0.1)]
    for as_planned in (False, True):
        assert adaptive(bids, curve, 0, as_planned) == [(3,), (0,)]


def test_a_probe_takes_the_second_best_of_another_price_or_stays():
    curve = np.array([1, 1, 1] + [2] * 6 + [9] * 8, float)
    bid = lone(*[0.6] * 7)
    assert runner_up(bid, (1,), 0, 1.0, curve, False) == (7,)
    assert runner_up(bid, (7,), 0, 1.0, curve, False) == (1,)
    assert runner_up(lone(*[0.1] * 7), (1,), 0, 5.0, curve, False) == (1,), "the other price would waste four tokens"
    assert window.MARGIN < 0.1
