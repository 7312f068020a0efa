"""From `"tp=8"` to a device mesh, and from logical axis names to shardings.

Every array of the engine is described once, by shape, dtype and *logical* axes (`ArraySpec`); shardings,
abstract values for ahead-of-time compilation and the slices a loader reads all derive from that.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from radiance_jax.errors import UserError
from radiance_jax.wire import REMOTE_BYTES, Wire

TENSOR_AXIS = "tp"

# Which mesh axis carries a logical axis. Names that are absent are replicated.
RULES = {"vocab": TENSOR_AXIS, "heads": TENSOR_AXIS, "kv_heads": TENSOR_AXIS, "ff": TENSOR_AXIS}


@dataclass(frozen=True)
class ArraySpec:
    """Shape, dtype and logical axes (None: no name) of one array; the shape is the global one."""

    shape: tuple[int, ...]
    dtype: np.dtype
    axes: tuple[str | None, ...]

    def __post_init__(self) -> None:
        assert len(self.shape) == len(self.axes), f"one logical axis per dimension: {self}"

    @property
    def partition(self) -> PartitionSpec:
        return PartitionSpec(*(RULES.get(axis) for axis in self.axes))

    def sharding(self, mesh: Mesh) -> NamedSharding:
        return NamedSharding(mesh, self.partition)

    def abstract(self, mesh: Mesh) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(self.shape, self.dtype, sharding=self.sharding(mesh))

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


def replicated(shape: tuple[int, ...], dtype) -> ArraySpec:
    return ArraySpec(tuple(shape), np.dtype(dtype), (None,) * len(shape))


def is_spec(leaf: Any) -> bool:
    """Where a tree of `ArraySpec` ends."""
    return isinstance(leaf, ArraySpec)


def partitions(tree: Any) -> Any:
    """The partition of every spec of a tree."""
    return jax.tree.map(lambda spec: spec.partition, tree, is_leaf=is_spec)


def abstract(tree: Any, mesh: Mesh) -> Any:
    """What ahead-of-time compilation takes in the place of the arrays that a tree of specs describes."""
    return jax.tree.map(lambda spec: spec.abstract(mesh), tree, is_leaf=is_spec)


def place(spec: ArraySpec, mesh: Mesh, read: Callable[[tuple[slice, ...]], np.ndarray]) -> jax.Array:
    """Builds a sharded array; `read(index)` gives the values of one shard's slice of the global array."""
    return jax.make_array_from_callback(
        spec.shape, spec.sharding(mesh), lambda index: np.asarray(read(index), dtype=spec.dtype))


def zeros(spec: ArraySpec, mesh: Mesh) -> jax.Array:
    """Zeros under the spec's sharding, made shard by shard without a compiled program."""

    def read(index: tuple[slice, ...]) -> np.ndarray:
        shape = tuple(len(range(*i.indices(n))) for i, n in zip(index, spec.shape))
        return np.zeros(shape, spec.dtype)

    return place(spec, mesh, read)


def zeros_of(tree: Any, mesh: Mesh) -> Any:
    """`zeros` for every spec of a tree."""
    return jax.tree.map(lambda spec: zeros(spec, mesh), tree, is_leaf=is_spec)


def make_mesh(tp: int) -> Mesh:
    """A mesh over the first `tp` visible devices."""
    devices = jax.devices()
    if tp > len(devices):
        kind = devices[0].platform
        hint = (f"Set XLA_FLAGS=--xla_force_host_platform_device_count={tp} before Python starts"
                if kind == "cpu" else f"Use --mesh tp={len(devices)} or fewer")
        raise UserError(f"mesh tp={tp} needs {tp} devices; {len(devices)} of platform {kind!r} visible. {hint}.", param="mesh")
    return Mesh(np.array(devices[:tp]), (TENSOR_AXIS,), axis_types=(AxisType.Auto,))


def one_host(mesh: Mesh) -> bool:
    """Whether one process drives all visible GPUs and the mesh has all of them in the order of their ids: then a kernel may
    write into the memory of its peers."""
    devices = list(mesh.devices.flat)
    return devices[0].platform == "gpu" and jax.process_count() == 1 and devices == sorted(jax.devices(), key=lambda d: d.id)


def with_remote(wire: Wire, mesh: Mesh) -> Wire:
    """The wire with remote writes for the messages they are the fastest for, where they can be had. Changes no bit."""
    return replace(wire, remote_bytes=REMOTE_BYTES.get(mesh.size, 0)) if one_host(mesh) else wire
