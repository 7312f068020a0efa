"""Prompt lookup on the device against the host form, which is its oracle."""

from functools import partial
from itertools import product

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radiance_jax.spec import lookup, lookup_device
from radiance_jax.spec.evidence import level
from radiance_jax.spec.shadow import Shadow

SLOTS, CAPACITY = 16, 32
VARIANTS = ((4, 1, 5), (4, 2, 3), (3, 3, 7), (1, 1, 4), (6, 2, 40))  # longest, shortest, window


def compiled(variant):
    longest, shortest, window = variant
    return jax.jit(partial(lookup_device.propose, longest=longest, shortest=shortest, window=window))


PROGRAMS = {variant: compiled(variant) for variant in VARIANTS}
LOOKING = {(longest, shortest, window): jax.jit(partial(lookup_device.look, longest=longest, shortest=shortest, window=window))
           for longest, shortest, window in VARIANTS}


def on_device(variant, tokens: np.ndarray, length: np.ndarray) -> list[list[int]]:
    drafts, count = map(np.asarray, PROGRAMS[variant](tokens, length))
    assert drafts.shape == (len(tokens), variant[2])
    return [row[:n].tolist() for row, n in zip(drafts, count, strict=True)]


def on_host(variant, tokens: np.ndarray, length: np.ndarray) -> list[list[int]]:
    longest, shortest, window = variant
    return [lookup.propose(row[:n].tolist(), longest=longest, shortest=shortest, window=window)
            for row, n in zip(tokens, length, strict=True)]


@st.composite
def histories(draw):
    """[SLOTS, CAPACITY] tokens over 1 to 4 symbols; half of them periodic with a few misprints; any lengths."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    symbols = draw(st.integers(1, 4))
    tokens = rng.integers(0, symbols, (SLOTS, CAPACITY))
    for row in tokens[::2]:
        row[:] = np.resize(row[: draw(st.integers(1, 9))], CAPACITY)
        row[rng.integers(0, CAPACITY, 2)] = rng.integers(0, symbols, 2)
    lengths = draw(st.lists(st.integers(0, CAPACITY), min_size=SLOTS, max_size=SLOTS))
    return tokens.astype(np.int32), np.array(lengths, np.int32)


@pytest.mark.parametrize("variant", VARIANTS)
@settings(max_examples=60, deadline=None)
@given(histories())
def test_device_agrees_with_host(variant, history):
    assert on_device(variant, *history) == on_host(variant, *history)


@pytest.mark.parametrize(("symbols", "longest_text"), ((2, 10), (3, 6)))
def test_device_agrees_with_host_on_every_short_text(symbols, longest_text):
    variant = (3, 1, 4)
    texts = [text for n in range(longest_text + 1) for text in product(range(symbols), repeat=n)]
    tokens = np.zeros((len(texts), longest_text + 2), np.int32)
    for row, text in zip(tokens, texts, strict=True):
        row[: len(text)] = text
    length = np.array([len(text) for text in texts], np.int32)
    drafts, count = map(np.asarray, compiled(variant)(tokens, length))
    assert [row[:n].tolist() for row, n in zip(drafts, count, strict=True)] == on_host(variant, tokens, length)


@settings(max_examples=60, deadline=None)
@given(histories(), st.integers(0, 2**32 - 1))
def test_tokens_behind_the_committed_text_never_matter(history, seed):
    tokens, length = history
    stale = np.random.default_rng(seed).integers(0, 4, tokens.shape).astype(np.int32)
    other = np.where(np.arange(CAPACITY) < length[:, None], tokens, stale)
    for variant in VARIANTS:
        assert on_device(variant, tokens, length) == on_device(variant, other, length)


@settings(max_examples=60, deadline=None)
@given(histories())
def test_a_proposal_is_committed_text_behind_an_earlier_match(history):
    tokens, length = history
    for longest, shortest, window in VARIANTS:
        proposals = on_device((longest, shortest, window), tokens, length)
        for row, n, drafts in zip(tokens.tolist(), length, proposals, strict=True):
            if not drafts:
                continue
            suffix, ends = row[n - shortest:n], range(shortest, n)
            assert any(row[e - shortest:e] == suffix and row[e:min(e + window, n)] == drafts for e in ends)


@pytest.mark.parametrize("period", range(1, 8))
def test_periodic_text_is_continued_for_one_period(period):
    tokens = np.tile(np.resize(np.arange(period), CAPACITY), (SLOTS, 1)).astype(np.int32)
    length = np.arange(period + 5, period + 5 + SLOTS).astype(np.int32)
    for drafts, row, n in zip(on_device((4, 2, 3), tokens, length), tokens, length, strict=True):
        assert drafts == row[n:n + min(period, 3)].tolist()


def test_the_longest_match_wins_then_the_latest():
    tokens = np.full((2, CAPACITY), 9, np.int32)
    tokens[0, :12] = (1, 2, 3, 5, 0, 2, 3, 6, 0, 1, 2, 3)  # 1 2 3 stood before 5, the later 2 3 before 6
    tokens[1, :12] = (1, 2, 3, 5, 1, 2, 3, 6, 0, 1, 2, 3)  # the later of two equal matches stood before 6
    found = on_device((4, 2, 3), tokens, np.array([12, 12], np.int32))
    assert [drafts[0] for drafts in found] == [5, 6]


@settings(max_examples=10, deadline=None)
@given(histories())
def test_the_evidence_on_the_device_is_that_of_the_host(history):
    """The level by which the device picks a depth is the one under which the host keeps its record."""
    tokens, length = history
    for variant in VARIANTS:
        longest, shortest, window = variant
        _, count, agreement = map(np.asarray, LOOKING[variant](tokens, length))
        for row, n, found, agrees in zip(tokens.tolist(), length, count, agreement, strict=True):
            shadow = Shadow(longest=longest, shortest=shortest, window=window)
            shadow.read(row[:max(n - 1, 0)])
            for token in row[max(n - 1, 0):n]:
                shadow.push(token, lambda *_: None)
            assert shadow.count == found and (not found or shadow.level == level(agrees))
