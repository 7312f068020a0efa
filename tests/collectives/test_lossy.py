"""Lossy wires against NumPy, bit for bit; how lossy they are; and when they carry a message."""

import functools

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from radiance_jax import collectives, wire
from radiance_jax.bench import wires_oracle as oracle
from radiance_jax.collectives import rounding, tiered, wht6
from radiance_jax.mesh import TENSOR_AXIS, make_mesh
from radiance_jax.wire import Wire

BF16 = ml_dtypes.bfloat16
FORMS = {2: oracle.wht6, 3: oracle.tiered, 4: oracle.tiered}
BOUND = {2: 0.026, 3: 0.010, 4: 0.010}
RANKS = (2, 4, pytest.param(3, marks=pytest.mark.slow))
SIZE = 64 * 360  # of every message: one program for each number of ranks


@functools.cache
def program(ranks: int):
    def run(x):
        return collectives.all_reduce(x[0], TENSOR_AXIS, Wire(name="wht6", least_bytes=0))[None]

    whole = jax.P(TENSOR_AXIS)
    return jax.jit(jax.shard_map(run, mesh=make_mesh(ranks), in_specs=whole, out_specs=whole, check_vma=False))


def hard(ranks: int) -> np.ndarray:
    """A message that takes every branch: scales over the whole range, ties, outliers in outliers, zeros."""
    rng = np.random.default_rng(ranks)
    wide = rng.standard_normal((ranks, 64 * 60)) * 2.0 ** rng.integers(-30, 12, (ranks, 64 * 60))
    levels = rng.standard_normal((ranks, 200, 64)) * 2.0 ** rng.integers(-18, 10, (ranks, 200, 1))
    two = rng.standard_normal((ranks, 64 * 60)) * np.where(rng.random((ranks, 64 * 60)) < 0.03, 3000, 1)
    ties = rng.integers(-64, 65, (ranks, 64 * 37)) / 2.0
    zeros = np.zeros((ranks, 64 * 3))
    zeros[0, 70] = 5
    return np.concatenate([x.reshape(ranks, -1) for x in (wide, levels, two, ties, zeros)], axis=1).astype(BF16)


@pytest.mark.parametrize("ranks", RANKS)
def test_lossy_sums_equal_numpy_bit_for_bit_on_every_rank(ranks):
    for parts in (hard(ranks), *(oracle.inputs(kind, ranks, SIZE) for kind in oracle.KINDS)):
        assert parts.shape == (ranks, SIZE)
        expected = FORMS[ranks](parts)
        for got in np.asarray(program(ranks)(parts)):
            assert got.tobytes() == expected.tobytes()


@pytest.mark.parametrize("kind", oracle.KINDS)
@pytest.mark.parametrize("ranks", RANKS)
def test_the_error_of_a_lossy_sum_is_bounded(ranks, kind):
    parts = oracle.inputs(kind, ranks, SIZE, seed=1)
    assert 0.001 < oracle.relative_error(np.asarray(program(ranks)(parts))[0], parts) < BOUND[ranks]


def test_the_messages_take_all_tiers():
    tiers = oracle.int8_tiers(hard(4)[0].reshape(-1, 32))[1]
    assert min(np.bincount(tiers, minlength=3)) > 20
    sent = np.asarray(jax.jit(tiered.encode)(hard(4)[0].reshape(-1, 32)))
    assert sent.shape == (len(tiers), 38) and (sent[:, 35] >> 6 == tiers).all()


@pytest.mark.parametrize("ranks", RANKS)
def test_a_number_that_is_none_stays_visible(ranks):
    parts = oracle.inputs("gaussian", ranks, SIZE)
    parts[1, 5] = np.nan
    assert np.isnan(np.asarray(program(ranks)(parts)).astype(np.float32)).any(axis=1).all()


