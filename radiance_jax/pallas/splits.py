"""How the context of a step's segments is cut into splits, and who walks them: shared by the forms of the attention kernel.

A split is a fixed number of positions counted from position 0; a list of the splits that live segments need is made on
the device, so that no thread block is launched for a context that is not there.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from radiance_jax.pallas.paged_attention import Segments

BLOCK = 64  # keys a block: the finest step of the online softmax
ITEM = ("segment", "split", "slot", "position", "last", "begin", "blocks")


@dataclass(frozen=True, kw_only=True)
class SplitShape:
    """Static choices. `split` positions (a multiple of 64) are one thread block's; `most` splits there can be; `window`:
    keys a row sees, itself included (None: all); `cap`: soft cap on scores.

    `lanes`: 0, one warpgroup loads and multiplies; 1 or 2, one streams and so many multiply: lane i of n takes the blocks whose
    number is i modulo n. `stages`: blocks of keys and values on their way, of all lanes together; `walkers`: thread blocks at
    once (an H200 has 132 multiprocessors). The bits depend on `split` and `lanes` alone."""

    split: int = 256
    most: int
    window: int | None = None
    cap: float | None = None
    lanes: int = 0
    stages: int = 4
    walkers: int = 132


def first_block(position: jax.Array, window: int | None) -> jax.Array:
    return jnp.zeros_like(position) if window is None else jnp.maximum(position - (window - 1), 0) // BLOCK


def work_list(segments: Segments, how: SplitShape) -> tuple[jax.Array, jax.Array]:
    """The splits that segments need, int32 [I, 7] with the fields of `ITEM`, and their number [1]. Who takes an item changes
    no bit."""
    count, per_split = segments.slot.shape[0], how.split // BLOCK
    live = (jnp.arange(count) < segments.count) & (segments.rows > 0)
    last = segments.position + segments.rows - 1
    first = first_block(segments.position, how.window)
    need = jnp.where(live, last // how.split - first // per_split + 1, 0)
    ends = jnp.cumsum(need)
    item = jnp.arange(count * how.most, dtype=jnp.int32)
    segment = jnp.minimum(jnp.sum(item[:, None] >= ends[None], axis=1, dtype=jnp.int32), count - 1)
    split = first[segment] // per_split + item - (ends - need)[segment]
    begin = jnp.maximum(split * per_split, first[segment])
    blocks = jnp.clip(jnp.minimum(last[segment] // BLOCK + 1, (split + 1) * per_split) - begin, 0, per_split)
    fields = (segment, split, segments.slot[segment], segments.position[segment], last[segment], begin, blocks)
    return jnp.stack(fields, axis=1).astype(jnp.int32), ends[-1:].astype(jnp.int32)


def pages_of(work: jax.Array, tables: jax.Array, how: SplitShape, page: int) -> jax.Array:
    """The pages of an item's blocks, int32 [I, pages a split], from its first block on: one read less in a chain of them."""
    per_block, per_split = BLOCK // page, how.split // BLOCK
    slot, begin = (work[:, ITEM.index(name)] for name in ("slot", "begin"))
    at = begin[:, None] * per_block + jnp.arange(per_split * per_block, dtype=jnp.int32)
    return tables[slot[:, None], jnp.minimum(at, tables.shape[1] - 1)]
