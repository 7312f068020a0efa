"""A neural drafter changes no bit; and it is fed what it needs, which no output can show: its acceptance does."""

from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest

from radiance_jax.bench import forced
from tests.exactness import axes, neural, neural_faults
from tests.exactness.conftest import KIND
from tests.exactness.lab import ENTRIES, Difference, Lab, Request
from tests.exactness.requests import ALL, GREEDY, LONG, WARM, request

DEPTH, TOKENS = neural.DEPTH, 33  # the prompt's own token, and four full steps
SCRIPTED = tuple(request(20 + i, length, max_tokens=TOKENS, temperature=heat)
                 for i, (length, heat) in enumerate(((21, 0.0), (5, 0.5), (64, 0.0), (90, 0.5), (2, 0.0), (17, 0.0))))


@pytest.fixture(scope="session")
def neural_labs(folder):
    made: dict[int, Lab] = {}

    def lab(tp: int) -> Lab:
        if tp not in made:
            made[tp] = neural.open_lab(KIND[tp], tp, folder, base=neural_faults.hooks(DEPTH) if tp == 1 else None)
        made[tp].forget()
        return made[tp]

    yield lab
    for each in made.values():
        each.close()


@pytest.fixture(params=(1, *(pytest.param(tp, marks=pytest.mark.long) for tp in (2, 4))), ids=lambda tp: f"tp{tp}")
def lab(neural_labs, request):
    return neural_labs(request.param)


@pytest.fixture(params=(1, pytest.param(4, marks=pytest.mark.long)), ids=lambda tp: f"tp{tp}")
def script_lab(neural_labs, request):
    """One whose target can write the script."""
    return neural_labs(request.param)


@contextmanager
def always_right(lab: Lab, by: str = "observed"):
    """Within, target and drafter both write the script; `by`: what the drafter knows it from."""
    with lab.script(), neural.weights(lab, neural.toy(by)):
        lab.forget()
        yield


def right(lab: Lab, each: Request, answer, what: str) -> None:
    """The same answer, and every draft was the script."""
    lab.check(each, answer, what)
    assert set(answer.steps[:-1]) == {DEPTH + 1}, f"{what}: accepted {answer.steps}"


# ---- the same answers ----


def test_a_drafter_that_knows_nothing(lab):
    answers = [lab.check(each, lab.ask(each), "with random drafts") for each in ALL]
    drafts, accepted = (sum(getattr(each.stats, name) for each in answers)
                        for name in ("num_draft_tokens", "num_accepted_draft_tokens"))
    assert drafts > 10 * accepted and lab.engine.stats().by_proposer["neural"][0] >= drafts


def test_eight_at_once(lab):
    for each, answer in zip(ALL[:8], lab.ask_all(ALL[:8]), strict=True):
        assert lab.check(each, answer, "in a crowd").stats.num_draft_tokens > 0


def test_copies_beside_the_drafter(lab):
    planner, before = lab.engine._planner, lab.engine.stats().by_proposer
    rules = planner.rules
    planner.rules = replace(rules, policy=neural.copies_first)
    try:
        for each, answer in zip(ALL[:8], lab.ask_all(ALL[:8]), strict=True):
            lab.check(each, answer, "copied and drafted")
    finally:
        planner.rules = rules
    after = lab.engine.stats().by_proposer
    assert all(after[who][0] > before.get(who, (0, 0))[0] for who in ("lookup", "neural")), (before, after)


def test_drafts_forced_over_the_drafters(lab):
    for each, pattern in ((GREEDY, (3, 0, DEPTH, 1)), (WARM, (0, 2))):
        lab.accepting(each, *pattern)
        answer = lab.check(each, lab.ask(each), f"accepting {pattern}")
        assert answer.steps[:-1] == forced.steps_of(pattern, len(answer.ids), DEPTH)[:-1]


