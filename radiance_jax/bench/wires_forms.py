"""The all-reduces that `bench wires` compares, as programs over a mesh."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from radiance_jax import collectives, wire
from radiance_jax.collectives import exact, remote, tiered, wht6
from radiance_jax.mesh import TENSOR_AXIS, one_host

WHOLE = PartitionSpec(TENSOR_AXIS)


def missing(form: str, size: int, mesh: Mesh) -> str | None:
    """Why this form cannot carry `size` elements here, or None."""
    ranks, form = mesh.size, form.removesuffix("+add")
    if form == "remote" and not one_host(mesh):
        return "needs one process with all its GPUs in the mesh, in the order of their ids"
    if form == "lossy" and ranks not in wire.LOSSY_FORMS:
        return f"there is no lossy form for {ranks} ranks"
    if form == "lossy" and size % wire.GROUPS[wire.LOSSY_FORMS[ranks]]:
        return "not a whole number of groups: sent exactly"
    return None


def sent(form: str, size: int, ranks: int) -> int | None:
    """Bytes each rank sends. None for psum: how it travels is XLA's choice."""
    name = form.removesuffix("+add")
    return None if name == "psum" else wire.bytes_sent(wire.LOSSY_FORMS[ranks] if name == "lossy" else name, size, 2, ranks)


def all_reduce(form: str, ranks: int) -> Callable[[jax.Array, jax.Array], jax.Array]:
    """`f(x, residual)` under `shard_map`: the sum, or with `+add` residual + the sum."""
    plain: dict[str, Callable[..., jax.Array]] = {
        "psum": lambda x: lax.psum(x, TENSOR_AXIS), "one-shot": lambda x: exact.one_shot(x, TENSOR_AXIS),
        "two-shot": lambda x: exact.two_shot(x, TENSOR_AXIS), "remote": lambda x: remote.one_shot(x, TENSOR_AXIS),
        "lossy": lambda x: (wht6 if wire.LOSSY_FORMS[ranks] == wire.WHT6 else tiered).all_reduce(x, TENSOR_AXIS)}
    if not form.endswith("+add"):
        return lambda x, residual: plain[form](x)
    fused = {"two-shot+add": exact.two_shot, "remote+add": remote.one_shot}
    if form in fused:
        return lambda x, residual: fused[form](x, TENSOR_AXIS, residual)
    return lambda x, residual: collectives.add(residual, plain[form.removesuffix("+add")](x))


def program(form: str, mesh: Mesh, count: int) -> Any:
    """`run(x, residual)` of [W, n] arrays sharded by rank: `count` all-reduces, each of what the one before gave.

    With `+add` the sum goes into the residual stream, which is what the next one sends."""
    reduce = jax.jit(all_reduce(form, mesh.size))  # traced and lowered once, however long the chain

    def run(x, residual):
        x, residual = x[0], residual[0]
        for _ in range(count):
            x = reduce(x, residual)
            residual = x if form.endswith("+add") else residual
        return x[None]

    return jax.jit(jax.shard_map(run, mesh=mesh, in_specs=(WHOLE, WHOLE), out_specs=WHOLE, check_vma=False))


def abstract(size: int, mesh: Mesh) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((mesh.size, size), jax.numpy.bfloat16, sharding=NamedSharding(mesh, WHOLE))


def on_mesh(x: np.ndarray, mesh: Mesh) -> jax.Array:
    return jax.device_put(x, NamedSharding(mesh, WHOLE))
