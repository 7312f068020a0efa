"""Norm, products and rotary embedding against their float64 formulas."""

import math

import jax
import ml_dtypes
import numpy as np
import pytest

from radiance_jax.models.config import RopeConfig
from radiance_jax.models.layers import linear, product, rms_norm, rotary_frequencies, rotate

SIZE = 64
LLAMA3 = dict(kind="llama3", theta=500000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position=8192)
YARN = dict(kind="yarn", theta=1e6, factor=4.0, original_max_position=4096)
ROPES = {
    "default": RopeConfig(theta=1e5),
    "linear": RopeConfig(kind="linear", theta=1e4, factor=2.5),
    "llama3": RopeConfig(**LLAMA3),
    "llama3, short": RopeConfig(**LLAMA3 | dict(original_max_position=256, factor=32.0)),
    "yarn": RopeConfig(**YARN),
    "yarn, not truncated": RopeConfig(**YARN, truncate=False),
    "yarn, other ramp": RopeConfig(**YARN | dict(beta_fast=8.0, beta_slow=2.0, original_max_position=300)),
    "yarn, clamped ramp": RopeConfig(**YARN | dict(theta=100.0, original_max_position=100000, beta_fast=1000.0)),
    "yarn, ramp of one point": RopeConfig(**YARN | dict(beta_fast=2.0, beta_slow=2.0), truncate=False),
}


