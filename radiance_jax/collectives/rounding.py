"""Roundings that come out alike on every platform.

A lossy wire rounds quotients. Compilers multiply by a reciprocal instead of dividing, and GPUs divide approximately, so
a quotient here is a guess, mended by comparisons whose operands are exact: a scale has 8 or 11 significant bits, a code or
a divisor at most 8, and f32 holds their products whole. The results are those of IEEE division, rounded to nearest even.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

INFINITY = {"bfloat16": 0x7F80, "float16": 0x7C00}  # bits


def value_of(twice: jax.Array, dtype) -> jax.Array:
    """f32 value of bits of `dtype` (bf16 or f16) with one more mantissa bit behind: uint32 [...]. Built by bit casts; the
    bits of f16's infinity count as 65536."""
    if jnp.dtype(dtype) == jnp.bfloat16:
        return lax.bitcast_convert_type(twice << 15, jnp.float32)
    normal = lax.bitcast_convert_type((twice << 12) + np.uint32((127 - 15) << 23), jnp.float32)
    return jnp.where(twice < 1 << 11, twice.astype(jnp.float32) * np.float32(2.0**-25), normal)


def quotient_bits(a: jax.Array, divisor: int, dtype) -> jax.Array:
    """uint32 bits of `dtype(a / divisor)` for f32 a >= 0; NaN and infinity keep their kind."""
    guess = (a * np.float32(1 / divisor)).astype(dtype)
    bits = lax.bitcast_convert_type(guess, jnp.uint16).astype(jnp.uint32)
    above, below = (value_of(2 * bits + 1, dtype) * divisor, value_of(2 * jnp.maximum(bits, 1) - 1, dtype) * divisor)
    odd = bits % 2 == 1
    finite = bits < INFINITY[jnp.dtype(dtype).name]
    up = finite & ((a > above) | ((a == above) & odd))
    down = (bits > 0) & ((a < below) | ((a == below) & odd))
    return bits + up.astype(jnp.uint32) - down.astype(jnp.uint32)


def nearest_code(x: jax.Array, scale: jax.Array) -> jax.Array:
    """rint(x / scale) in f32, ties to even; |x / scale| below 2^11."""
    guess = jnp.rint(x / scale)
    off = x - guess * scale
    odd = guess != 2 * jnp.floor(guess / 2)
    wrong = (2 * jnp.abs(off) > scale) | ((2 * jnp.abs(off) == scale) & odd)
    return guess + jnp.where(wrong, jnp.sign(off), 0)


def butterflies(x: jax.Array) -> jax.Array:
    """Walsh-Hadamard transform of the last axis (a power of two), not scaled; neighbours meet first. Additions only (a
    product with 1 or -1 is exact), in an order of their own, so its bits are the same everywhere.

    A compiler that fuses levels computes the levels before anew for each element: the barriers keep it to three at a time.
    """
    sign = np.array([[1], [-1]], np.float32)
    for level in range(x.shape[-1].bit_length() - 1):
        pairs = x.reshape(*x.shape[:-1], -1, 2, 1 << level)
        x = (jnp.flip(pairs, axis=-2) + sign * pairs).reshape(x.shape)
        if level % 3 == 2:
            x = lax.optimization_barrier(x)
    return x
