"""Paged attention as a GPU kernel, in the interpreter: against dense float64, and a row's bits against themselves."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kernels import INTERPRET, random, same_bits, wide
from radiance_jax.pallas.paged_attention import make_segments
from radiance_jax.pallas.splits import splits_of, work_list
from radiance_jax.pallas.verify_attention import BLOCK, SplitShape, make_places, segment_height, verify_attention

GROUPS, LENGTH, ROWS, CAPACITY = 2, 192, 8, 4
SLOW = pytest.mark.long


@dataclass
class Case:
    """Sequences' keys and values [S, T, G, H] behind page tables; whatever is not theirs is NaN."""

    share: int
    size: int
    page: int

    def __post_init__(self):
        rng = np.random.default_rng(self.share)
        width, slots = LENGTH // self.page, 3
        self.k, self.v = (random(rng, slots, LENGTH, GROUPS, self.size) for _ in range(2))
        self.q = random(rng, slots, LENGTH, GROUPS, self.share, self.size, scale=2.0)
        pages = rng.permutation(np.arange(1, 1 + slots * width)).reshape(slots, width)
        self.tables = jnp.asarray(pages, jnp.int32)
        self.height = segment_height(self.share, self.size)

    def cache(self, position: np.ndarray, count: np.ndarray) -> jax.Array:
        """[P, 2G, page, H] with the keys and values up to the last row of every slot."""
        out = jnp.full((2 + self.tables.size, 2 * GROUPS, self.page, self.size), jnp.nan, jnp.bfloat16)
        for slot, last in enumerate(position + count):
            at = np.arange(last if count[slot] else 0)
            both = jnp.concatenate([self.k[slot, at], self.v[slot, at]], axis=1)
            out = out.at[self.tables[slot, at // self.page], :, at % self.page].set(both)
        return out

    def attend(self, position, count, **how) -> jax.Array:
        """[R, G, share, H]; rows stand slot by slot."""
        position, count = np.array(position), np.array(count)
        start = np.cumsum(count) - count
        segments = make_segments(*(jnp.asarray(x, jnp.int32) for x in (start, count, position)), self.height, CAPACITY)
        places = make_places(segments, ROWS)
        q = np.full((CAPACITY + 1, GROUPS, 64, self.size), np.nan, np.float32)
        for slot in range(3):
            for j in range(count[slot]):
                row = start[slot] + j
                at = int(places.index[row]) * self.share
                q[int(places.segment[row]), :, at:at + self.share] = self.q[slot, position[slot] + j].astype(jnp.float32)
        shape = SplitShape(**{"split": BLOCK, "most": LENGTH // BLOCK} | how)
        run = jax.jit(lambda q, cache: verify_attention(q, cache, self.tables, segments, places, share=self.share, how=shape,
                                                        interpret=INTERPRET))
        out = run(jnp.asarray(q, jnp.bfloat16), self.cache(position, count))
        return out.reshape(ROWS, GROUPS, self.share, self.size)

    def dense(self, slot: int, position: int, window: int | None = None, cap: float | None = None) -> np.ndarray:
        """float64 [G, share, H] of one row."""
        first = 0 if window is None else max(position - window + 1, 0)
        k, v = (wide(x[slot, first:position + 1]) for x in (self.k, self.v))
        score = np.einsum("gsh,tgh->gst", wide(self.q[slot, position]), k) * self.size**-0.5
        if cap is not None:
            score = np.tanh(score / cap) * cap
        weight = np.exp(score - score.max(-1, keepdims=True))
        return np.einsum("gst,tgh->gsh", weight / weight.sum(-1, keepdims=True), v)

    def check(self, position, count, window=None, cap=None, **how) -> jax.Array:
        out, row = self.attend(position, count, window=window, cap=cap, **how), 0
        for slot in range(3):
            for j in range(count[slot]):
                expected = self.dense(slot, position[slot] + j, window, cap)
                np.testing.assert_allclose(wide(out[row]), expected, atol=0.02)
                row += 1
        return out


@pytest.mark.parametrize("share, size, page", (
    (3, 64, 16), pytest.param(1, 64, 64, marks=SLOW), pytest.param(4, 128, 16, marks=SLOW), pytest.param(7, 64, 64, marks=SLOW),
    pytest.param(8, 128, 64, marks=SLOW), pytest.param(8, 64, 16, marks=SLOW)))
def test_ragged_steps_equal_the_dense_sum_and_no_foreign_number_leaks(share, size, page):
    """A chunk across blocks and splits, an empty slot, and a sequence's first rows in one page."""
    Case(share, size, page).check((62, 9, 0), (5, 0, 2))


@pytest.mark.long
@pytest.mark.parametrize("window, cap", ((40, 5.0), (64, None), (1, None), (65, 30.0), (None, 2.0)))
def test_windows_and_soft_caps(window, cap):
    Case(2, 64, 16).check((126, 63, 64), (3, 1, 2), window, cap)


@pytest.mark.long
def test_splits_of_several_blocks():
    Case(3, 64, 16).check((130, 63, 127), (3, 1, 2), split=2 * BLOCK, most=2)


@pytest.mark.long
def test_a_row_has_the_same_bits_alone_in_a_chunk_and_in_company():
    case = Case(3, 64, 16)
    together = case.attend((126, 0, 17), (4, 0, 3))
    alone = case.attend((128, 0, 0), (1, 0, 0))
    assert same_bits(alone[0], together[2])


@pytest.mark.long
def test_segments_of_a_long_chunk_change_no_bit():
    case = Case(8, 64, 16)  # 7 rows a segment
    assert case.height < 8
    together, later = case.attend((60, 0, 0), (8, 0, 0)), case.attend((64, 0, 0), (4, 0, 0))
    assert same_bits(together[4:8], later[:4])


TWO = {"lanes": 2, "split": 2 * BLOCK, "most": 2, "walkers": 3}  # several splits a thread block, some of one block
GROWING = {"lanes": 2, "split": BLOCK, "fine": BLOCK, "most": 2, "walkers": 3}  # a split of one block, and one of two


def test_the_streamed_form_equals_the_dense_sum_and_no_foreign_number_leaks():
    """Rows in the short split, across its end, and in the long one behind it; one of them has the bits that it has alone."""
    case = Case(3, 64, 16)
    together, alone = case.check((62, 130, 0), (3, 1, 2), **GROWING), case.attend((64, 0, 0), (1, 0, 0), **GROWING)
    assert same_bits(alone[0], together[2])


@pytest.mark.long
@pytest.mark.parametrize("more", ({}, {"window": 65}, {"window": 40, "cap": 5.0}, {"lanes": 0}))
def test_a_row_has_the_same_bits_in_splits_that_grow(more):
    case = Case(3, 64, 16)
    together = case.check((62, 126, 17), (4, 2, 2), **GROWING | more)
    for slot, row, at in ((0, 0, 62), (0, 2, 64), (0, 3, 65), (1, 5, 127)):
        count, position = np.zeros(3, int), np.zeros(3, int)
        count[slot], position[slot] = 1, at
        assert same_bits(case.attend(position, count, **GROWING | more)[0], together[row])


@pytest.mark.parametrize("split, fine", ((96, None), (0, None), (128, 64), (128, -128)))
def test_splits_that_cut_a_block_or_one_another_are_refused(split, fine):
    with pytest.raises(ValueError, match="multiple of"):
        SplitShape(split=split, fine=fine, most=1)


@pytest.mark.parametrize("split, fine, window", ((64, None, None), (128, 256, None), (64, 64, None), (128, 256, 100), (64, 192, 65)))
def test_work_covers_the_blocks_that_rows_see_and_no_other(split, fine, window):
    """Every split by brute force, of contexts on both sides of where splits become longer."""
    how = SplitShape(split=split, fine=fine, window=window, most=splits_of(1024, split, fine))
    begins = [p for p in range(0, 1025, split) if fine is None or p < fine or (p - fine) % (2 * split) == 0]
    position, rows = np.array([0, 60, 250, 255, 700]), np.array([1, 8, 12, 1, 3])
    segments = make_segments(*(jnp.asarray(x, jnp.int32) for x in (np.cumsum(rows) - rows, rows, position)), 16, 8)
    work, number = work_list(segments, how)
    found = {(int(each[0]), int(each[5]) + i): int(each[1]) for each in np.asarray(work)[:int(number[0])] for i in range(each[6])}
    expected = {}
    for at, (first, count) in enumerate(zip(position, rows, strict=True)):
        lowest = 0 if window is None else max(first - window + 1, 0)
        for block in range(lowest // BLOCK, (first + count - 1) // BLOCK + 1):
            expected[at, block] = max(n for n, begin in enumerate(begins) if begin <= block * BLOCK)
    assert found == expected and int(np.asarray(work)[:int(number[0]), 6].sum()) == len(found)
    assert [int(how.number(np.int32(p))) for p in (0, 255, 256, 1023)] == [
        max(n for n, begin in enumerate(begins) if begin <= p) for p in (0, 255, 256, 1023)]


@pytest.mark.long
def test_the_streamed_form_of_equal_splits():
    Case(3, 64, 16).check((62, 130, 0), (3, 1, 2), **TWO)


@pytest.mark.long
@pytest.mark.parametrize("share, size, page, more", (
    (4, 128, 64, {}), (8, 64, 16, {"stages": 2}), (3, 64, 16, {"lanes": 1}), (7, 64, 64, {"lanes": 1, "split": BLOCK, "most": 3}),
    (2, 64, 16, {"split": 3 * BLOCK, "most": 1}), (2, 64, 16, {"split": BLOCK, "most": 3, "walkers": 1})))
def test_forms_of_the_stream(share, size, page, more):
    Case(share, size, page).check((62, 9, 0), (5, 0, 2), **TWO | more)
    Case(share, size, page).check((126, 63, 64), (3, 1, 2), **TWO | more)


@pytest.mark.long
@pytest.mark.parametrize("window, cap", ((40, 5.0), (64, None), (1, None), (65, 30.0), (None, 2.0)))
def test_windows_and_soft_caps_of_the_stream(window, cap):
    for how in (TWO, GROWING):
        Case(2, 64, 16).check((126, 63, 64), (3, 1, 2), window, cap, **how)


@pytest.mark.long
def test_in_the_stream_a_row_has_the_same_bits_alone_in_company_and_however_it_is_walked():
    case = Case(3, 64, 16)
    together = case.attend((126, 0, 17), (4, 0, 3), **TWO)
    for more in ({}, {"walkers": 9}, {"stages": 2}):
        alone = case.attend((128, 0, 0), (1, 0, 0), **TWO | more)
        assert same_bits(alone[0], together[2])


def test_the_stream_refuses_what_it_cannot_hold():
    with pytest.raises(ValueError, match="1 or 2 lanes .* got 3 and 4 stages"):
        Case(1, 64, 64).attend((1, 0, 0), (1, 0, 0), lanes=3)
    with pytest.raises(ValueError, match="at most 128.* got 256"):
        Case(1, 256, 64).attend((1, 0, 0), (1, 0, 0), lanes=2)


def test_segments_are_as_high_as_a_tile_holds():
    assert [segment_height(share, size) for share, size in ((1, 64), (3, 64), (4, 128), (8, 128), (7, 64))] == [63, 21, 16, 8, 9]
