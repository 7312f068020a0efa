"""Prompt lookup on the device, over the token history that lives there (see `lookup.py` for the rule)."""

import jax
import jax.numpy as jnp

from radiance_jax.spec.evidence import EDGES


def propose(tokens: jax.Array, length: jax.Array, *, longest: int, shortest: int, window: int) -> tuple[jax.Array, jax.Array]:
    """Drafts [S, window] and their number [S]: `look` without the evidence."""
    return look(tokens, length, longest=longest, shortest=shortest, window=window)[:2]


def look(tokens: jax.Array, length: jax.Array, *, longest: int, shortest: int,
         window: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """tokens int32 [S, T] of which `length` [S] are committed, to drafts [S, window], their number [S], and their
    agreement [S]: how many tokens before them equal those before the anchor's end, counted up to the last of `EDGES`.

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
    return jnp.take_along_axis(tokens, index, axis=1), count, _agreement(tokens, best, length - 1)


def _agreement(tokens: jax.Array, end: jax.Array, last: jax.Array) -> jax.Array:
    """Tokens up to place `end` [S] that equal those up to `last` [S]."""
    back = jnp.arange(EDGES[-1], dtype=jnp.int32)[None]
    here, there = (at[:, None] - back for at in (end, last))
    same = jnp.take_along_axis(tokens, jnp.maximum(here, 0), axis=1) == jnp.take_along_axis(tokens, jnp.maximum(there, 0), axis=1)
    return jnp.cumprod((same & (here >= 0)).astype(jnp.int32), axis=1).sum(1)
