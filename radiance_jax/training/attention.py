"""Attention of many draft blocks over the contexts they share, with the arguments of `models/draft/attention.py`.

There each slot has a ring of its own. Here a context is the keys and values of a whole sequence, place = position, and each
of its blocks sees those before its anchor. One softmax over both, in f32.
"""

from typing import Any

import jax
import jax.numpy as jnp

from radiance_jax.models.draft.attention import NEVER


def attend_shared(q: jax.Array, k: jax.Array, v: jax.Array, context: jax.Array, position: jax.Array, window: int | None,
                  causal: bool, traced: Any = None) -> jax.Array:
    """q [B * A, S, N, H], k and v [B * A, S, G, H]: A blocks of each of B sequences, one after the other, the first rows at
    `position` [B * A]; context [B, T, 2, G, H]. Returns [B * A, S, N, H]."""
    blocks, size, heads, width = q.shape
    sequences, length, _, groups, _ = context.shape
    each = blocks // sequences
    q = q.reshape(sequences, each, size, groups, heads // groups, width)
    k, v = (x.reshape(sequences, each, size, groups, width) for x in (k, v))
    scale = width ** -0.5
    far = jnp.einsum("baigmh,btgh->bgmait", q, context[:, :, 0], preferred_element_type=jnp.float32) * scale
    near = jnp.einsum("baigmh,bajgh->bgmaij", q, k, preferred_element_type=jnp.float32) * scale

    first = position.reshape(sequences, each, 1, 1)
    row, place = jnp.arange(size)[:, None], jnp.arange(length)
    sees = jnp.broadcast_to(place < first, (sequences, each, size, length))
    distance = row - jnp.arange(size)  # query minus key
    near_sees = distance >= 0 if causal else distance > -size
    if window is not None:
        sees &= first + row - place < window
        near_sees &= jnp.abs(distance) < window
    far = jnp.where(sees[:, None, None], far, NEVER)
    near = jnp.where(near_sees, near, NEVER)

    top = jax.lax.stop_gradient(jnp.maximum(far.max(-1), near.max(-1)))[..., None]
    far, near = jnp.exp(far - top), jnp.exp(near - top)
    total = far.sum(-1) + near.sum(-1)  # [B, G, M, A, S]
    out = jnp.einsum("bgmait,btgh->bgmaih", far.astype(v.dtype), context[:, :, 1], preferred_element_type=jnp.float32)
    out += jnp.einsum("bgmaij,bajgh->bgmaih", near.astype(v.dtype), v, preferred_element_type=jnp.float32)
    out = jnp.transpose(out / total[..., None], (0, 3, 4, 1, 2, 5))
    return out.reshape(blocks, size, heads, width).astype(v.dtype)
