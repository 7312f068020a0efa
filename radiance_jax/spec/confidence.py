"""Cutting a drafter's proposal where it does not trust itself (`--draft-p-min`). On the device, pure."""

import jax
import jax.numpy as jnp


def cut(count: jax.Array, confidence: jax.Array | None, floor: float) -> jax.Array:
    """Drafts to keep of each slot, int32 [S]: those before the first whose confidence is below `floor`.

    count int32 [S] of confidence f32 [S, N] are real (None: the drafter tells no confidence; nothing is cut). A confidence
    that is no number is none. Cutting before verification changes no answer (`verify.py`).

    In:  count [3], confidence [[0.9, 0.4, 0.8]], floor 0.5    Out: [1]
    """
    if confidence is None or floor <= 0:
        return count
    trusted = jnp.cumprod((confidence >= floor).astype(jnp.int32), axis=1).sum(1)
    return jnp.minimum(count, trusted.astype(count.dtype))
