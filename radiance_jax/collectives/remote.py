"""One-shot all-reduce as one kernel: every rank writes its message into every peer's memory over NVLink, then adds.

A Mosaic GPU kernel of up to `BLOCKS` blocks. A block pushes its stretch of the message into its slot of each rank's landing
buffer, signals that rank's semaphore of the same block, waits until all ranks have signalled its own, and adds the slots in
ascending rank order in f32, rounded once: the bits of the other exact forms. A residual is added in the same loop, after the
rounding. Plain peer writes only, no multicast.

It needs one process that drives all visible GPUs, with the mesh over all of them in the order of their ids (`mesh.one_host`).
XLA puts a barrier of all devices before such a kernel, so nobody writes into a buffer that is still read. No interpreter
runs it; `exact.one_shot` is its twin, and `bench wires` compares their bits on the machine.
"""

import math
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

THREADS, VECTOR_BYTES = 128, 16  # one warpgroup, each thread moving 16 bytes at a time
BLOCKS = 64  # all of them are resident at once, which waiting on peers asks for


def tiling(size: int, itemsize: int) -> tuple[int, int, int]:
    """Elements of a tile, tiles of a block, blocks: together at least `size` elements.

    In:  4096 elements of 2 bytes    Out: (1024, 1, 4)
    """
    tile = THREADS * VECTOR_BYTES // itemsize
    tiles = max(math.ceil(size / tile), 1)
    steps = math.ceil(tiles / BLOCKS)
    return tile, steps, math.ceil(tiles / steps)


def one_shot(x: jax.Array, axis: str, residual: jax.Array | None = None) -> jax.Array:
    """Sum of `x` over the ranks, or residual + that sum. bf16 or f32."""
    tile, steps, blocks = tiling(x.size, x.dtype.itemsize)
    padded = tile * steps * blocks
    inputs = tuple(jnp.pad(each.reshape(-1), (0, padded - x.size)) for each in (x, residual) if each is not None)
    out = _kernel(inputs, axis=axis, ranks=lax.axis_size(axis), tile=tile, steps=steps, blocks=blocks)
    return out[: x.size].reshape(x.shape)


@partial(jax.jit, static_argnames=("axis", "ranks", "tile", "steps", "blocks"))  # lowered once for all layers
def _kernel(inputs: tuple[jax.Array, ...], *, axis: str, ranks: int, tile: int, steps: int, blocks: int) -> jax.Array:
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import mosaic_gpu as gpu

    dtype = inputs[0].dtype
    # Own memory is read 16 bytes a thread. A peer's is written one element a thread: nothing is known of the alignment of its
    # addresses, so 16 bytes would fall apart into strided pieces, while neighbours' elements leave together.
    near, far = (gpu.Layout.WG_STRIDED((tile,), vector) for vector in (VECTOR_BYTES // dtype.itemsize, 1))

    def body(*refs):
        message, *residual, landing, out = refs
        arrived = pl.get_global(gpu.SemaphoreType.REGULAR((blocks,)))
        block, me = lax.axis_index("block"), lax.axis_index(axis)

        def stretch(step):
            return pl.ds((block * steps + step) * tile, tile)

        def load(ref, *index, layout=near):
            return gpu.load(ref.at[index], layout=layout)

        @pl.loop(0, steps)
        def _push(step):
            part = load(message, stretch(step), layout=far)
            for rank in range(ranks):
                gpu.remote_ref(landing, jnp.int32(rank))[me, stretch(step)] = part

        for rank in range(ranks):
            pl.semaphore_signal(arrived.at[block], 1, device_id=jnp.int32(rank))
        pl.semaphore_wait(arrived.at[block], ranks, decrement=False)

        @pl.loop(0, steps)
        def _add(step):
            total = load(landing, 0, stretch(step)).astype(jnp.float32)
            for rank in range(1, ranks):
                total = total + load(landing, rank, stretch(step)).astype(jnp.float32)
            total = total.astype(dtype)
            if residual:
                total = (load(residual[0], stretch(step)).astype(jnp.float32) + total.astype(jnp.float32)).astype(dtype)
            out[stretch(step)] = total

    size = tile * steps * blocks
    _, out = gpu.kernel(
        body, out_type=(jax.ShapeDtypeStruct((ranks, size), dtype), jax.ShapeDtypeStruct((size,), dtype)),
        grid=(blocks,), grid_names=("block",))(*inputs)
    return out
