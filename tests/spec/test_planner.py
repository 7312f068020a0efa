"""The planner: short blocks, floors, lookup beside a neural drafter, probes, and what it counts."""

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radiance_jax.spec.cost import CostTable
from radiance_jax.spec.evidence import LEVELS, NEURAL
from radiance_jax.spec.planner import PROBE_EVERY, Planner, Rules, Want
from radiance_jax.spec.short import ROWS, Short

RULES = Rules(depth=7, longest=4, shortest=2, as_planned=False)


def planner(rules: Rules = RULES, seconds=lambda rows: 1 + 0.05 * (rows - 1)) -> Planner:
    table = CostTable(tuple(range(65)))
    for rows in range(1, 65):
        table.observe(rows, seconds(rows))
    return Planner(rules, table)


@pytest.mark.parametrize(("start", "leaves"), ((1, 1), (2, 1), (3, 1), (4, 1), (8, 5), (20, 17)))
def test_the_short_block_comes_with_a_crowd_and_goes_with_it(start, leaves):
    short = Short(start)
    assert [short.update(n) for n in range(start)] == [False] * start and short.update(start)
    for decoding in range(start, leaves, -1):
        assert short.update(decoding), "no sooner than below start - 2"
    assert short.update(leaves) == (start == leaves)


@given(st.integers(1, 12), st.lists(st.integers(0, 14), max_size=40))
def test_the_short_block_is_on_at_its_start_and_off_when_alone(start, counts):
    short = Short(start)
    for decoding in counts:
        on = short.update(decoding)
        assert on or decoding < start
        assert not on or decoding > 1 or start == 1


def test_a_crowd_is_given_the_short_block():
    one = planner(replace(RULES, short_from=3))
    few, many = ([Want(key, 7, fixed=True) for key in range(count)] for count in (2, 3))
    assert {max(depths) for depths in one.plan(few)} == {7} and {max(depths) for depths in one.plan(many)} == {ROWS - 1}


def planned_for(one: Planner) -> list[int]:
    """How many sequences each plan that it really makes is for."""
    made, lookup = [], one._lookup_bids
    one._lookup_bids = lambda wants, *given: made.append(len(wants)) or lookup(wants, *given)
    return made


@pytest.mark.parametrize(("seconds", "asked"), ((0.002, 2), (1.0, 8)))
def test_a_plan_serves_the_next_steps_where_those_are_short(seconds, asked):
    """Eight steps of the same sequences; then one less, and prompts beside them, are asked about at once."""
    one, two = planner(seconds=lambda rows: seconds * (1 + 0.05 * (rows - 1))), [Want(0, 7), Want(1, 7)]
    calls = planned_for(one)
    first = one.plan(two)
    assert [one.plan(two) for _ in range(7)] == [first] * 7 and len(calls) == asked
    one.plan(two[:1])
    one.plan(two[:1], prompts=5)
    assert calls[asked:] == [1, 1]


@pytest.mark.parametrize("other", (Want(0, 6), Want(0, 7, fixed=True), Want(1, 7), None))
def test_a_plan_serves_nothing_that_has_changed(other):
    """Another cap, depths that a request asks for, another sequence; and (None) the same one, where lookup has found
    something."""
    one = planner(seconds=lambda rows: 0.002 * (1 + 0.05 * (rows - 1)))
    calls = planned_for(one)
    one.read(0, [1, 2, 3, 4, 5, 6])
    for _ in range(2):
        one.plan([Want(0, 7)])
    assert len(calls) == 1
    if other is None:
        one.verified(0, [1, 2, 3, 4, 5, 6, 1, 2, 3], (0,) * LEVELS, 7, 0, 0)
    one.plan([other or Want(0, 7)])
    assert len(calls) == 2


def test_another_policy_is_asked_every_time():
    def policy(bids, curve, prompts, as_planned):
        return [(len(calls) % 3,) * LEVELS for _ in bids]

    one = planner(replace(RULES, policy=policy), lambda rows: 0.002 * rows)
    calls = planned_for(one)
    assert [one.plan([Want(0, 7)])[0][0] for _ in range(4)] == [1, 2, 0, 1]


def test_plans_serve_while_a_probe_waits_for_its_turn_and_none_serves_twice_that_holds_one():
    one = planner(seconds=lambda rows: 0.002 * (1 + 0.5 * (rows - 1)))
    for _ in range(40):
        one._track(0, 10).acceptance.add(0, 0, False)
    asked = planned_for(one)
    plans = [one.plan([Want(0, 7)])[0][0] for _ in range(PROBE_EVERY - 1)]
    assert set(plans) == {0} and len(asked) == PROBE_EVERY // 4
    plans = [one.plan([Want(0, 7)])[0][0] for _ in range(8)]
    assert set(plans[1:]) == {1} and len(asked) == PROBE_EVERY // 4 + sum(plans)


def run_text(one: Planner, key: int, tokens: list[int], start: int) -> None:
    """Reads `tokens` from `start` on as an answer given a token a step, undrafted."""
    one.read(key, tokens[:start])
    one.drawn(key, tokens[:start + 1])
    for end in range(start + 2, len(tokens) + 1):
        one.verified(key, tokens[:end], (0,) * LEVELS, 7, 0, 0)
        one.stepped(1, 1.0, 0)


def test_it_learns_at_depth_zero():
    """Two texts, neither ever drafted: the one that repeats itself gets drafts in the end, the other none."""
    one = planner(seconds=lambda rows: 1 + 0.3 * (rows - 1))
    period = list(range(20, 40))
    chance = random.Random(1)
    run_text(one, 0, period * 4, 22)
    run_text(one, 1, [chance.randrange(6) for _ in range(90)], 10)
    copying, guessing = one.plan([Want(0, 7), Want(1, 7)])
    assert copying[2] == 7 and guessing[:2] == (0, 0)
    assert one.counts.deferred > 60 and one.counts.chosen == {0: one.counts.chosen[0]}
    assert one.counts.regret() > 0.1, "drafting all the time would have been faster here"


