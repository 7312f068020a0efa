"""What the Mosaic GPU kernels share: shared-memory layouts, launch order, and the switch to the interpreter.

Kernels are launched with *programmatic dependent launch*: a kernel may start while the one before it drains. What it
does before `after_predecessor` must touch nothing that a kernel of the same step writes (weights and tables are safe); what
comes behind sees everything that kernels before it wrote. Every kernel calls both, so that the order is a chain.
"""

from typing import Any

import jax
import numpy as np
from jax.experimental.pallas import mosaic_gpu as plgpu
from jax.experimental.pallas import tpu as _tpu  # noqa: F401  imported late it would make a jit trace twice

ROWS = 64  # rows of a wgmma tile


def tiled(columns: int, dtype: Any) -> tuple:
    """Transforms of a shared-memory tile [rows, columns] that TMA writes and wgmma reads: 8-row tiles, the widest swizzle; none
    where rows are no multiple of 32 bytes."""
    size = np.dtype(dtype).itemsize
    swizzle = plgpu.find_swizzle(columns * size * 8)
    if swizzle < 32:
        return ()
    return plgpu.TilingTransform((8, swizzle // size)), plgpu.SwizzleTransform(swizzle)


def after_predecessor(interpret: Any) -> None:
    """Lets the next kernel start as soon as there is room for it, and waits until the one before has finished."""
    if interpret is None:  # the interpreter runs kernels one by one
        plgpu.griddepcontrol_launch_dependents()
        plgpu.griddepcontrol_wait()


def shape(*dims: int, dtype: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(dims, dtype)