@pytest.mark.parametrize(("divisor", "dtype"), [(31, BF16), (127, np.float16)])
def test_quotients_are_those_of_division(divisor, dtype):
    """At and around every midpoint of a stretch of the narrow type, and over the range."""
    rng = np.random.default_rng(0)
    near = (np.arange(2**12, dtype=np.float64) + 2**12) * divisor * 2.0 ** rng.integers(-20, 10, 2**12)
    wide = rng.random(2**12) * 2.0 ** rng.integers(-30, 20, 2**12)
    a = np.concatenate([near, near, near, wide, [0, np.inf]]).astype(np.float32)
    a[2**12:2**13] = np.nextafter(a[:2**12], np.float32(np.inf))
    a[2**13:3 * 2**12] = np.nextafter(a[:2**12], np.float32(0))
    with np.errstate(over="ignore"):
        expected = (a / np.float32(divisor)).astype(dtype).view(np.uint16)
    np.testing.assert_array_equal(jax.jit(lambda a: rounding.quotient_bits(a, divisor, dtype))(a), expected)


def test_a_code_is_mended_where_the_division_is_not_exact(monkeypatch):
    """As on GPUs: a quotient that is off by a few units in the last place gives the same codes."""
    rng = np.random.default_rng(0)
    scale = rng.uniform(0.01, 3, 4000).astype(BF16).astype(np.float32)
    x = (rng.integers(-64, 65, 4000) / 2 * scale).astype(np.float32)
    x = np.concatenate([x, np.nextafter(x, np.float32(99)), np.nextafter(x, np.float32(-99))])
    scale = np.tile(scale, 3)
    expected = np.rint(x / scale)
    np.testing.assert_array_equal(rounding.nearest_code(x, scale), expected)
    true = jnp.rint
    for factor in (1 + 2**-22, 1 - 2**-22):
        monkeypatch.setattr(jnp, "rint", lambda q, factor=factor: true(q * np.float32(factor)))
        np.testing.assert_array_equal(rounding.nearest_code(x, scale), expected)


def test_six_bits_are_packed_where_the_page_says():
    group = np.zeros((1, 64), np.float32)
    group[0, 0] = 31  # u = 31/8 everywhere, s = bf16(1/8), every code 31 + 32 = 63
    sent = np.asarray(jax.jit(wht6.encode)(group))
    assert sent.tolist() == [[255] * 48 + [0x00, 0x3E]]
    np.testing.assert_array_equal(jax.jit(wht6.decode)(sent), np.full((1, 64), 31 / 8, np.float32))


@pytest.mark.parametrize(("ranks", "size", "itemsize", "form"), [
    (2, 64 << 10, 2, "wht6"), (2, (64 << 10) - 64, 2, "one-shot"), (2, (64 << 10) + 8, 2, "one-shot"),
    (2, 64 << 10, 4, "one-shot"), (3, 96 << 10, 2, "tiered"), (4, 64 << 10, 2, "tiered"), (4, 1 << 22, 2, "tiered"),
    (8, 1 << 22, 2, "two-shot"), (5, 1 << 10, 2, "one-shot")])
def test_which_messages_a_lossy_wire_carries(ranks, size, itemsize, form):
    assert Wire(name="wht6").form(size, itemsize, ranks) == form
    assert Wire().form(size, itemsize, ranks) in ("one-shot", "two-shot")
    assert Wire(remote_bytes=1 << 30).form(size, itemsize, ranks) == "remote"


def test_bytes_sent():
    n = 1 << 20
    assert wire.bytes_sent("wht6", n, 2, 2) == n * 6.25 / 8
    assert wire.bytes_sent("one-shot", n, 2, 4) == 3 * 2 * n and wire.bytes_sent("two-shot", n, 2, 4) == 3 * n
    assert wire.bytes_sent("tiered", n, 2, 4) == 3 * n * 38 / 64
    assert wire.bytes_sent("two-shot", 7, 2, 3) == 2 * 2 * 3 * 2  # padded to 9


def test_the_rows_above_which_decoding_is_lossy():
    """The figures of the flag's default: width 5120 is exact at 12 rows and lossy at 13."""
    assert Wire(name="wht6").exact_rows(5120) == 12
    assert Wire(name="wht6").form(12 * 5120, 2, 2) == "one-shot" and Wire(name="wht6").form(13 * 5120, 2, 2) == "wht6"
    line = wire.describe(Wire(name="wht6"), 2, 5120, (8, 32, 128))
    assert "LOSSY from 128 KiB on: decoding is lossy above 12 rows (of the step programs those of 32, 128 rows)" in line
    assert "no step program has so many" in wire.describe(Wire(name="wht6"), 4, 576, (8, 64))
    assert wire.describe(Wire(), 2, 576, (8,)) == "wire: exact; sums in rank order, rounded once"
