"""Acceptance by agreement: a draft is kept iff it is the token the target itself draws there.

Whatever proposed it, every emitted token is the target's own draw given the tokens before it, so ids and their law
do not depend on drafting at any temperature. A step always emits at least one token: the draw where agreement ended.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Verdict:
    """int32 [S]: drafts that agreed, tokens emitted (0 for sequences that draw nothing), and whether the last one
    ends the sequence: 0 no, 1 a stop token, 2 the length limit."""

    accepted: Any
    emitted: Any
    ended: Any


def accept(drawn: jax.Array, drafts: jax.Array, count: jax.Array, draws: jax.Array, stops: jax.Array,
           length: jax.Array, limit: jax.Array) -> Verdict:
    """drawn [S, K+1] target draws at the anchor and behind each draft, drafts [S, K] of which `count` [S] are real,
    `draws` bool [S]; `stops` [S, n] token ids that end a sequence (-1: unused); `length` [S] committed tokens and
    `limit` [S] how many there may be.

    The run is cut at the first stop token and at the limit, exactly there.
    """
    depth = drafts.shape[1]
    agree = (drawn[:, :depth] == drafts) & (jnp.arange(depth) < count[:, None])
    accepted = jnp.cumprod(agree.astype(jnp.int32), axis=1).sum(1)
    emitted = jnp.where(draws, jnp.minimum(accepted + 1, limit - length), 0)
    stop = (drawn[:, :, None] == stops[:, None, :]).any(-1) & (stops >= 0).any(-1)[:, None]
    stop = stop & (jnp.arange(depth + 1) < emitted[:, None])
    first = jnp.argmax(stop, axis=1)
    stopped = stop.any(1)
    emitted = jnp.where(stopped, first + 1, emitted)
    ended = jnp.where(stopped, 1, jnp.where(draws & (length + emitted >= limit), 2, 0))
    return Verdict(accepted, emitted, ended)
