"""The exact wire: an f32 sum in ascending rank order, rounded once to the payload's dtype.

So every rank holds the same bits, and one-shot (gather, then sum) equals two-shot (scatter, sum, gather) bit for bit.
`psum` promises no order.
"""

import jax
import jax.numpy as jnp
from jax import lax


def narrowed(x: jax.Array, dtype) -> jax.Array:
    """f32 rounded to `dtype`, f32 or bf16, really.

    XLA may drop a rounding whose result is widened again (its `allow_excess_precision`); then a sum would have other bits
    before an addition than before a gather. It keeps `reduce_precision`.
    """
    if jnp.dtype(dtype) == jnp.bfloat16:
        x = lax.reduce_precision(x, exponent_bits=8, mantissa_bits=7)
    return x.astype(dtype)


def add(x: jax.Array, y: jax.Array) -> jax.Array:
    """x + y in f32, rounded once to their dtype."""
    return narrowed(x.astype(jnp.float32) + y.astype(jnp.float32), x.dtype)


def ordered_sum(parts: jax.Array) -> jax.Array:
    """[W, ...] in rank order to [...], left to right in f32, rounded once."""
    total = parts[0].astype(jnp.float32)
    for rank in range(1, parts.shape[0]):
        total = total + parts[rank].astype(jnp.float32)
    return narrowed(total, parts.dtype)


def one_shot(x: jax.Array, axis: str) -> jax.Array:
    return ordered_sum(lax.all_gather(x, axis, axis=0, tiled=False))


def shares(x: jax.Array, ranks: int, multiple: int = 1) -> jax.Array:
    """The flattened message, zero-padded and cut into equal shares of a `multiple` of elements, one a rank: [W, n]."""
    share = -(-x.size // (ranks * multiple)) * multiple
    return jnp.pad(x.reshape(-1), (0, ranks * share - x.size)).reshape(ranks, share)


def two_shot(x: jax.Array, axis: str, residual: jax.Array | None = None) -> jax.Array:
    """Each rank owns one share of the message. A `residual` of the same shape is added by the owner, before the second
    hop: the same bits as adding it afterwards, at a share of the work."""
    ranks = lax.axis_size(axis)
    flat = shares(x, ranks)
    mine = ordered_sum(lax.all_to_all(flat, axis, split_axis=0, concat_axis=0, tiled=True).reshape(flat.shape))
    if residual is not None:
        own = lax.dynamic_index_in_dim(shares(residual, ranks), lax.axis_index(axis), keepdims=False)
        mine = add(own, mine)
    return lax.all_gather(mine, axis, axis=0, tiled=True)[: x.size].reshape(x.shape)