def test_a_floor_cuts_at_the_first_place_below_it():
    def allowed(p_min: float) -> tuple[int, ...]:
        one = planner(replace(RULES, p_min=p_min))
        for _ in range(100):
            for place, right in enumerate((True, True, False)):
                one._track(0, 10).acceptance.add(0, place, right)
        return one.plan([Want(0, 7, fixed=True)])[0]

    assert allowed(0.0)[0] == 7 and allowed(0.6)[0] == 2 and allowed(0.999)[0] == 0


def test_lookup_and_a_neural_drafter_are_weighed_for_each_sequence():
    """Copyable and draftable text are different things: each sequence takes whoever is right more often there."""
    one = planner(replace(RULES, neural=True))
    for key, rates in ((0, (0.95, 0.3)), (1, (0.1, 0.8))):  # lookup's at the strongest level, the drafter's
        track, chance = one._track(key, 10), random.Random(key)
        for _ in range(200):
            for place in range(7):
                track.acceptance.add(2, place, chance.random() < rates[0])
                one._neural(track, 10, 7).add(NEURAL, place, chance.random() < rates[1])
    copied, drafted = one.plan([Want(0, 7), Want(1, 7)])
    assert copied[2] == 7 and drafted[2] == 0 and drafted[NEURAL] > copied[NEURAL]


def test_without_lookup_the_drafter_has_every_place():
    one = planner(replace(RULES, neural=True, lookup=0))
    run_text(one, 0, [1, 2, 3, 4] * 12, 9)
    for fixed in (True, False):
        depths = one.plan([Want(0, 7, fixed=fixed)])[0]
        assert depths[:NEURAL] == (0, 0, 0) and depths[NEURAL] > 0
    assert one.counts.deferred == 0, "nothing was found that could have been left alone"


def test_a_drafter_whose_pass_is_dear_does_not_run():
    def neural_depth(dearer: float) -> int:
        one = planner(replace(RULES, neural=True))
        for rows in range(1, 17):
            one.drafting_cost.observe(rows, dearer * (1 + 0.05 * (rows - 1)))
        return one.plan([Want(0, 7)])[0][NEURAL]

    assert neural_depth(1.0) > 0 and neural_depth(1.3) > 0 and neural_depth(5.0) == 0


def test_verdicts_of_a_short_block_are_kept_apart():
    one = planner(replace(RULES, neural=True, short_from=2))
    one.plan([Want(0, 7), Want(1, 7)])
    one.verified(0, [], (0, 0, 0, 3), 7, 3, 0, neural=True)
    track = one._track(0, 0)
    assert set(track.neural) == {ROWS - 1} | ({7} & set(track.neural))
    assert one._neural(track, 0, ROWS - 1).rate(NEURAL, 0) < one._neural(track, 0, 7).rate(NEURAL, 0)


def test_what_lies_behind_the_end_of_an_answer_was_not_refused():
    """Of seven drafts two are drawn, the second one ends the answer: the third was neither right nor wrong."""
    one, other = (planner(replace(RULES, neural=True)) for _ in range(2))
    for each, judged in ((one, 2), (other, None)):
        for _ in range(20):
            each.verified(0, [], (0, 0, 0, 7), 7, 7, 2, neural=True, judged=judged)
    new = planner(replace(RULES, neural=True))
    rates, guesses = (each._neural(each._track(0, 0), 0, 7).rates(NEURAL, 3) for each in (one, new))
    assert rates[:2] > guesses[:2] and rates[2] == guesses[2]
    assert one.counts.reached == [20, 20, 0, 0, 0, 0, 0]
    assert other._neural(other._track(0, 0), 0, 7).rate(NEURAL, 2) < guesses[2] and other.counts.reached[2] == 20
    one.verified(0, [], (0, 0, 0, 7), 7, 7, 2, neural=True, judged=3)  # the third was drawn anew: refused
    assert one._neural(one._track(0, 0), 0, 7).rate(NEURAL, 2) < guesses[2]


def test_a_probe_comes_rarely_and_ends_with_a_draft():
    one = planner(seconds=lambda rows: 1 + 0.5 * (rows - 1))
    for rows in range(1, 65):
        assert one.cost.knows(rows)
    for _ in range(40):
        one._track(0, 10).acceptance.add(0, 0, False)
    plans = [one.plan([Want(0, 7)])[0][0] for _ in range(PROBE_EVERY + 5)]
    assert set(plans[:PROBE_EVERY - 1]) == {0} and set(plans[PROBE_EVERY:]) == {1}
    one.verified(0, [], (1, 1, 1, 0), 7, 1, 0)
    assert one.counts.probes == 1 and one.plan([Want(0, 7)])[0][0] == 0


def test_sequences_without_drafts_cost_rows_and_take_none():
    one = planner()
    assert one.plan([Want(0, 0), Want(1, 7)])[0] == (0,) * LEVELS and one.plan([]) == []
    assert not one.verified(0, [], (0,) * LEVELS, 0, 0, 0)
    one.forget(0)
    one.forget(0)


def test_the_record_behind_is_that_of_the_context_band():
    one = planner()
    one.read(0, [1] * 64)
    one.drawn(0, [1] * 1000)
    near = one._track(0, 0).acceptance.behind
    one.drawn(0, [1] * 1100)
    assert one._track(0, 0).acceptance.behind is not near