def test_every_circumstance(lab):
    for name, value in (("chunk", 7), ("mates", 6), ("slot", 4), ("preempted", 2), ("depth", 3), ("drafter", "pattern"),
                        ("policy", "adaptive"), ("policy", "switching")):
        axes.run(lab, WARM, {name: value})
    axes.run(lab, LONG[1], {"chunk": 16, "preempted": 1})


def test_the_oracle_is_that_of_an_engine_without_a_drafter(lab, labs):
    plain = labs(lab.config.mesh_size)
    for each in (GREEDY, WARM, *LONG):
        lab.check(each, plain.oracle(each), "without a drafter")


# ---- what it observed: a wrong, stale or missing context row makes the next drafts wrong ----


def test_all_is_accepted_where_the_drafter_is_right(script_lab):
    with always_right(script_lab):
        for each in SCRIPTED:
            right(script_lab, each, script_lab.ask(each), "alone")
        for each, answer in zip(SCRIPTED, script_lab.ask_all(SCRIPTED), strict=True):
            right(script_lab, each, answer, "in a crowd")


def test_a_prompt_in_chunks_is_observed_whole(script_lab):
    with always_right(script_lab):
        for rows in (DEPTH + 1, 33):
            for each in SCRIPTED[:4]:
                with script_lab.chunks(rows):
                    answer = script_lab.ask(each)
                right(script_lab, each, answer, f"{rows} rows a step")


def test_refused_drafts_leave_no_trace(script_lab):
    """Every other proposal is wrong from its first to its last draft: the next one must not have seen them."""
    drafts, counts = np.zeros((ENTRIES, script_lab.depth), np.int32), np.full(ENTRIES, forced.LOOKUP, np.int32)
    counts[1::DEPTH + 2] = DEPTH
    with always_right(script_lab):
        for each in SCRIPTED:
            script_lab.propose(each, (drafts, counts))
        for answers in ([script_lab.ask(each) for each in SCRIPTED], script_lab.ask_all(SCRIPTED)):
            for each, answer in zip(SCRIPTED, answers, strict=True):
                script_lab.check(each, answer, "between wrong drafts")
                full = answer.steps[:-1]
                assert full == ([1, DEPTH + 1] * len(full))[:len(full)], full


def test_a_slots_next_owner_sees_nothing_of_the_last(script_lab):
    with always_right(script_lab):
        for each in (*SCRIPTED, *reversed(SCRIPTED)):
            with script_lab.slot(3):
                right(script_lab, each, script_lab.ask(each), "in a slot used before")


def test_a_preempted_sequence_is_observed_again(script_lab):
    with always_right(script_lab):
        for step in (1, 2, 3):
            with script_lab.preempting(step) as done:
                answer = script_lab.ask(SCRIPTED[0])
            script_lab.check(SCRIPTED[0], answer, "sent away")
            assert done and sorted(answer.steps[:-1])[1:] == [DEPTH + 1] * (len(answer.steps) - 2), answer.steps


def test_the_drafter_draws_with_the_targets_noise(script_lab):
    """So hot that the likeliest token is seldom drawn: only who draws with the same noise agrees."""
    with always_right(script_lab, "anchor"):
        for heat in (4.0, 8.0):
            for each in SCRIPTED[:4]:
                hot = each.but(temperature=heat)
                answer = script_lab.check(hot, script_lab.ask(hot), "hot")
                stats = answer.stats
                assert stats.num_accepted_draft_tokens > 0.9 * stats.num_draft_tokens, stats


# ---- and these tests can see ----


@pytest.mark.parametrize("name", neural_faults.FAULTS)
def test_a_fault_lowers_acceptance_and_changes_no_answer(neural_labs, name):
    lab, test = neural_labs(1), globals()[neural_faults.FAULTS[name]]
    try:
        with neural_faults.inject(name, lab), pytest.raises(AssertionError) as failure:
            test(lab)
    finally:
        lab.idle_or_restart()
    assert failure.type is not Difference, f"{name}: an answer changed"
