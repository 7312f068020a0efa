"""Attention of a draft block over its context's ring and over itself.

The ring of a slot holds position p at p mod W. Of a slot with its anchor at s the newest position is s - 1, so place r holds the
largest p < s with p = r (mod W), and nothing of this sequence where that is negative. The context is walked in blocks of
the ring with a running maximum, so that short contexts in long rings cost little.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

NEVER = -1e30  # finite: a row that sees nothing of a block must not make NaN
LOOP_BLOCK = 256  # places of the ring at once where the loop's length is traced
STILL_BLOCK = 4096  # and where it is not


def attend(q: jax.Array, k: jax.Array, v: jax.Array, ring: jax.Array, position: jax.Array, window: int | None, causal: bool,
           traced: bool) -> jax.Array:
    """q [S, B, N, H], k and v [S, B, G, H] of the blocks, whose first rows stand at `position` [S]; ring [S, W, 2, G, H] of
    the context. Softmax of q k / sqrt(H); returns [S, B, N, H]. `traced`: loops may have a traced length."""
    slots, rows, heads, size = q.shape
    groups, width = k.shape[2], ring.shape[1]
    q = q.reshape(slots, rows, groups, heads // groups, size)
    offset = jnp.arange(rows)
    distance = offset[:, None] - offset[None]  # query minus key
    seen = distance > -rows if not causal else distance >= 0
    if window is not None:
        seen &= jnp.abs(distance) < window
    state = _fold(None, q, k, v, seen[None])

    block = min(LOOP_BLOCK if traced else STILL_BLOCK, width)
    filled = jnp.minimum(position.max(), width)

    def step(i: Any, state: Any) -> Any:
        first = jnp.minimum(i * block, width - block)  # the last block may overlap the one before it
        part = lax.dynamic_slice_in_dim(ring, first, block, axis=1)
        place = first + jnp.arange(block)
        newest = position[:, None] - 1
        held = newest - (newest - place[None]) % width  # [S, block]
        seen = jnp.broadcast_to(((held >= 0) & (place >= i * block)[None])[:, None], (slots, rows, block))
        if window is not None:
            seen &= (position[:, None] + offset)[:, :, None] - held[:, None] < window
        return _fold(state, q, part[:, :, 0], part[:, :, 1], seen)

    if traced:
        state = lax.fori_loop(0, (filled + block - 1) // block, step, state)
    else:
        for i in range(-(-width // block)):
            state = step(i, state)
    _, total, out = state
    out = out / total[..., None]
    return jnp.moveaxis(out, 3, 1).reshape(slots, rows, heads, size).astype(v.dtype)


def _fold(state: Any, q: jax.Array, k: jax.Array, v: jax.Array, seen: jax.Array) -> Any:
    """One block of keys into the running (maximum, sum, output), f32 [S, G, M, B] and with [H]."""
    scores = jnp.einsum("sbgmh,skgh->sgmbk", q, k, preferred_element_type=jnp.float32) * q.shape[-1] ** -0.5
    seen = seen[:, None, None]
    scores = jnp.where(seen, scores, NEVER)
    top = scores.max(-1)
    if state is not None:
        top = jnp.maximum(top, state[0])
    weight = jnp.where(seen, jnp.exp(scores - top[..., None]), 0.0)
    total = weight.sum(-1)
    out = jnp.einsum("sgmbk,skgh->sgmbh", weight.astype(v.dtype), v, preferred_element_type=jnp.float32)
    if state is not None:
        keep = jnp.exp(state[0] - top)
        total, out = total + state[1] * keep, out + state[2] * keep[..., None]
    return top, total, out
