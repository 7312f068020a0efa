"""Paged attention against a dense float64 oracle; nothing leaks into it, and a row's bits are its own."""

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from radiance_jax.pallas.paged_attention import AttentionShape, make_segments, paged_attention

SLOTS, ROWS, HEIGHT, PAGE, LENGTH = 4, 16, 4, 4, 24
HEADS, GROUPS, SIZE = 6, 2, 8
SHARE, WIDTH = HEADS // GROUPS, LENGTH // PAGE
PAGES = 1 + SLOTS * WIDTH + 3  # page 0 is the bin; three more than all sequences need
DTYPES = {"f32": np.float32, "bf16": ml_dtypes.bfloat16}


@partial(jax.jit, static_argnames="shape")
def attend(q, cache, tables, start, count, position, shape):
    """One program for any batch: what varies are arrays of fixed shape."""
    segments = make_segments(start, count, position, shape.height, SLOTS + ROWS // shape.height)
    return paged_attention(q, cache, tables, segments, shape)


@dataclass
class Text:
    """Queries [T, N, H], keys and values [T, G, H] of one sequence."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray


def make_text(rng, dtype, length: int = LENGTH) -> Text:
    return Text(*(rng.normal(0, 2, (length, heads, SIZE)).astype(dtype) for heads in (HEADS, GROUPS, GROUPS)))


def dense(text: Text, position: int) -> np.ndarray:
    """[N, H] of the row at `position`, in float64."""
    q, k, v = (x.astype(np.float64) for x in (text.q[position], text.k[: position + 1], text.v[: position + 1]))
    out = np.empty((HEADS, SIZE))
    for head in range(HEADS):
        score = k[:, head // SHARE] @ q[head] * SIZE**-0.5
        weight = np.exp(score - score.max())
        out[head] = weight / weight.sum() @ v[:, head // SHARE]
    return out


def run(rng, parts, dtype, *, loop=True, block_pages=1, height=HEIGHT):
    """Attention of `parts` {slot: (text, first position, rows)} over a shuffled pool in which everything that is not a
    key or value at a position written so far is NaN. Returns {slot: [rows, N, H]}."""
    pool = rng.permutation(np.arange(1, PAGES))
    cache = np.full((PAGES, 2, GROUPS, PAGE, SIZE), np.nan, dtype)
    tables, q = np.zeros((SLOTS, WIDTH), np.int32), np.full((ROWS, HEADS, SIZE), np.nan, dtype)
    start, count, position = (np.zeros(SLOTS, np.int32) for _ in range(3))
    row = 0
    for slot in range(SLOTS):
        start[slot] = row
        if slot not in parts:
            continue
        text, first, rows = parts[slot]
        used = -(-(first + rows) // PAGE)
        tables[slot, :used], pool = pool[:used], pool[used:]
        for at in range(first + rows):
            page, offset = tables[slot, at // PAGE], at % PAGE
            cache[page, 0, :, offset], cache[page, 1, :, offset] = text.k[at], text.v[at]
        q[row:row + rows] = text.q[first:first + rows]
        count[slot], position[slot] = rows, first
        row += rows
    assert row <= ROWS
    shape = AttentionShape(height=height, block_pages=block_pages, loop=loop)
    out = np.asarray(attend(q, cache, tables, start, count, position, shape=shape))
    return {slot: out[start[slot]:start[slot] + count[slot]] for slot in parts}


def random_parts(rng, dtype):
    """Ragged: decode rows, chains and chunks of different sequences; some slots take no part."""
    parts, left = {}, ROWS
    for slot in rng.permutation(SLOTS)[: rng.integers(1, SLOTS + 1)]:
        rows = int(min(rng.choice([1, 1, 3, 4, 5, 9]), left))
        if rows:
            parts[int(slot)] = (make_text(rng, dtype), int(rng.integers(0, LENGTH - rows + 1)), rows)
            left -= rows
    return parts


FORMS = {"loop": dict(), "at once": dict(loop=False), "loop, blocks of 3 pages": dict(block_pages=3),
         "at once, blocks of 2 pages": dict(loop=False, block_pages=2)}


@pytest.mark.parametrize("form", FORMS)
def test_ragged_rows_equal_dense_attention_and_nothing_leaks(form):
    """Unused pages, the bin, and positions behind a step's last row hold NaN."""
    rng = np.random.default_rng(0)
    for _ in range(15):
        parts = random_parts(rng, np.float32)
        for slot, got in run(rng, parts, np.float32, **FORMS[form]).items():
            text, first, rows = parts[slot]
            expected = np.stack([dense(text, first + i) for i in range(rows)])
            np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


def test_bf16_rows_are_near_dense_attention():
    rng = np.random.default_rng(1)
    for _ in range(8):
        parts = random_parts(rng, ml_dtypes.bfloat16)
        for slot, got in run(rng, parts, ml_dtypes.bfloat16).items():
            text, first, rows = parts[slot]
            expected = np.stack([dense(text, first + i) for i in range(rows)])
            np.testing.assert_allclose(got.astype(np.float64), expected, rtol=0, atol=0.05)


def test_loop_and_all_at_once_agree():
    rng = np.random.default_rng(2)
    for seed in range(10):
        parts = random_parts(rng, np.float32)
        one, other = (run(np.random.default_rng(seed), parts, np.float32, loop=loop) for loop in (True, False))
        for slot in parts:
            np.testing.assert_allclose(one[slot], other[slot], rtol=1e-5, atol=1e-5)


def test_a_rows_own_segment_gives_what_a_later_segment_overwrote():
    """Segments write `height` rows each; the rows behind a short one belong to the next."""
    rng = np.random.default_rng(3)
    parts = {slot: (make_text(rng, np.float32), 2 * slot, 1) for slot in range(SLOTS)}
    for slot, got in run(rng, parts, np.float32).items():
        np.testing.assert_allclose(got[0], dense(parts[slot][0], 2 * slot), rtol=1e-5, atol=1e-5)


def test_a_full_step_and_an_empty_one():
    rng = np.random.default_rng(4)
    whole = {2: (make_text(rng, np.float32), LENGTH - ROWS, ROWS)}
    expected = np.stack([dense(whole[2][0], at) for at in range(LENGTH - ROWS, LENGTH)])
    np.testing.assert_allclose(run(rng, whole, np.float32)[2], expected, rtol=1e-5, atol=1e-5)
    assert run(rng, {}, np.float32) == {}


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_rows_bits_do_not_depend_on_its_segment_mates_or_pages(dtype):
    """The same text decoded row by row, verified in chains, prefilled in chunks of every size; alone and among mates in
    every slot; over other pages each time. One compiled program, every row the same bits each time."""
    rng, kind = np.random.default_rng(5), DTYPES[dtype]
    text = make_text(rng, kind)
    seen: list[set[bytes]] = [set() for _ in range(LENGTH)]
    before = attend._cache_size()
    for size in (1, 2, 3, 4, 5, 7, 8, 11, 12):
        for begin in range(0, LENGTH, size):
            rows = min(size, LENGTH - begin)
            slot = int(rng.integers(0, SLOTS))
            parts = {slot: (text, begin, rows)}
            for mate in set(range(SLOTS)) - {slot}:
                left = ROWS - sum(part[2] for part in parts.values())
                if left and begin % 2:  # every other time alone
                    many = int(rng.integers(1, min(left, 4) + 1))
                    parts[mate] = (make_text(rng, kind), int(rng.integers(0, LENGTH - many + 1)), many)
            for i, row in enumerate(run(rng, parts, kind)[slot]):
                seen[begin + i].add(row.tobytes())
    assert attend._cache_size() <= before + 1
    assert [len(bits) for bits in seen] == [1] * LENGTH


@pytest.mark.parametrize("height", (1, 3, 4, 8))
def test_segments_cover_every_row_once_in_order(height):
    rng = np.random.default_rng(6)
    for _ in range(20):
        count = np.where(rng.random(SLOTS) < 0.7, rng.integers(1, 5, SLOTS), 0).astype(np.int32)
        start, position = (np.cumsum(count) - count).astype(np.int32), rng.integers(0, 9, SLOTS).astype(np.int32)
        arrays = map(jnp.asarray, (start, count, position))
        s = jax.tree.map(np.asarray, make_segments(*arrays, height, SLOTS + ROWS // height))
        covered = [(s.slot[i], s.row[i] + j, s.position[i] + j) for i in range(s.count) for j in range(s.rows[i])]
        rows = [(slot, start[slot] + j, position[slot] + j) for slot in range(SLOTS) for j in range(count[slot])]
        assert covered == rows
        assert (s.rows[: s.count] > 0).all() and (s.rows <= height).all() and not s.rows[s.count:].any()
