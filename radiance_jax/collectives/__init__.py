"""All-reduce under `shard_map`: the one place every model uses.

`all_reduce(x, axis, wire)` sums over ranks, `all_reduce_add` adds the sum to a residual stream as well. Whatever the wire,
all ranks end with the same bits; with the exact wire these are the bits of an f32 sum in ascending rank order, rounded
once, however the message travelled.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from radiance_jax import wire as wires
from radiance_jax.collectives import remote, tiered, wht6
from radiance_jax.collectives.exact import add, narrowed, one_shot, two_shot
from radiance_jax.wire import EXACT, Wire

__all__ = ["EXACT", "Wire", "all_gather_last", "all_reduce", "all_reduce_add", "all_reduce_add_norm", "all_reduce_gated",
           "one_shot", "two_shot"]


def all_reduce(x: jax.Array, axis: str, wire: Wire = EXACT) -> jax.Array:
    """Sum of `x` over the ranks of mesh axis `axis`, the same bits on every rank. Call under `shard_map`."""
    ranks = lax.axis_size(axis)
    if ranks == 1:
        return x
    match wire.form(x.size, x.dtype.itemsize, ranks):
        case wires.REMOTE:
            return remote.one_shot(x, axis)
        case wires.TWO_SHOT:
            return two_shot(x, axis)
        case wires.WHT6:
            return wht6.all_reduce(x, axis)
        case wires.TIERED:
            return tiered.all_reduce(x, axis)
    return one_shot(x, axis)


def all_reduce_add(x: jax.Array, residual: jax.Array, axis: str, wire: Wire = EXACT, bias: jax.Array | None = None) -> jax.Array:
    """residual + (sum of x over ranks + bias), with the bits of the three steps taken one by one.

    The addition rides along where that saves something: in the two-shot form on the owner's share, in the remote-write
    kernel in its last loop; after the others XLA fuses it into the summing loop.
    """
    ranks = lax.axis_size(axis)
    form = wire.form(x.size, x.dtype.itemsize, ranks) if ranks > 1 and bias is None else None
    if form == wires.TWO_SHOT:
        return two_shot(x, axis, residual)
    if form == wires.REMOTE:
        return remote.one_shot(x, axis, residual)
    total = all_reduce(x, axis, wire)
    return add(residual, total if bias is None else add(total, bias))


def all_reduce_add_norm(x: jax.Array, residual: jax.Array, norm: Callable[[jax.Array], jax.Array], axis: str,
                        wire: Wire = EXACT, bias: jax.Array | None = None) -> tuple[jax.Array, jax.Array]:
    """The new residual stream and its norm, with the bits of the steps taken one by one."""
    r = all_reduce_add(x, residual, axis, wire, bias)
    return r, norm(r)


def all_reduce_gated(x: jax.Array, streams: jax.Array, gate: jax.Array, axis: str, wire: Wire = EXACT) -> jax.Array:
    """Several residual streams, each with a gate of its own: streams [R, C, D], x [R, D], gate [R, C], all bf16.
    streams[r, c] + gate[r, c] * sum[r], the product rounded before the addition as in the steps taken one by one."""
    total = all_reduce(x, axis, wire).astype(jnp.float32)
    return add(streams, narrowed(gate.astype(jnp.float32)[:, :, None] * total[:, None, :], streams.dtype))


def all_gather_last(x: jax.Array, axis: str) -> jax.Array:
    """Shards of the last axis put together in rank order."""
    return x if lax.axis_size(axis) == 1 else lax.all_gather(x, axis, axis=x.ndim - 1, tiled=True)
