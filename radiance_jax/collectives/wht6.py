"""The lossy wire of two ranks: rotated groups in six bits.

64 consecutive elements g of the flattened message become u = H g / 8 (the orthonormal Walsh-Hadamard transform, its own
inverse), a = max |u|, s = bf16(a / 31), and codes clamp(rint(u / s), -32, 31) + 32 in six bits each: 48 bytes, and 2 of
s; 6.25 bits an element. Sums are taken of the rotated values, q_a s_a + q_b s_b in rank order, and rotated back once, so that
both ranks fold the same pair and end with the same bits. A rotation spreads an outlier over its group, which is what
makes six bits enough.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from radiance_jax.collectives.exact import narrowed
from radiance_jax.collectives.rounding import butterflies, nearest_code, quotient_bits, value_of
from radiance_jax.wire import GROUPS, WHT6

GROUP = GROUPS[WHT6]
QUIET = np.float32(2.0**-100)  # groups below it are sent as zeros: it keeps clear of numbers that some platforms flush
ONE, NONE = np.uint32(0x3F80), np.uint32(0x7FC0)  # bits of bf16 1.0 and NaN


def encode(x: jax.Array) -> jax.Array:
    """f32 [G, 64] to uint8 [G, 50]: codes j, 16+j, 32+j, 48+j in the three bytes from 3j on, then the scale."""
    u = butterflies(x) * np.float32(1 / 8)
    largest = jnp.max(jnp.abs(u), axis=-1, keepdims=True)
    bits = jnp.where(largest < QUIET, ONE, quotient_bits(largest, 31, jnp.bfloat16))
    bits = jnp.where(jnp.isfinite(u[:, :1]), bits, NONE)  # an infinity or NaN of the group is in every u, and stays visible
    q = jnp.clip(nearest_code(u, value_of(2 * bits, jnp.bfloat16)), -32, 31)
    q = (q + 32).astype(jnp.uint32).reshape(-1, 4, 16)
    word = q[:, 0] | q[:, 1] << 6 | q[:, 2] << 12 | q[:, 3] << 18
    codes = jnp.stack([word, word >> 8, word >> 16], axis=-1).reshape(-1, 48)
    return (jnp.concatenate([codes, bits, bits >> 8], axis=-1) & 255).astype(jnp.uint8)


def decode(sent: jax.Array) -> jax.Array:
    """uint8 [..., 50] to the rotated values, f32 [..., 64]."""
    wide = sent.astype(jnp.uint32)
    bits = wide[..., 48:49] | wide[..., 49:] << 8
    parts = wide[..., :48].reshape(*wide.shape[:-1], 16, 3)
    word = parts[..., 0] | parts[..., 1] << 8 | parts[..., 2] << 16
    q = jnp.concatenate([word >> shift & 63 for shift in (0, 6, 12, 18)], axis=-1).astype(jnp.float32) - 32
    return q * value_of(2 * bits, jnp.bfloat16)


def all_reduce(x: jax.Array, axis: str) -> jax.Array:
    """bf16, of a multiple of 64 elements, over two ranks."""
    sent = encode(x.reshape(-1, GROUP).astype(jnp.float32))
    both = decode(lax.all_gather(sent, axis))
    return narrowed(butterflies(both[0] + both[1]) * np.float32(1 / 8), x.dtype).reshape(x.shape)
