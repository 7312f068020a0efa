"""All-reduce under `shard_map`: the one place every model uses.

*exact*: an f32 sum in ascending rank order, rounded once to the payload's dtype, so that every rank holds the
same bits and one-shot (gather, then sum) equals two-shot (scatter, sum, gather) bit for bit. `psum` promises no order.
"""

import jax
import jax.numpy as jnp
from jax import lax

# Messages of at least this many bytes take the two-shot form: 2(W-1)/W of the message sent instead of W-1 times it.
TWO_SHOT_BYTES = 1 << 20


def _ordered_sum(parts: jax.Array) -> jax.Array:
    """[W, ...] in rank order to [...], left to right in f32, rounded once."""
    total = parts[0].astype(jnp.float32)
    for rank in range(1, parts.shape[0]):
        total = total + parts[rank].astype(jnp.float32)
    return total.astype(parts.dtype)


def one_shot(x: jax.Array, axis: str) -> jax.Array:
    return _ordered_sum(lax.all_gather(x, axis, axis=0, tiled=False))


def two_shot(x: jax.Array, axis: str) -> jax.Array:
    """Each rank owns one shard of the flattened message (zero-padded to divide)."""
    ranks = lax.axis_size(axis)
    shard = -(-x.size // ranks)
    flat = jnp.pad(x.reshape(-1), (0, ranks * shard - x.size)).reshape(ranks, shard)
    mine = _ordered_sum(lax.all_to_all(flat, axis, split_axis=0, concat_axis=0, tiled=True).reshape(ranks, shard))
    return lax.all_gather(mine, axis, axis=0, tiled=True)[: x.size].reshape(x.shape)


def all_reduce(x: jax.Array, axis: str) -> jax.Array:
    """Sum of `x` over the ranks of mesh axis `axis`, the same bits on every rank. Call under `shard_map`."""
    if lax.axis_size(axis) == 1:
        return x
    return two_shot(x, axis) if x.size * x.dtype.itemsize >= TWO_SHOT_BYTES else one_shot(x, axis)


def all_gather_last(x: jax.Array, axis: str) -> jax.Array:
    """Shards of the last axis put together in rank order."""
    return x if lax.axis_size(axis) == 1 else lax.all_gather(x, axis, axis=x.ndim - 1, tiled=True)
