"""What the tests of the GPU kernels share. Kernels run in JAX's interpreter for Mosaic GPU kernels: about a second each."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas import mosaic_gpu as plgpu

INTERPRET = plgpu.InterpretGPUParams()


def random(rng: np.random.Generator, *shape: int, scale: float = 1.0, middle: float = 0.0) -> jax.Array:
    """bf16 normal numbers."""
    return jnp.asarray(rng.standard_normal(shape) * scale + middle, jnp.bfloat16)


def wide(x: jax.Array) -> np.ndarray:
    return np.asarray(x.astype(jnp.float32)).astype(np.float64)


def same_bits(a: jax.Array, b: jax.Array) -> bool:
    return np.asarray(a).tobytes() == np.asarray(b).tobytes()
