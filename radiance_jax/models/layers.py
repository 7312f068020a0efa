"""Layers shared by the networks: norms, linear maps, rotary embedding. Pure functions of one row tile.

Weights keep the checkpoint's [out, in] layout. Every product accumulates in f32 and is rounded once, to the
dtype of its input, so that a row's bits depend on the row and the weight alone.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from radiance_jax.models.config import RopeConfig


NORM_ROWS = 8


def rms_norm(x: jax.Array, weight: jax.Array, eps: float) -> jax.Array:
    """[R, ..., D] to the same. f32 statistics, cast, then the weight (the Llama family's order).

    XLA sums the squares of eight rows or more side by side and of fewer rows one by one, in another order. So the
    statistics are always those of eight rows at least, and a row's do not depend on the height of its tile.
    """
    rows = x.shape[0]
    wide = x.astype(jnp.float32)
    padded = jnp.pad(wide, [(0, max(NORM_ROWS - rows, 0))] + [(0, 0)] * (x.ndim - 1))
    scale = lax.rsqrt(jnp.mean(padded * padded, axis=-1, keepdims=True) + eps)[:rows]
    return (wide * scale).astype(x.dtype) * weight


def product(x: jax.Array, weight: jax.Array) -> jax.Array:
    """[R, in] x [out, in] to f32 [R, out]."""
    return lax.dot_general(x, weight, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32)


def linear(x: jax.Array, weight: jax.Array, bias: jax.Array | None = None) -> jax.Array:
    """[R, in] to [R, out] in the dtype of `x`."""
    y = product(x, weight)
    if bias is not None:
        y = y + bias.astype(jnp.float32)
    return y.astype(x.dtype)


def rotary_frequencies(rope: RopeConfig, head_size: int) -> tuple[np.ndarray, float]:
    """Angles per position, f32 [H/2], and the factor on cos and sin.

    default: theta^(-2i/H). linear: divided by `factor`. llama3 (Llama 3.1 checkpoints): long wavelengths divided,
    short ones kept, a linear blend between. yarn (Peng et al. 2023, arXiv 2309.00071): a ramp over dimensions
    between the two, and an attention factor of 0.1 ln(factor) + 1 unless the checkpoint gives its own.
    """
    inverse = rope.theta ** (-np.arange(0, head_size, 2, dtype=np.float64) / head_size)
    attention = 1.0
    if rope.kind == "linear":
        inverse = inverse / rope.factor
    elif rope.kind == "llama3":
        length = rope.original_max_position
        wavelength = 2 * np.pi / inverse
        blend = (length / wavelength - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
        mixed = (1 - blend) * inverse / rope.factor + blend * inverse
        inverse = np.where(wavelength > length / rope.low_freq_factor, inverse / rope.factor,
                           np.where(wavelength < length / rope.high_freq_factor, inverse, mixed))
    elif rope.kind == "yarn":

        def dimension(rotations: float) -> float:
            return head_size * math.log(rope.original_max_position / (rotations * 2 * math.pi)) / (2 * math.log(rope.theta))

        low, high = dimension(rope.beta_fast), dimension(rope.beta_slow)
        if rope.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, head_size - 1)
        ramp = np.clip((np.arange(head_size // 2) - low) / max(high - low, 1e-3), 0, 1)
        inverse = inverse / rope.factor * ramp + inverse * (1 - ramp)
        attention = _yarn_attention(rope)
    return inverse.astype(np.float32), attention


def _yarn_attention(rope: RopeConfig) -> float:
    def mscale(weight: float) -> float:
        return 0.1 * weight * math.log(rope.factor) + 1.0 if rope.factor > 1 else 1.0

    if rope.attention_factor is not None:
        return rope.attention_factor
    if rope.mscale and rope.mscale_all_dim:
        return mscale(rope.mscale) / mscale(rope.mscale_all_dim)
    return mscale(1.0)


def rotate(x: jax.Array, positions: jax.Array, frequencies: np.ndarray, attention: float) -> jax.Array:
    """Rotary embedding by halves: x [R, heads, H], positions [R]. cos and sin are rounded to the dtype of `x`."""
    angle = positions.astype(jnp.float32)[:, None] * frequencies
    cos = (jnp.cos(angle) * attention).astype(x.dtype)[:, None]
    sin = (jnp.sin(angle) * attention).astype(x.dtype)[:, None]
    low, high = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([low * cos - high * sin, high * cos + low * sin], axis=-1)
