"""The rows of a step, and the two ways of walking them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import jax
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


@dataclass(frozen=True)
class Tiles:
    """Walks rows in tiles of fixed `height`.

    With a traced `count` it is a loop that compiles to one body whatever the batch: every row goes through the same
    instructions, which is what makes its bits its own on a CPU (XLA picks other loops for other row counts).
    With `count` None the rows are one tile of `height` rows and there is no loop.
    """

    height: int
    count: Any = None

    def walk(self, body: Callable[[Any, Carry], Carry], carry: Carry) -> Carry:
        """`body(first row, carry) -> carry` for each live tile in ascending order."""
        if self.count is None:
            return body(0, carry)
        return lax.fori_loop(0, self.count, lambda i, c: body(i * self.height, c), carry)

    def take(self, x: jax.Array, first: Any) -> jax.Array:
        return x if self.count is None else lax.dynamic_slice_in_dim(x, first, self.height)

    def put(self, into: jax.Array, part: jax.Array, first: Any) -> jax.Array:
        return part if self.count is None else lax.dynamic_update_slice_in_dim(into, part, first, axis=0)
