"""Prompt lookup on the device, over the token history that lives there (see `lookup.py` for the rule)."""

import jax
import jax.numpy as jnp


def propose(tokens: jax.Array, length: jax.Array, *, longest: int, shortest: int, window: int) -> tuple[jax.Array, jax.Array]:
    """tokens int32 [S, T] of which `length` [S] are committed, to drafts [S, window] and their number [S].

    Every position at once: `run[j]` counts how many tokens ending at j agree with as many ending at the last one.
    The best match is the largest (min(run, longest), j); what follows it is the proposal. Drafts behind the committed
    text are not proposed, so a run of period p proposes at most p tokens.
    """
    slots, capacity = tokens.shape
    at = jnp.arange(capacity, dtype=jnp.int32)[None]
    agrees = (at < length[:, None] - 1)
    run = jnp.zeros((slots, capacity), jnp.int32)
    for back in range(longest):
        last = jnp.take_along_axis(tokens, jnp.maximum(length - 1 - back, 0)[:, None], axis=1)
        shifted = jnp.pad(tokens, ((0, 0), (back, 0)))[:, :capacity]
        agrees = agrees & (shifted == last) & (at >= back)
        run = run + agrees
    score = jnp.where(run >= shortest, run * capacity + at, -1)
    best = jnp.argmax(score, axis=1).astype(jnp.int32)
    found = jnp.take_along_axis(score, best[:, None], axis=1)[:, 0] >= 0
    count = jnp.where(found, jnp.clip(length - 1 - best, 0, window), 0)
    index = jnp.minimum(best[:, None] + 1 + jnp.arange(window, dtype=jnp.int32), capacity - 1)
    return jnp.take_along_axis(tokens, index, axis=1), count
