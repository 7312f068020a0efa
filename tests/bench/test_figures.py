"""The definitions of the figures, on answers made up by hand."""

import numpy as np
import pytest

from radiance_jax.bench import figures
from radiance_jax.bench.figures import Answer, Pass
from radiance_jax.engine.request import RequestStats


def answer(prompt="p", ids=(1, 2, 3, 4, 5), bits=(), arrival=0.0, first=1.0, finished=3.0, **stats) -> Answer:
    stats = RequestStats(arrival=arrival, first_token=first, finished=finished, completion_tokens=len(ids), **stats)
    return Answer(prompt=prompt, ids=tuple(ids), bits=tuple(bits), stats=stats)


def test_speeds_of_one_stream_are_the_same_by_either_name():
    speeds = figures.speeds([Pass(round=0, answers=(answer(),)), Pass(round=1, answers=(answer(first=2.0, finished=4.0),))])
    assert speeds["decode_tokens_per_s"] == speeds["stream_tokens_per_s"] == 8 / 4
    assert speeds["overall_tokens_per_s"] == 10 / 7 and speeds["ttft_median_s"] == 1.5
    assert (speeds["answers"], speeds["tokens"], speeds["seconds"]) == (2, 10, 7)


def test_streams_side_by_side_share_the_clock():
    both = Pass(round=0, answers=(answer(), answer(prompt="q", arrival=1.0, first=2.0, finished=5.0)))
    speeds = figures.speeds([both])
    assert speeds["decode_tokens_per_s"] == 8 / 4  # from 1 to 5, overlap counted once
    assert speeds["stream_tokens_per_s"] == 8 / 5 and speeds["overall_tokens_per_s"] == 10 / 5


def test_time_in_which_nobody_decodes_is_not_decoding():
    assert figures.covered([(5, 6), (1, 3), (0, 2)]) == 4
    assert figures.covered([(0, 5), (1, 2)]) == 5 and figures.covered([]) == 0


def test_acceptance_by_each_definition():
    """9 tokens: prefill's, then 2 + 3 of drafting steps, then three plain steps."""
    one = RequestStats(completion_tokens=9, num_decode_steps=5, num_spec_steps=2, num_draft_tokens=6,
                       num_accepted_draft_tokens=3, acceptance_histogram={1: 1, 2: 1})
    two = RequestStats(completion_tokens=3, num_decode_steps=1, num_spec_steps=1, num_draft_tokens=3,
                       num_accepted_draft_tokens=1, acceptance_histogram={1: 1})
    both = figures.acceptance([one, two])
    assert both["tokens_per_verify"] == 10 / 6  # a ratio of sums, not the mean of 8/5 and 2
    assert both["accepted_per_draft_plus_1"] == 1 + 4 / 3
    assert both["accepted_share_of_drafted_tokens"] == 4 / 9
    assert both["acceptance_histogram"] == [0, 2, 1]
    identity = both["identity"]
    assert identity["committed"] + identity["requests"] == identity["completion_tokens"] and identity["cut"] == 0


def test_a_token_over_the_limit_is_told_apart():
    cut = RequestStats(completion_tokens=4, num_decode_steps=1, num_spec_steps=1, num_draft_tokens=3,
                       num_accepted_draft_tokens=3, acceptance_histogram={3: 1})
    assert figures.acceptance([cut])["identity"] == {"committed": 4, "requests": 1, "completion_tokens": 4, "cut": 1}


def test_no_drafts_no_acceptance():
    plain = figures.acceptance([RequestStats(completion_tokens=5, num_decode_steps=4)])
    assert plain["tokens_per_verify"] == 1 and plain["accepted_per_draft_plus_1"] is None
    assert plain["accepted_share_of_drafted_tokens"] is None
    assert figures.acceptance([RequestStats(completion_tokens=1)])["tokens_per_verify"] is None


def test_the_interval_of_a_mean_is_that_of_the_normal_law():
    values = np.random.default_rng(1).standard_normal(400) + 10
    low, high = figures.bootstrap(values, lambda x: x.mean(-1))
    spread = 1.96 * values.std() / 20
    assert low == pytest.approx(values.mean() - spread, abs=0.02) and high == pytest.approx(values.mean() + spread, abs=0.02)
    assert figures.bootstrap(np.full(5, 3.0), lambda x: x.mean(-1)) == (3, 3)


def test_two_prompts_give_the_interval_that_can_be_counted():
    """Means of two draws from {0, 1} are 0, 1/2, 1 with chances 1/4, 1/2, 1/4."""
    assert figures.bootstrap(np.array([0.0, 1.0]), lambda x: x.mean(-1)) == (0, 1)


def test_a_constant_speed_up_has_no_width():
    found = figures.speedup([1.0, 2.0, 3.0], [0.5, 1.0, 1.5])
    assert found["ratio"] == found["geometric_mean"] == pytest.approx(2)
    assert found["ratio_ci95"] == pytest.approx([2, 2]) and found["prompts"] == 3


def test_ratio_of_sums_and_mean_of_ratios_differ():
    found = figures.speedup([4.0, 1.0], [1.0, 1.0])
    assert found["ratio"] == 2.5 and found["geometric_mean"] == pytest.approx(2)
    assert (found["slowest_prompt"], found["fastest_prompt"]) == (1, 4)
    assert found["ratio_ci95"] == [1, 4]


def test_differences_name_prompt_and_place():
    same = answer(bits=("0x1p0",) * 5)
    assert figures.differences([("off", same), ("on", same)]) == []
    ids, bits = answer(ids=(1, 2, 9, 4, 5)), answer(bits=("0x1p0",) * 4 + ("0x1p1",))
    assert figures.differences([("off", same), ("on", bits), ("on again", ids), ("off", answer(prompt="q"))]) == [
        {"prompt": "p", "what": "logprob bits", "in": "on", "unlike": "off", "first_at": 4},
        {"prompt": "p", "what": "ids", "in": "on again", "unlike": "off", "first_at": 2}]


def test_agreement_counts_prompts_once():
    ours = [answer(), answer(prompt="q"), answer()]
    theirs = [answer(), answer(prompt="q", ids=(1, 2, 9, 4, 5))]
    assert figures.agreement(ours, theirs) == {"prompts": 2, "equal": 1, "mean_tokens_before_the_first_difference": 3.5}


def test_seconds_are_kept_by_prompt_and_round():
    late = Pass(round=1, answers=(answer(finished=5.0),))
    assert figures.seconds_by_prompt([late, Pass(round=0, answers=(answer(),))]) == {"p": [2.0, 4.0]}


def test_ratios_of_rounds_have_a_geometric_mean_and_an_interval_around_it():
    made = figures.of_rounds([1.0, 2.0, 4.0])
    assert made["overall_ratio"] == pytest.approx(2.0) and made["overall_by_round"] == [1.0, 2.0, 4.0]
    low, high = made["overall_ratio_ci95"]
    assert 1.0 <= low < 2.0 < high <= 4.0
