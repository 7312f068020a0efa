"""The contract of a neural drafter: what a family of networks brings, and what the engine gives it.

A drafter is a frozen, hashable description (`Drafter`) whose methods are pure functions on pytrees. They are traced into
the step programs, under `shard_map` over the mesh axis "tp": each rank sees its own slice of parameters and cache, as
`ArraySpec` cuts them, and calls the collectives of `Surroundings`. Nothing a drafter returns can change an
answer (acceptance by agreement, `verify.py`); what it gets wrong costs speed only, and is felt nowhere else.

Positions are absolute, from 0. A sequence that has committed tokens 0..s has the *anchor* at position s: the last token,
drawn but not yet run through the target. Draft k (from 0) stands for position s + 1 + k.

    prefill or verify step:  taps of the rows whose tokens are committed  -> observe -> the drafter's cache
    start of the next step:  cache, anchor                                -> propose -> drafts to verify

A family is found by the registry of `models/draft/`, from the config.json in the container.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from radiance_jax.models.partition import Partition


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """What a drafter may ask of its caller. `reduce(x)`: sum over ranks, the same bits on each. `gather(x)`: the shards
    of the last axis put together in rank order. `rank()`: the (traced) index of this rank of `tp`. `branches`: whether
    a program may hold branches and loops (a CPU's should, which compiles each body once; on a GPU each costs a trip to
    the host): a walk over drafts is `lax.scan(..., unroll=not around.branches)`. `attend`: how blocks attend where it is not
    each slot to a ring of its own, as in training, where many blocks share a context; arguments as in
    `models/draft/attention.py`."""

    tp: int
    reduce: Callable[[jax.Array], jax.Array]
    gather: Callable[[jax.Array], jax.Array]
    rank: Callable[[], Any]
    branches: bool = True
    attend: Callable[..., jax.Array] | None = None


@dataclass(frozen=True, kw_only=True)
class Shared:
    """The target's ends, for a drafter that has none of its own.

    `embed(ids [...]) -> [..., Dt]`: raw embedding rows, whole on every rank, in the serving dtype. `head(x [..., Dt]) ->
    f32 [..., V'/tp]`: this rank's logits of states that the drafter has normed itself; padded entries are -inf.
    V' = `Partition.vocab_size`; the ids of a rank begin at rank * V'/tp.
    """

    embed: Callable[[jax.Array], jax.Array]
    head: Callable[[jax.Array], jax.Array]


@dataclass(frozen=True, kw_only=True)
class Noise:
    """The target's own noise where each draft would stand, so that a drafter that knows the law agrees with the draw.

    `temperature` f32 [S]. `gumbel(k, ids) -> f32 [S, C]`: the noise of draft k (from 0) for token ids [S, C] or [C].
    The target draws argmax(logits / temperature + noise) above temperature 0, and the likeliest token at 0.
    """

    temperature: jax.Array
    gumbel: Callable[[Any, jax.Array], jax.Array]


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class Proposal:
    """Drafts of S slots: `tokens` int32 [S, N], of which the first `count` int32 [S] are proposed (0: nothing).

    `confidence` f32 [S, N] or None: the drafter's own probability that draft k is accepted given that those before it
    are. `law` or None: token ids int32 [S, N, C] and their probabilities f32 [S, N, C], from which the draft was taken.
    `parents` int32 [S, N] or None: the draft each one follows, -1 the anchor; None is a chain.
    """

    tokens: Any
    count: Any
    confidence: Any = None
    law: Any = None
    parents: Any = None


class Drafter(Protocol):
    """Attributes and methods of one drafter. Hashable: it is a static part of the step program.

    name: what the start-up log calls it, e.g. "DFlash2".
    taps: what it reads of the target: i is the residual stream after decoder layer i (from 0, before any final norm),
      -1 the embedding's output. In the order in which `observe` gets them.
    block: N, the most drafts of one proposal. depth: how many to verify by default, at most N.
    window: positions its attention reaches back, the current one included; None: all of them.
    """

    @property
    def name(self) -> str: ...
    @property
    def taps(self) -> tuple[int, ...]: ...
    @property
    def block(self) -> int: ...
    @property
    def depth(self) -> int: ...
    @property
    def window(self) -> int | None: ...

    def param_specs(self, cut: Partition, dtype: Any) -> Any:
        """The parameter tree with an `ArraySpec` at each leaf. `cut` is the target's: `cut.tp` ranks, `cut.vocab_size`
        the padded vocabulary; the drafter's own heads are cut its own way."""

    def fuse(self, read: Callable[[str], np.ndarray], cut: Partition, path: tuple) -> np.ndarray:
        """The (global) values of the parameter at `path` of that tree, e.g. ("layers", 3, "qkv"), from the tensors of
        the container; names come without the `draft.` prefix."""

    def cache_specs(self, cut: Partition, slots: int, length: int, dtype: Any) -> Any:
        """The cache tree with an `ArraySpec` at each leaf, slots on the first axis. Keys and values of a layer are a ring
        [S, W, 2, G, H] in which position p lies at p mod W, W = `ring(self, length)`."""

    def observe(self, params: Any, cache: Any, taps: jax.Array, slot: jax.Array, position: jax.Array, keep: jax.Array,
                around: Surroundings) -> Any:
        """Writes the context rows of committed tokens; returns the cache.

        taps [R, T, Dt]; slot, position int32 [R]; keep bool [R]: rows without it must leave no trace. Of the rows kept
        in one call no two share a place in a ring. The engine sees to it that before `propose` is called with an anchor
        at s, each of the positions max(0, s - W)..s - 1 of that slot was kept once *for the sequence that sits there now*.
        """

    def propose(self, params: Any, shared: Shared, cache: Any, anchor: jax.Array, position: jax.Array, live: jax.Array,
                noise: Noise, around: Surroundings) -> Proposal:
        """Drafts to follow `anchor` int32 [S] at `position` int32 [S], for the slots with `live` bool [S].

        Of the cache only positions 0 <= p < position may be read (and within the window): whatever else lies in a
        ring belonged to another sequence. Slots that are not live may have any content; their count must be 0.
        Called with all slots at once, or with some of them: S is the caller's, and the cache's rows are those of S.
        """


def ring(drafter: Drafter, length: int) -> int:
    """W: positions a slot's cache holds, for contexts of up to `length` tokens."""
    return min(drafter.window or length, length)


def draw(scores: jax.Array, ids: jax.Array, k: Any, noise: Noise, around: Surroundings, split: bool = False) -> jax.Array:
    """The drafter's own draw for draft k: int32 [S] token ids.

    scores f32 [S, C] of token ids [S, C] or [C]: the likeliest at temperature 0, else that of the largest
    scores / temperature + noise. Ties go to the first. With `split` the candidates are split over ranks, in rank order.
    """
    hot = noise.temperature > 0

    def warm(scores: jax.Array) -> jax.Array:
        scaled = scores / jnp.where(hot, noise.temperature, 1.0)[:, None]
        return jnp.where(hot[:, None], scaled + noise.gumbel(k, ids), scores)

    scores = lax.cond(hot.any(), warm, lambda scores: scores, scores) if around.branches else warm(scores)
    best = jnp.argmax(scores, axis=-1)[:, None]
    token = jnp.take_along_axis(jnp.broadcast_to(ids, scores.shape), best, axis=-1).astype(jnp.int32)
    if split and around.tp > 1:
        tops = around.gather(jnp.take_along_axis(scores, best, axis=-1))
        token = jnp.take_along_axis(around.gather(token), jnp.argmax(tops, axis=-1)[:, None], axis=-1)
    return token[:, 0]
