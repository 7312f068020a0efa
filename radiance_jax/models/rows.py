"""The rows of a step, and the two ways of walking them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax import lax

Carry = TypeVar("Carry")


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Rows:
    """int32 [R] each. `page` and `offset` say where a row's key and value go (dead rows: page 0, a bin)."""

    token: Any
    position: Any
    page: Any
    offset: Any


Heights = tuple[tuple[int, int], ...]


def rows_computed(rows: int, heights: Heights) -> int:
    """Rows that go through the layers for `rows` live ones: whole tiles, as `Tiles` takes them.

    In:  rows 45, heights ((32, 17), (8, 3), (2, 1))    Out: 32 + 8 + 8 = 48
    """
    done = 0
    for height, least in heights:
        left = max(rows - done, 0)
        done += (left // height + (left % height >= least)) * height
    return done


@dataclass(frozen=True)
class Tile:
    """`height` rows from row `first` on."""

    first: Any
    height: int


@dataclass(frozen=True)
class Tiles:
    """Walks rows tile by tile, in loops that compile to one body per height whatever the batch.

    `heights` are (height, least) pairs, tallest first: of the rows that are left, as many tiles of this height are
    taken as there are rows to fill, and one more if at least `least` rows remain; the last pair's `least` is 1.
    `rows` is their traced number. Every row of a tile goes through the same instructions, which is what makes its
    bits its own on a CPU: XLA compiles other loops for other row counts. Tall tiles read the weights less often, low ones
    waste fewer rows. That all heights give a row the same bits is checked on the machine at start-up (`engine/check.py`).

    With `rows` None there is one tile of the (only) height, and no loop.
    """

    heights: Heights
    rows: Any = None

    def walk(self, body: Callable[[Tile, Carry], Carry], carry: Carry) -> Carry:
        """`body(tile, carry) -> carry` for each tile in ascending order."""
        if self.rows is None:
            return body(Tile(0, self.heights[0][0]), carry)
        first, left = 0, self.rows
        for height, least in self.heights:
            count = left // height + (left % height >= least)
            carry = lax.fori_loop(
                0, count, lambda i, c, first=first, height=height: body(Tile(first + i * height, height), c), carry)
            first, left = first + count * height, jnp.maximum(left - count * height, 0)
        return carry

    def take(self, x: jax.Array, tile: Tile) -> jax.Array:
        return x if self.rows is None else lax.dynamic_slice_in_dim(x, tile.first, tile.height)

    def put(self, into: jax.Array, part: jax.Array, tile: Tile) -> jax.Array:
        return part if self.rows is None else lax.dynamic_update_slice_in_dim(into, part, tile.first, axis=0)
