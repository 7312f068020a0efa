"""The mesh of a training run, and where its arrays lie on it.

    dp   the batch is cut along it
    tp   what is as long as the vocabulary is cut along it: the target's ends, a drafter's tables, their masters and moments,
         and with them the logits of the loss

Everything else is whole on each device. Programs are `jit`, XLA adds the collectives.
"""

from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from radiance_jax.errors import UserError
from radiance_jax.mesh import ArraySpec, is_spec

BATCH, VOCAB = "dp", "tp"


def training_mesh(dp: int, tp: int) -> Mesh:
    devices = jax.devices()
    if dp * tp > len(devices):
        raise UserError(f"mesh dp={dp},tp={tp} needs {dp * tp} devices; {len(devices)} of platform "
                        f"{devices[0].platform!r} visible", param="mesh")
    if dp * tp < len(devices) and jax.process_count() > 1:
        raise UserError(f"mesh must use all {len(devices)} devices where there are several processes; got dp={dp},tp={tp}",
                        param="mesh")
    return Mesh(np.array(devices[:dp * tp]).reshape(dp, tp), (BATCH, VOCAB), axis_types=(AxisType.Auto,) * 2)


def whole(mesh: Mesh) -> NamedSharding:
    return NamedSharding(mesh, PartitionSpec())


def by_batch(mesh: Mesh) -> NamedSharding:
    return NamedSharding(mesh, PartitionSpec(BATCH))


def of_spec(spec: ArraySpec, mesh: Mesh) -> NamedSharding:
    """Cut along the vocabulary where the first axis is one and divides."""
    cut = spec.axes[:1] == ("vocab",) and spec.shape[0] % mesh.shape[VOCAB] == 0
    return NamedSharding(mesh, PartitionSpec(VOCAB if cut else None))


def place(values: np.ndarray, sharding: NamedSharding) -> jax.Array:
    """A host array that every process holds whole, placed."""
    return jax.make_array_from_callback(values.shape, sharding, lambda index: values[index])


def trees(specs: Any, mesh: Mesh) -> Any:
    """The sharding of every leaf of a tree of `ArraySpec`."""
    return jax.tree.map(lambda spec: of_spec(spec, mesh), specs, is_leaf=is_spec)
