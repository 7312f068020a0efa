"""Acceptance records: conditional, smoothed, fading; and the host's shadow of lookup."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radiance_jax.spec import evidence, lookup, record
from radiance_jax.spec.evidence import EDGES, LEVELS, LOOKUP_LEVELS, NOTHING
from radiance_jax.spec.record import OWN_KEEP, OWN_WEIGHT, Acceptance, Flow
from radiance_jax.spec.shadow import Shadow


def test_a_place_counts_as_reached_only_if_all_before_it_were_right():
    record_ = Acceptance(4, keep=1.0, weight=1.0)
    before = record_.rates(0, 4)
    record_.add_verdict(0, drafted=4, accepted=1)
    after = record_.rates(0, 4)
    assert after[0] > before[0] and after[1] < before[1] and after[2:] == before[2:]
    record_.add_verdict(0, drafted=2, accepted=2)
    assert record_.rates(0, 4)[2:] == before[2:], "what was not drafted proves nothing"


@given(st.integers(0, LEVELS - 1), st.lists(st.booleans(), max_size=30))
def test_rates_are_the_documented_formula(level, outcomes):
    kept = Acceptance(1, OWN_KEEP, OWN_WEIGHT)
    for right in outcomes:
        kept.add(level, 0, right)
    seen = sum(OWN_KEEP**age for age in range(len(outcomes)))
    hits = sum(OWN_KEEP**age * right for age, right in enumerate(reversed(outcomes)))
    assert kept.rate(level, 0) == pytest.approx((hits + OWN_WEIGHT * record.prior(level, 0)) / (seen + OWN_WEIGHT))


def test_estimates_follow_a_drift_and_start_from_everyone():
    shared = Acceptance(2, record.SHARED_KEEP, record.SHARED_WEIGHT)
    first = Acceptance(2, OWN_KEEP, OWN_WEIGHT, shared)
    for _ in range(200):
        first.add(0, 0, True)
    assert first.rate(0, 0) > 0.95
    assert Acceptance(2, OWN_KEEP, OWN_WEIGHT, shared).rate(0, 0) == shared.rate(0, 0) > 0.9
    for _ in range(40):
        first.add(0, 0, False)
    assert first.rate(0, 0) < 0.3, "forty misses weigh more than two hundred hits before them"
    chance = random.Random(0)
    for _ in range(400):
        first.add(0, 0, chance.random() < 0.6)
    assert first.rate(0, 0) == pytest.approx(0.6, abs=0.3)


def test_bands_of_context():
    assert [record.band(n) for n in (0, 1023, 1024, 4096, 99999)] == [0, 0, 1, 2, 3]


@given(st.lists(st.tuples(st.integers(NOTHING, LOOKUP_LEVELS - 1), st.integers(NOTHING, LOOKUP_LEVELS - 1)), max_size=30))
def test_chances_sum_to_one_and_lean_to_what_was_seen(steps):
    flow = Flow(0.95, 4.0, Flow(0.998, 8.0))
    for before, after in steps:
        flow.add(before, after)
    for before in range(NOTHING, LOOKUP_LEVELS):
        assert sum(flow.after(before)) == pytest.approx(1.0)
    for _ in range(60):
        flow.add(NOTHING, 2)
    assert flow.after(NOTHING)[2 - NOTHING] > 0.8


def test_depths_are_packed_into_one_number():
    depths = (0, 7, 64, 15)
    packed = evidence.pack(depths)
    assert packed < 2**31 and tuple(int(evidence.at(packed, level)) for level in range(LEVELS)) == depths
    assert evidence.at(np.int32(packed), np.arange(LEVELS, dtype=np.int32)).tolist() == list(depths)
    assert [evidence.level(n) for n in (0, EDGES[0] - 1, EDGES[0], EDGES[1])] == [0, 0, 1, 2]


def shadow_of(tokens: list[int], given_: int, **sizes) -> tuple[Shadow, list[tuple[int, int, bool]]]:
    told: list[tuple[int, int, bool]] = []
    shadow = Shadow(**sizes)
    shadow.read(tokens[:given_])
    for token in tokens[given_:]:
        shadow.push(token, lambda *what: told.append(what))
    return shadow, told


@settings(max_examples=80, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=2, max_size=40), st.integers(1, 4), st.integers(0, 3), st.integers(1, 5))
def test_the_shadow_finds_what_lookup_finds(tokens, longest, fewer, window):
    sizes = dict(longest=longest, shortest=max(longest - fewer, 1), window=window)
    for end in range(2, len(tokens) + 1):
        shadow, _ = shadow_of(tokens[:end], 1, **sizes)
        found = lookup.propose(tokens[:end], **sizes)
        assert shadow.count == len(found)
        if found:
            each = shadow._open[-1]
            assert shadow.tokens[each.source:each.source + each.count] == found
        assert (shadow.level == NOTHING) == (not found)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 2), min_size=6, max_size=40), st.integers(1, 5))
def test_the_shadow_judges_every_proposal_as_verification_would(tokens, window):
    sizes = dict(longest=3, shortest=1, window=window)
    _, told = shadow_of(tokens, 1, **sizes)
    expected = []
    for end in range(2, len(tokens)):
        for place, draft in enumerate(lookup.propose(tokens[:end], **sizes)):
            if end + place < len(tokens):
                expected.append((place, draft == tokens[end + place]))
                if draft != tokens[end + place]:
                    break
    assert sorted((place, right) for _, place, right in told) == sorted(expected)


def test_anchors_are_judged_once_their_proposal_is():
    shadow = Shadow(longest=2, shortest=1, window=3)
    shadow.read([1, 2, 3, 4, 9, 1])
    shadow.push(2, lambda *_: None)
    shadow.anchor()  # 3, 4, 9 are proposed
    for token, judged in ((3, []), (4, []), (5, [2])):
        assert shadow.judged == []
        shadow.push(token, lambda *_: None)
        assert shadow.judged == judged
    shadow.judged.clear()
    shadow.anchor()  # nothing is proposed behind 5
    assert shadow.judged == [0]