def expected_frequency(rope: RopeConfig, i: int) -> float:
    """Of dimension pair i, one at a time."""
    f = rope.theta ** (-2 * i / SIZE)
    length = rope.original_max_position
    if rope.kind == "default":
        return f
    if rope.kind == "linear":
        return f / rope.factor
    if rope.kind == "llama3":
        wavelength = 2 * math.pi / f
        if wavelength > length / rope.low_freq_factor:
            return f / rope.factor
        if wavelength < length / rope.high_freq_factor:
            return f
        s = (length / wavelength - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
        return (1 - s) * f / rope.factor + s * f

    def correction(rotations: float) -> float:
        return SIZE * math.log(length / (2 * math.pi * rotations)) / (2 * math.log(rope.theta))

    low, high = correction(rope.beta_fast), correction(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, SIZE - 1)
    ramp = min(max((i - low) / max(high - low, 0.001), 0), 1)
    return f / rope.factor * ramp + f * (1 - ramp)


@pytest.mark.parametrize("name", ROPES)
def test_frequencies_follow_the_formula_of_their_kind(name):
    ours, _ = rotary_frequencies(ROPES[name], SIZE)
    expected = np.array([expected_frequency(ROPES[name], i) for i in range(SIZE // 2)])
    assert ours.dtype == np.float32
    np.testing.assert_allclose(ours, expected, rtol=1e-6)


def test_every_branch_of_the_scaled_kinds_is_met():
    plain, _ = rotary_frequencies(RopeConfig(theta=LLAMA3["theta"]), SIZE)
    for rope in (RopeConfig(**LLAMA3), RopeConfig(**YARN | dict(theta=LLAMA3["theta"]))):
        ratio = rotary_frequencies(rope, SIZE)[0] / plain
        assert np.isclose(ratio, 1).any() and np.isclose(ratio, 1 / rope.factor).any()
        assert ((ratio > 1.01 / rope.factor) & (ratio < 0.99)).any()


@pytest.mark.parametrize(("change", "expected"), (
    (dict(), 0.1 * math.log(4) + 1), (dict(factor=1.0), 1.0),
    (dict(attention_factor=1.5, mscale=1.0, mscale_all_dim=0.5), 1.5),
    (dict(mscale=1.0, mscale_all_dim=0.5), (0.1 * math.log(4) + 1) / (0.05 * math.log(4) + 1)),
    (dict(mscale=2.0), 0.1 * math.log(4) + 1)))
def test_yarn_attention_factor(change, expected):
    assert rotary_frequencies(RopeConfig(**YARN | change), SIZE)[1] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("name", ("default", "llama3", "yarn"))
def test_rotation_turns_pairs_of_half_heads(name):
    """Position p turns (x[i], x[i + H/2]) by p * f[i], scaled by the attention factor."""
    rng = np.random.default_rng(0)
    x, positions = rng.normal(size=(7, 3, SIZE)).astype(np.float32), np.array([0, 1, 2, 17, 63, 200, 511], np.int32)
    frequencies, attention = rotary_frequencies(ROPES[name], SIZE)
    ours = np.asarray(jax.jit(lambda x, p: rotate(x, p, frequencies, attention))(x, positions))
    turn = np.exp(1j * positions[:, None] * frequencies.astype(np.float64))[:, None] * attention
    z = (x[..., : SIZE // 2] + 1j * x[..., SIZE // 2:]) * turn
    np.testing.assert_allclose(ours, np.concatenate([z.real, z.imag], axis=-1), atol=2e-4)
    np.testing.assert_allclose(ours[0], x[0] * attention, rtol=1e-6)


def test_scores_of_rotated_heads_depend_on_distance_alone():
    rng = np.random.default_rng(1)
    q, k = rng.normal(size=(2, 1, 1, SIZE)).astype(np.float32)
    frequencies, attention = rotary_frequencies(RopeConfig(theta=1e4), SIZE)

    def turned(x, at):
        return np.asarray(rotate(x, np.array([at], np.int32), frequencies, attention))[0, 0]

    scores = [turned(q, at + 5) @ turned(k, at) for at in (0, 3, 40, 200)]
    np.testing.assert_allclose(scores, scores[0], atol=1e-3)
    assert abs(turned(q, 9) @ turned(k, 0) - scores[0]) > 0.1


@pytest.mark.parametrize("compiled", (False, True))
def test_rms_norm_rounds_before_it_weighs(compiled):
    """The Llama family's order, bit for bit in bf16; the other order gives other bits on these numbers."""
    rng = np.random.default_rng(2)
    x = rng.normal(0, 3, (16, 48)).astype(ml_dtypes.bfloat16)
    weight = rng.normal(1, 0.5, 48).astype(ml_dtypes.bfloat16)
    norm = jax.jit(rms_norm, static_argnums=2) if compiled else rms_norm
    wide = x.astype(np.float32)
    unit = wide / np.sqrt((wide.astype(np.float64) ** 2).mean(-1, keepdims=True) + 1e-5)
    unit = unit.astype(np.float32)
    before = unit.astype(ml_dtypes.bfloat16) * weight
    after = (unit * weight.astype(np.float32)).astype(ml_dtypes.bfloat16)
    ours = np.asarray(norm(x, weight, 1e-5))
    assert ours.dtype == ml_dtypes.bfloat16 and (before != after).mean() > 0.1
    assert (ours != before).mean() < 0.01  # a statistic one f32 ulp off may round a bf16 the other way


def test_rms_norm_in_f32_and_its_epsilon():
    x = np.random.default_rng(3).normal(0, 1e-3, (5, 48)).astype(np.float32)
    weight = np.linspace(-1, 2, 48, dtype=np.float32)
    wide = x.astype(np.float64)
    expected = wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-5) * weight
    np.testing.assert_allclose(np.asarray(rms_norm(x, weight, 1e-5)), expected, rtol=1e-5, atol=1e-7)


def test_linear_adds_its_bias_before_it_rounds():
    rng = np.random.default_rng(4)
    x, weight, bias = (rng.normal(size=s).astype(ml_dtypes.bfloat16) for s in ((4, 64), (32, 64), (32,)))
    wide = x.astype(np.float64) @ weight.astype(np.float64).T
    assert product(x, weight).dtype == np.float32
    np.testing.assert_allclose(np.asarray(product(x, weight)), wide, rtol=1e-5, atol=1e-5)
    ours = np.asarray(linear(x, weight, bias))
    once = (wide + bias.astype(np.float64)).astype(ml_dtypes.bfloat16)
    twice = wide.astype(ml_dtypes.bfloat16) + bias
    assert (once != twice).any()
    assert (ours != once).mean() < 0.01 < (ours != twice).mean()
