"""Acceptance by agreement against a loop that commits one token at a time."""

import jax
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from radiance_jax.spec.verify import accept

SLOTS, DEPTH, STOPS = 8, 5, 3
RUN = jax.jit(accept)
GOES_ON, STOPPED, FULL = 0, 1, 2


def committed(drawn, drafts, count, draws, stops, length, limit):
    """(accepted, emitted, ended) of one sequence, token by token."""
    accepted = 0
    while accepted < count and drawn[accepted] == drafts[accepted]:
        accepted += 1
    if not draws:
        return accepted, 0, GOES_ON
    for emitted, token in enumerate(drawn[: accepted + 1], start=1):
        if token in [stop for stop in stops if stop >= 0]:
            return accepted, emitted, STOPPED
        if length + emitted == limit:
            return accepted, emitted, FULL
    return accepted, accepted + 1, GOES_ON


@st.composite
def sequences(draw):
    """One slot: draws over few tokens, drafts that follow them for a while, stops and limits close by."""
    token = st.integers(0, 5)
    drawn = draw(st.lists(token, min_size=DEPTH + 1, max_size=DEPTH + 1))
    agree = draw(st.integers(0, DEPTH))
    drafts = drawn[:agree] + draw(st.lists(token, min_size=DEPTH - agree, max_size=DEPTH - agree))
    stops = draw(st.lists(st.one_of(st.just(-1), st.integers(0, 9)), min_size=STOPS, max_size=STOPS))
    length = draw(st.integers(1, 50))
    limit = length + draw(st.one_of(st.integers(1, DEPTH + 2), st.just(1000)))
    return drawn, drafts, draw(st.integers(0, DEPTH)), draw(st.booleans()), stops, length, limit


def verdicts(slots) -> list[tuple[int, int, int]]:
    drawn, drafts, count, draws, stops, length, limit = (np.array(x) for x in zip(*slots, strict=True))
    ints = [x.astype(np.int32) for x in (drawn, drafts, count)]
    got = RUN(*ints, draws.astype(bool), *(x.astype(np.int32) for x in (stops, length, limit)))
    return list(zip(*(np.asarray(x).tolist() for x in (got.accepted, got.emitted, got.ended)), strict=True))


@settings(max_examples=120, deadline=None)
@given(st.lists(sequences(), min_size=SLOTS, max_size=SLOTS))
def test_acceptance_equals_committing_one_token_at_a_time(slots):
    assert verdicts(slots) == [committed(*slot) for slot in slots]


def slot(drawn=(1, 2, 3, 4, 5, 0), drafts=(1, 2, 3, 4, 5), count=DEPTH, draws=True, stops=(-1, -1, -1), length=10,
         limit=100):
    return drawn, drafts, count, draws, stops, length, limit


def test_agreement_ends_at_the_first_difference_whatever_follows():
    drafts = [tuple(9 if i == at else i + 1 for i in range(DEPTH)) for at in range(DEPTH)]
    slots = [slot(drafts=d) for d in drafts] + [slot(), slot(count=0), slot(count=2)]
    assert [v[1] for v in verdicts(slots)] == [1, 2, 3, 4, 5, 6, 1, 3]


def test_a_run_is_cut_at_its_first_stop_token():
    slots = [slot(stops=(-1, token, 5)) for token in (1, 2, 3, 4)]
    slots += [slot(stops=(0, -1, -1)), slot(stops=(7, 8, 9))] * 2
    ends = [(1, STOPPED), (2, STOPPED), (3, STOPPED), (4, STOPPED)] + [(6, STOPPED), (6, GOES_ON)] * 2
    assert [v[1:] for v in verdicts(slots)] == ends


def test_a_stop_token_that_was_drafted_but_not_drawn_ends_nothing():
    slots = [slot(drafts=(1, 7, 3, 4, 5), stops=(7, -1, -1))] * SLOTS
    assert verdicts(slots) == [(1, 2, GOES_ON)] * SLOTS


def test_a_stop_token_behind_the_limit_is_not_reached():
    slots = [slot(stops=(3, -1, -1), limit=10 + room) for room in range(1, SLOTS + 1)]
    assert [v[1:] for v in verdicts(slots)] == [(1, FULL), (2, FULL)] + [(3, STOPPED)] * 6


def test_who_draws_nothing_emits_and_ends_nothing():
    """Neither who prefills nor who has ended, at a stop token or at the limit."""
    slots = [slot(draws=False, count=0, stops=(1, 0, -1), limit=limit) for limit in (10, 11)] * (SLOTS // 2)
    assert verdicts(slots) == [(0, 0, GOES_ON)] * SLOTS


def test_depth_zero_emits_the_one_draw():
    got = RUN(np.array([[4], [5]], np.int32), np.zeros((2, 0), np.int32), np.zeros(2, np.int32), np.ones(2, bool),
              np.array([[5], [5]], np.int32), np.array([3, 3], np.int32), np.array([9, 9], np.int32))
    assert np.asarray(got.emitted).tolist() == [1, 1]
    assert np.asarray(got.ended).tolist() == [GOES_ON, STOPPED]
