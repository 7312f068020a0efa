"""Residual add and RMS norm of one row per thread block, so that a row's bits are its own.

    x' = x + y        y' = weight * round(x' / sqrt(mean(x'^2) + eps))

The sum over a row runs over a fixed arrangement of 128 threads, whatever the number of rows.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from radiance_jax.pallas.mosaic import after_predecessor, shape

VECTOR = 128 * 8  # elements that a warpgroup's threads hold together, 16 bytes of bf16 each
COPY = 256  # elements of one TMA copy, at most


def oracle(x: jax.Array, y: jax.Array | None, weight: jax.Array, eps: float) -> tuple[jax.Array, jax.Array]:
    """x [R, D], y [R, D] or None to the new residual stream and its norm, both [R, D]."""
    if y is not None:
        x = (x.astype(jnp.float32) + y.astype(jnp.float32)).astype(x.dtype)
    wide = x.astype(jnp.float32)
    scale = lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + eps)
    return x, ((wide * scale).astype(x.dtype).astype(jnp.float32) * weight.astype(jnp.float32)).astype(x.dtype)


def add_norm(x: jax.Array, y: jax.Array | None, weight: jax.Array, eps: float, *,
             interpret: Any = None) -> tuple[jax.Array, jax.Array]:
    """`oracle` as a kernel: x, y [R, D] and weight [D] to [R, D] twice. D is a multiple of 8."""
    rows, width = x.shape
    padded = -(-width // VECTOR) * VECTOR  # what is beyond the row is zero
    layout = plgpu.Layout.WG_STRIDED((padded,), vec_size=8)
    chunks = [pl.ds(start, min(COPY, width - start)) for start in range(0, width, COPY)]

    def body(*refs):
        inputs, rest = (refs[:3], refs[3:]) if y is not None else ((refs[0], None, refs[1]), refs[2:])
        x_g, y_g, w_g = inputs
        sum_g, out_g, x_s, y_s, w_s, arrived, weighed = rest
        row = lax.axis_index("row")
        load = lambda ref: plgpu.layout_cast(ref[...], layout)  # noqa: E731
        if padded == width:  # straight from and to the device's memory
            read = lambda ref: plgpu.load(ref, layout=layout, optimized=False)  # noqa: E731
            weighing = read(w_g).astype(jnp.float32)
            after_predecessor(interpret)
            wide = read(x_g.at[row]).astype(jnp.float32)
            if y is not None:
                summed = (wide + read(y_g.at[row]).astype(jnp.float32)).astype(x.dtype)
                sum_g.at[row][...] = summed
                wide = summed.astype(jnp.float32)
            scale = lax.rsqrt(jnp.sum(wide * wide) / width + eps)
            out_g.at[row][...] = ((wide * scale).astype(x.dtype).astype(jnp.float32) * weighing).astype(x.dtype)
            return
        if padded > width:
            for buffer in (x_s, y_s, w_s):
                buffer[...] = plgpu.layout_cast(jnp.zeros((padded,), x.dtype), layout)
            plgpu.commit_smem()
        for chunk in chunks:
            plgpu.copy_gmem_to_smem(w_g.at[chunk], w_s.at[chunk], weighed)
        after_predecessor(interpret)
        for chunk in chunks:
            plgpu.copy_gmem_to_smem(x_g.at[row, chunk], x_s.at[chunk], arrived)
            if y is not None:
                plgpu.copy_gmem_to_smem(y_g.at[row, chunk], y_s.at[chunk], arrived)
        plgpu.barrier_wait(arrived)
        wide = load(x_s).astype(jnp.float32)
        if y is not None:
            summed = (wide + load(y_s).astype(jnp.float32)).astype(x.dtype)
            x_s[...] = summed
            wide = summed.astype(jnp.float32)
        scale = lax.rsqrt(jnp.sum(wide * wide) / width + eps)
        plgpu.barrier_wait(weighed)
        y_s[...] = ((wide * scale).astype(x.dtype).astype(jnp.float32) * load(w_s).astype(jnp.float32)).astype(x.dtype)
        plgpu.commit_smem()
        for chunk in chunks:
            plgpu.copy_smem_to_gmem(x_s.at[chunk], sum_g.at[row, chunk])
            plgpu.copy_smem_to_gmem(y_s.at[chunk], out_g.at[row, chunk])
        plgpu.wait_smem_to_gmem(0, wait_read_only=True)

    buffer = plgpu.SMEM((padded,), x.dtype)
    out = shape(rows, width, dtype=x.dtype)
    kernel = plgpu.kernel(
        body, kernel_name="add_norm", out_type=(out, out), grid=(rows,), grid_names=("row",),
        interpret=interpret, scratch_types=[
            buffer, buffer, buffer, plgpu.Barrier(num_arrivals=len(chunks) * (1 + (y is not None))),
            plgpu.Barrier(num_arrivals=len(chunks))])
    if y is not None:
        return kernel(x, y, weight)
    return x, kernel(x, weight)[1]
