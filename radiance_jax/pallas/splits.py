"""How the context of a step's segments is cut into splits, and who walks them: shared by the forms of the attention kernel.

Where splits begin is a fixed function of the position, counted from 0: short ones first, so that a short context is walked by
many thread blocks, then longer ones, so that a long one has few partial sums. A list of the splits that live segments need is
made on the device, so that no thread block is launched for a context that is not there.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from radiance_jax.pallas.paged_attention import Segments

BLOCK = 64  # keys a block: the finest step of the online softmax
ITEM = ("segment", "split", "slot", "position", "last", "begin", "blocks")


@dataclass(frozen=True, kw_only=True)
class SplitShape:
    """Static choices. `split` positions (a multiple of 64) are one thread block's, and twice as many from position `fine` on (a
    multiple of `split`; None: nowhere); `most` splits there can be; `window`: keys a row sees, itself included (None: all);
    `cap`: soft cap on scores.

    `lanes`: 0, one warpgroup loads and multiplies; 1 or 2, one streams and so many multiply: lane i of n takes the blocks whose
    number is i modulo n. `stages`: blocks of keys and values on their way, of all lanes together; `walkers`: thread blocks at
    once (an H200 has 132 multiprocessors). The bits depend on `split`, `fine` and `lanes` alone."""

    split: int = 256
    fine: int | None = None
    most: int
    window: int | None = None
    cap: float | None = None
    lanes: int = 0
    stages: int = 4
    walkers: int = 132

    def __post_init__(self) -> None:
        if self.split < BLOCK or self.split % BLOCK:
            raise ValueError(f"a split is a multiple of {BLOCK} positions; got {self.split}")
        if self.fine is not None and (self.fine < 0 or self.fine % self.split):
            raise ValueError(f"fine positions are a multiple of the split's {self.split}; got {self.fine}")

    @property
    def blocks(self) -> int:
        """Of the longest split."""
        return self.split * (1 if self.fine is None else 2) // BLOCK

    def number(self, position: jax.Array) -> jax.Array:
        """Of the split that holds a position.

        In:  0, 1023, 1024, 1535, 1536 of split 256, fine 1024    Out: 0, 3, 4, 4, 5
        """
        if self.fine is None:
            return position // self.split
        return jnp.where(position < self.fine, position // self.split,
                         self.fine // self.split + (position - self.fine) // (2 * self.split))

    def start(self, number: jax.Array) -> jax.Array:
        """The first block of a split."""
        plain, longer = number * (self.split // BLOCK), number - (0 if self.fine is None else self.fine // self.split)
        return plain if self.fine is None else plain + jnp.maximum(longer, 0) * (self.split // BLOCK)


def splits_of(length: int, split: int, fine: int | None) -> int:
    """How many splits so many positions have."""
    short = length if fine is None else min(length, fine)
    return -(-short // split) + -(-(length - short) // (2 * split))


def first_block(position: jax.Array, window: int | None) -> jax.Array:
    return jnp.zeros_like(position) if window is None else jnp.maximum(position - (window - 1), 0) // BLOCK


def work_list(segments: Segments, how: SplitShape) -> tuple[jax.Array, jax.Array]:
    """The splits that segments need, int32 [I, 7] with the fields of `ITEM`, and their number [1]. Who takes an item changes
    no bit."""
    count = segments.slot.shape[0]
    live = (jnp.arange(count) < segments.count) & (segments.rows > 0)
    last = segments.position + segments.rows - 1
    first = first_block(segments.position, how.window)
    lowest = how.number(first * BLOCK)
    need = jnp.where(live, how.number(last) - lowest + 1, 0)
    ends = jnp.cumsum(need)
    item = jnp.arange(count * how.most, dtype=jnp.int32)
    segment = jnp.minimum(jnp.sum(item[:, None] >= ends[None], axis=1, dtype=jnp.int32), count - 1)
    split = lowest[segment] + item - (ends - need)[segment]
    begin = jnp.maximum(how.start(split), first[segment])
    blocks = jnp.clip(jnp.minimum(last[segment] // BLOCK + 1, how.start(split + 1)) - begin, 0, how.blocks)
    fields = (segment, split, segments.slot[segment], segments.position[segment], last[segment], begin, blocks)
    return jnp.stack(fields, axis=1).astype(jnp.int32), ends[-1:].astype(jnp.int32)


def pages_of(work: jax.Array, tables: jax.Array, how: SplitShape, page: int) -> jax.Array:
    """The pages of an item's blocks, int32 [I, pages of the longest split], from its first block on: one read less in a chain of
    them."""
    per_block = BLOCK // page
    slot, begin = (work[:, ITEM.index(name)] for name in ("slot", "begin"))
    at = begin[:, None] * per_block + jnp.arange(how.blocks * per_block, dtype=jnp.int32)
    return tables[slot[:, None], jnp.minimum(at, tables.shape[1] - 1)]
