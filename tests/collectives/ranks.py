"""Runs a collective on every rank of a mesh of host devices."""

from collections.abc import Callable

import jax
import numpy as np
from jax.sharding import PartitionSpec as P

from radiance_jax.mesh import TENSOR_AXIS, make_mesh


def on_ranks(ranks: int, form: Callable, *trees: list[np.ndarray]) -> list[np.ndarray]:
    """`form(x, ..., axis)` of corresponding arrays [W, ...] on every rank, [W, ...] each; one program for all."""
    def each(*trees):
        return [form(*(x[0] for x in xs), TENSOR_AXIS)[None] for xs in zip(*trees, strict=True)]

    run = jax.shard_map(each, mesh=make_mesh(ranks), in_specs=P(TENSOR_AXIS), out_specs=P(TENSOR_AXIS), check_vma=False)
    return [np.asarray(x) for x in jax.jit(run)(*trees)]
