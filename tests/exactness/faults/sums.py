"""Faults of sums over ranks: a patch each while the sums are traced."""

from collections.abc import Callable
from unittest.mock import patch

import jax
import jax.numpy as jnp

from radiance_jax import collectives
from radiance_jax.collectives import exact
from tests.exactness import test_mesh
from tests.exactness.faults.host import Patch

FAULTS: dict[str, Callable] = {
    "ranks sum in an order of their own": test_mesh.test_every_form_of_a_sum_is_the_sum_in_rank_order,
    "the two-shot form sums the other way round": test_mesh.test_every_form_of_a_sum_is_the_sum_in_rank_order,
}


def _own_order(original):
    """Each rank begins with its own part."""
    def ordered(parts):
        rank = jax.lax.axis_index("tp")
        return original(jnp.roll(parts, -rank, axis=0))
    return ordered


def _backwards(original):
    def two_shot(x, axis):
        with patch.object(exact, "ordered_sum", lambda parts: original_sum(parts[::-1])):
            return original(x, axis)
    original_sum = exact.ordered_sum
    return two_shot


PATCHES = {
    "ranks sum in an order of their own": Patch(exact, "ordered_sum", _own_order),
    "the two-shot form sums the other way round": Patch(collectives, "two_shot", _backwards),
}
