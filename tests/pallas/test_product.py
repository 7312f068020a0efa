"""The row-invariant product in the interpreter, against its oracle and against itself in other tiles."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kernels import INTERPRET, random, same_bits, wide
from radiance_jax.pallas import product as P
from radiance_jax.pallas.tiles import choose

K, N = 192, 64
SLOW = pytest.mark.long


def run(x, w, bias=None, **how):
    return jax.jit(lambda x, w: P.product(x, w, bias, interpret=INTERPRET, **how))(x, w)


@pytest.mark.parametrize("rows, gated, biased, tile", (
    pytest.param(8, False, True, P.Tile(columns=32, stages=2), marks=SLOW),
    (8, True, False, P.Tile(columns=16, stages=2)),
    pytest.param(64, False, False, P.Tile(columns=64, stages=3), marks=SLOW),
    pytest.param(128, True, True, P.Tile(columns=32, stages=2, warpgroups=2), marks=SLOW),
    pytest.param(256, False, True, P.Tile(columns=32, stages=2, warpgroups=2), marks=SLOW)), ids=str)
def test_it_equals_the_oracle(rows, gated, biased, tile):
    rng = np.random.default_rng(0)
    x, w = random(rng, rows, K), random(rng, N, K, scale=K**-0.5)
    bias = random(rng, N) if biased else None
    ours, theirs = run(x, w, bias, tile=tile, gated=gated), P.oracle(x, w, bias, gated=gated)
    np.testing.assert_allclose(wide(ours), wide(theirs), rtol=2**-7, atol=2**-9)


def test_logits_come_in_f32():
    rng = np.random.default_rng(1)
    x, w = random(rng, 8, K), random(rng, N, K, scale=K**-0.5)
    ours = run(x, w, tile=choose(8, K, N, out_bytes=4), dtype=jnp.float32)
    np.testing.assert_allclose(np.asarray(ours), wide(x) @ wide(w).T, rtol=1e-5, atol=1e-5)


@pytest.mark.long
def test_a_row_has_the_same_bits_whatever_its_mates_their_number_and_the_tile():
    rng = np.random.default_rng(2)
    x, w = random(rng, 128, K), random(rng, N, K, scale=K**-0.5)
    whole = run(x, w, tile=P.Tile(columns=32, warpgroups=2))
    poisoned = x.at[8:].set(jnp.nan)  # rows beside it that hold nothing
    for rows, part in ((8, x[:8]), (64, x[:64]), (64, poisoned[:64])):
        assert same_bits(run(part, w, tile=choose(rows, K, N))[:8], whole[:8])
    assert same_bits(run(x[40:48], w, tile=P.Tile(columns=16, stages=2)), whole[40:48])


def test_sizes_that_do_not_divide_are_refused():
    x, w = jnp.zeros((12, K), jnp.bfloat16), jnp.zeros((N, K), jnp.bfloat16)
    with pytest.raises(ValueError, match="does not divide"):
        P.product(x, w, tile=P.Tile(columns=32))
    with pytest.raises(ValueError, match="multiple of 64"):
        choose(8, 96, N)


def test_one_stage_is_refused_which_would_wait_for_itself():
    x, w = jnp.zeros((8, K), jnp.bfloat16), jnp.zeros((N, K), jnp.bfloat16)
    with pytest.raises(ValueError, match="at least 2 stages; got 1"):
        P.product(x, w, tile=P.Tile(columns=32, stages=1))


def test_every_served_shape_has_a_tile():
    for k, n in ((576, 960), (576, 576), (1536, 576), (576, 49152), (4096, 6144), (12288, 4096), (4096, 151936), (64, 64)):
        for rows in (8, 64, 128, 512):
            for gated, size in ((False, 2), (True, 2), (False, 4)):
                tile = choose(rows, k, n, gated=gated, out_bytes=size)
                assert n % tile.columns == 0 and tile.columns * size % 32 == 0
                assert tile.shared_memory(rows, 2 if gated else 1, size) <= 227 * 1024
                assert tile.stages >= min(3, k // tile.depth)
