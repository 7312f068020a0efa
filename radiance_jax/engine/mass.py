"""Sums of probabilities that come out the same in any order: the sum is one of integers.

XLA chooses how a float sum over the vocabulary is split by the number of rows, and with the split the last bits change.
So a weight w in [0, 1] becomes the fixed-point number w * 2^39, rounded, in three limbs of 13 bits,

    w = (a + b * 2^-13 + c * 2^-26) * 2^-13        a <= 2^13, b < 2^13, c <= 2^13,

limbs are added up as uint32, and the three sums are put together once. Each limb's sum is exact for up to 2^19 weights
(the largest vocabularies have 2^18). A weight is rounded by at most 2^-40, so that a whole vocabulary of 2^18 is off by
2^-22 of the largest weight at worst.

No result depends on whether a compiler contracts a product and a sum: every product here is by a power of two, hence exact.
"""

import jax
import jax.numpy as jnp
from jax import lax

BITS = 13
LIMB = float(2**BITS)


def mass(weights: jax.Array) -> jax.Array:
    """f32 [..., V] in [0, 1] to their sum, f32 [...], in any order of summation the same bits. V is below 2^19."""
    assert weights.shape[-1] < 2**19, "sums of limbs would overflow"
    left, limbs = weights * LIMB, []
    for _ in range(2):
        whole = jnp.floor(left)
        limbs.append(whole)
        left = (left - whole) * LIMB  # both exact: a fraction of an f32, and a shift of its exponent
    limbs.append(jnp.round(left))
    high, middle, low = (jnp.sum(limb.astype(jnp.uint32), axis=-1, dtype=jnp.uint32) for limb in limbs)
    middle = middle + lax.shift_right_logical(low, jnp.uint32(BITS))
    high = high + lax.shift_right_logical(middle, jnp.uint32(BITS))
    rest = (middle & jnp.uint32(LIMB - 1)) << BITS | low & jnp.uint32(LIMB - 1)
    return high.astype(jnp.float32) * (1 / LIMB) + rest.astype(jnp.float32) * (1 / LIMB**3)
