"""Norm, and rotary embedding with the way into the cache, in the interpreter, against their oracles."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kernels import INTERPRET, random, same_bits, wide
from radiance_jax.pallas import norm, rope
from radiance_jax.pallas.paged_attention import make_segments
from radiance_jax.pallas.verify_attention import make_places, segment_height

ROWS, PAGES = 8, 9
SLOW = pytest.mark.long


@pytest.mark.parametrize("width, added", ((576, True), pytest.param(1024, False, marks=SLOW), pytest.param(64, True, marks=SLOW),
                                          pytest.param(4096, True, marks=SLOW)))
def test_a_norm_equals_the_oracle_and_a_row_is_its_own(width, added):
    rng = np.random.default_rng(0)
    x, y, weight = random(rng, 3, width), random(rng, 3, width), random(rng, width, scale=0.1, middle=1.0)
    run = jax.jit(partial(norm.add_norm, eps=1e-5, interpret=INTERPRET))
    more = lambda rows: y[rows] if added else None  # noqa: E731
    ours, theirs = run(x, more(slice(None)), weight), norm.oracle(x, more(slice(None)), weight, 1e-5)
    assert same_bits(ours[0], theirs[0])
    np.testing.assert_allclose(wide(ours[1]), wide(theirs[1]), rtol=2**-6)
    if added:
        assert all(same_bits(a, b[1:2]) for a, b in zip(run(x[1:2], y[1:2], weight), ours, strict=True))


@pytest.mark.parametrize("share, size, page, normed", (
    (3, 64, 16, False), pytest.param(2, 128, 64, True, marks=SLOW), pytest.param(1, 64, 64, True, marks=SLOW),
    pytest.param(7, 64, 16, True, marks=SLOW), pytest.param(8, 128, 16, False, marks=SLOW)))
def test_queries_keys_and_values_go_where_they_belong(share, size, page, normed):
    rng = np.random.default_rng(1)
    groups = 2
    heads, height = share * groups, segment_height(share, size)
    qkv = random(rng, ROWS, (heads + 2 * groups) * size)
    norms = tuple(random(rng, size, scale=0.1, middle=1.0) for _ in range(2)) if normed else None
    count, start, first = jnp.array([3, 0, 4]), jnp.array([0, 3, 3]), jnp.array([page - 1, 0, 5])  # the last row is of nobody
    segments = make_segments(start, count, first, height, 5)
    places = make_places(segments, ROWS)
    position = jnp.array([page - 1, page, page + 1, 5, 6, 7, 8, 0])
    angle = position[:, None] * 1e4 ** (-jnp.arange(0, size, 2) / size)
    at = jnp.array([3, 5, 5, 7, 7, 7, 7, 0]), position % page
    cache = random(rng, PAGES, 2 * groups, page, size)

    @jax.jit
    def run(qkv, cache):
        into = jax.new_ref(cache)
        q = rope.rope_and_store(qkv, jnp.cos(angle), jnp.sin(angle), *at, into, norms, 1e-5, heads, places, interpret=INTERPRET)
        return q, jax.freeze(into)

    q, stored = run(qkv, cache)
    by_row, expected = rope.oracle(qkv, jnp.cos(angle), jnp.sin(angle), *at, cache, norms, 1e-5, heads)
    np.testing.assert_allclose(wide(stored[1:]), wide(expected[1:]), atol=2**-6, rtol=2**-7)
    for row in range(ROWS - 1):
        index = int(places.index[row]) * share
        mine = q[int(places.segment[row]), :, index:index + share]
        np.testing.assert_allclose(wide(mine), wide(by_row[row]), atol=2**-6, rtol=2**-7)
    untouched = np.ones((PAGES, page), bool)
    untouched[np.asarray(at[0]), np.asarray(at[1])] = False
    assert same_bits(jnp.swapaxes(stored, 1, 2)[untouched], jnp.swapaxes(cache, 1, 2)[untouched])


def test_too_many_heads_are_refused():
    segments = make_segments(jnp.array([0]), jnp.array([1]), jnp.array([0]), 1, 1)
    with pytest.raises(ValueError, match="at most 64"):
        rope.rope_and_store(jnp.zeros((8, 70 * 64), jnp.bfloat16), *[jnp.zeros((8, 32))] * 2, *[jnp.zeros(8, jnp.int32)] * 2,
                            jnp.zeros((2, 4, 16, 64), jnp.bfloat16), None, 1e-5, 66, make_places(segments, 8),
                            interpret=INTERPRET)
