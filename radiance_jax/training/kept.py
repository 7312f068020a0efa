"""The target's states of all training answers, computed once and kept on the device.

A run passes over its answers many times, and the target writes the same of them each time: with room for them (2 bytes a
channel, tapped streams and the last states; 50 GB for 7 million tokens of a target of width 576 with five taps) a step is the
drafter's alone.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax.sharding import Mesh

from radiance_jax.errors import UserError
from radiance_jax.training import target as target_
from radiance_jax.training.blocks import Batch
from radiance_jax.training.pipeline import Padded, on_mesh, padded_batches
from radiance_jax.training.target import Target

HEADROOM = 0.8  # of the device's memory may be states


@struct.dataclass
class Kept:
    """`rows` [tokens of all answers, n + 1, D]: the tapped streams and the last state of every token; `start` int32: by an
    answer's index, its first row (for an answer that is not kept: the number of rows)."""

    rows: Any
    start: Any

    def states(self, batch: Batch) -> tuple[jax.Array, jax.Array]:
        """What `target.states` says of the batch: taps [B, T, n, D], last states [B, T, D]. Behind an answer's end its last
        token's are repeated."""
        inside = jnp.minimum(jnp.arange(batch.tokens.shape[1]), jnp.maximum(batch.length - 1, 0)[:, None])
        found = self.rows[self.start[batch.index][:, None] + inside]
        return found[:, :, :-1], found[:, :, -1]


def abstract(rows: Padded, target: Target, dtype: Any) -> Kept:
    """Shapes and dtypes of what is kept."""
    total = int(rows.kept_lengths.sum())
    return Kept(rows=jax.ShapeDtypeStruct((total, len(target.taps) + 1, target.config.width), dtype),
                start=jax.ShapeDtypeStruct((len(rows.answers),), jnp.int32))


def check_room(like: Kept, mesh: Mesh) -> None:
    """Raises `UserError` where the states cannot be kept."""
    if mesh.size > 1:
        raise UserError(f"states=kept needs a mesh of one device; got {mesh.size}. Use states=recomputed.", param="states")
    need, stats = like.rows.size * like.rows.dtype.itemsize, mesh.devices.flat[0].memory_stats()
    room = None if stats is None or "bytes_limit" not in stats else HEADROOM * stats["bytes_limit"]
    if room is not None and need > room:
        raise UserError(f"states=kept needs {need / 2**30:.1f} GiB for the states of {like.rows.shape[0]} tokens; a device has "
                        f"{room / 2**30:.1f} GiB for them. Use a smaller share, or states=recomputed.", param="states")


def fill(rows: Padded, params: Any, target: Target, mesh: Mesh, like: Kept, batch: int) -> Kept:
    """Runs the target over all answers once. Raises `UserError` if what is read back is not what was computed."""
    lengths = rows.kept_lengths
    first = np.cumsum(lengths) - lengths
    start = np.full(like.start.shape, like.rows.shape[0], np.int32)
    start[rows.chosen] = first
    kept = Kept(rows=jnp.zeros(like.rows.shape, like.rows.dtype), start=jnp.asarray(start))

    def put(kept: jax.Array, params: Any, batch: Batch, start: jax.Array) -> jax.Array:
        place = jnp.arange(batch.tokens.shape[1])
        to = jnp.where(place < batch.length[:, None], start[:, None] + place, kept.shape[0])
        taps, last = target_.states(params, target, batch.tokens)
        return kept.at[to].set(jnp.concatenate([taps, last[:, :, None]], axis=2), mode="drop")

    put = jax.jit(put, donate_argnums=0)
    last: Batch | None = None
    for number, found in enumerate(padded_batches(rows, batch)):
        starts = np.append(first[number * batch:(number + 1) * batch], np.full(batch, like.rows.shape[0]))[:batch]
        last = on_mesh(found, mesh)
        kept = kept.replace(rows=put(kept.rows, params, last, jnp.asarray(starts, jnp.int32)))
    assert last is not None
    _check(kept, params, target, last)
    return kept


def _check(kept: Kept, params: Any, target: Target, batch: Batch) -> None:
    """The states of the last batch, which lie where addresses are longest, against the target."""

    @jax.jit
    def differ(kept: Kept, params: Any, batch: Batch) -> jax.Array:
        live = (jnp.arange(batch.tokens.shape[1]) < batch.length[:, None])[..., None]
        taps, last = target_.states(params, target, batch.tokens)
        kept_taps, kept_last = kept.states(batch)
        off = [jnp.where(live[..., None], jnp.abs(taps - kept_taps), 0).max(),
               jnp.where(live, jnp.abs(last - kept_last), 0).max()]
        scale = jnp.where(live[..., None], jnp.abs(taps), 0).max()
        return jnp.stack([*off, scale]).astype(jnp.float32)

    taps, last, scale = map(float, differ(kept, params, batch))
    if not max(taps, last) <= 0.02 * scale:
        raise UserError(f"states=kept does not work on this device: states read back differ by {max(taps, last):.3g}. Use "
                        "states=recomputed.", param="states")
