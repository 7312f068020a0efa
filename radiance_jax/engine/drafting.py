"""The drafter's part of a step: `propose` before the rows are laid out, `observe` once it is known what is committed.

Both are pure functions over a drafter's description, so that a step may call them where it likes, or have them as
programs of their own. On a CPU they walk slots and rows in loops of traced length, which cost nothing in a step where
nobody drafts; elsewhere they take all slots and rows at once, without a branch.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from radiance_jax import collectives
from radiance_jax.engine.noise import gumbel_at
from radiance_jax.engine.state import LOOKUP, NEURAL, State
from radiance_jax.mesh import TENSOR_AXIS
from radiance_jax.models import llama
from radiance_jax.models.config import ModelConfig
from radiance_jax.models.partition import Partition
from radiance_jax.models.rows import Heights, Tiles
from radiance_jax.spec.drafter import Drafter, Noise, Proposal, Shared, Surroundings, ring

CPU_SLOT_TILES: Heights = ((4, 3), (1, 1))  # slots that propose together: a drafter's weights are read once per tile


@dataclass(frozen=True, kw_only=True)
class Drafting:
    """What a step program knows of its drafter: the description, the target's, and the slots and rows that go through
    it at once (`slot_tiles`, `row_tiles`; None: all)."""

    drafter: Drafter
    config: ModelConfig
    cut: Partition
    depth: int  # K, the most drafts a step verifies
    length: int  # T, the longest sequence served
    slot_tiles: Heights | None
    row_tiles: Heights | None

    @property
    def around(self) -> Surroundings:
        return Surroundings(
            tp=self.cut.tp, branches=self.slot_tiles is not None, rank=lambda: lax.axis_index(TENSOR_AXIS),
            reduce=lambda x: collectives.all_reduce(x, TENSOR_AXIS),
            gather=lambda x: collectives.all_gather_last(x, TENSOR_AXIS))


def shared_ends(params: Any, drafting: Drafting) -> Shared:
    """The target's embedding and head over its parameters."""
    config, around = drafting.config, drafting.around

    def embed(ids: jax.Array) -> jax.Array:
        return llama.embed(params, ids.reshape(-1), around).reshape(*ids.shape, config.width)

    def head(x: jax.Array) -> jax.Array:
        local = llama.logits(params, x.reshape(-1, config.width))
        ids = around.rank() * local.shape[-1] + jnp.arange(local.shape[-1])
        return jnp.where(ids < config.vocab_size, local, -jnp.inf).reshape(*x.shape[:-1], -1)

    return Shared(embed=embed, head=head)


def propose(drafting: Drafting, draft_params: Any, cache: Any, params: Any, state: State, wants: jax.Array) -> Proposal:
    """The drafter's proposals for the slots with `wants` bool [S], cut to K drafts; count 0 for the others."""
    drafter, around, shared = drafting.drafter, drafting.around, shared_ends(params, drafting)
    slots = wants.shape[0]

    def of(slot: jax.Array, live: jax.Array, cache: Any) -> Proposal:
        position = state.length[slot] - 1
        draw, prompt = jax.tree.map(lambda field: field[slot], state.draw), state.prompt[slot]
        noise = Noise(temperature=draw.temperature, gumbel=lambda k, ids: gumbel_at(
            (draw.seed[:, 0], draw.seed[:, 1]), draw.choice, position + 1 + k - prompt, ids))
        anchor = state.tokens[slot, jnp.maximum(position, 0)]
        made = drafter.propose(draft_params, shared, cache, anchor, position, live, noise, around)
        return _cut(made, drafting.depth, live)

    if drafting.slot_tiles is None:
        return of(jnp.arange(slots), wants, cache)
    order = jnp.nonzero(wants, size=slots, fill_value=slots)[0].astype(jnp.int32)
    rounded = max(height for height, _ in drafting.slot_tiles)
    order = jnp.concatenate([order, jnp.full(rounded, slots, jnp.int32)])
    tiles = Tiles(drafting.slot_tiles, wants.sum())

    def body(tile, into: Proposal) -> Proposal:
        index = tiles.take(order, tile)
        slot = jnp.minimum(index, slots - 1)
        part = of(slot, index < slots, jax.tree.map(lambda leaf: leaf[slot], cache))
        return jax.tree.map(lambda whole, some: whole.at[index].set(some, mode="drop"), into, part)

    like = jax.eval_shape(of, jax.ShapeDtypeStruct((slots,), jnp.int32), wants, cache)
    return tiles.walk(body, jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), like))


def _cut(made: Proposal, depth: int, live: jax.Array) -> Proposal:
    """At most K drafts; what is narrower than K is padded, never proposed."""
    def fit(leaf: jax.Array) -> jax.Array:
        wide = jnp.pad(leaf, [(0, 0), (0, max(depth - leaf.shape[1], 0))] + [(0, 0)] * (leaf.ndim - 2))
        return wide[:, :depth]

    count = jnp.where(live, jnp.clip(made.count, 0, min(depth, made.tokens.shape[1])), 0)
    per_draft = {name: jax.tree.map(fit, getattr(made, name)) for name in ("tokens", "confidence", "law", "parents")}
    return Proposal(count=count.astype(jnp.int32), **per_draft)


def observe(drafting: Drafting, draft_params: Any, cache: Any, taps: tuple[jax.Array, ...], slot: jax.Array,
            position: jax.Array, keep: jax.Array, length: jax.Array, total: jax.Array) -> Any:
    """The cache with the committed rows of a step in it. taps: [R, D] each; slot, position, keep [R]: the rows; `length` [S]:
    tokens whose taps are known after the step; `total`: live rows.

    A row that a later one of its sequence would overwrite in a ring is left out: of two writes to one place in one
    step nothing says which comes last.
    """
    drafter, around = drafting.drafter, drafting.around
    keep = keep & (position >= length[slot] - ring(drafter, drafting.length))
    streams = jnp.stack(taps, axis=1)
    tiles = Tiles(((position.shape[0], 1),)) if drafting.row_tiles is None else Tiles(drafting.row_tiles, total)

    def body(tile, cache: Any) -> Any:
        rows = (tiles.take(x, tile) for x in (streams, slot, position, keep))
        return drafter.observe(draft_params, cache, *rows, around)

    return tiles.walk(body, cache)


def combine(neural: Proposal | None, lookup: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Who is verified: drafts [S, K], their number [S], and who proposed them [S].

    The drafter's proposal where it makes one, lookup's where it does not. It is asked only where the policy would not have
    a copy verified (`steps.py`).
    """
    drafts, count = lookup
    if neural is None:
        return drafts, count, jnp.full_like(count, LOOKUP)
    own = neural.count > 0
    return (jnp.where(own[:, None], neural.tokens, drafts), jnp.where(own, neural.count, count),
            jnp.where(own, NEURAL, LOOKUP).astype(jnp.int32))
