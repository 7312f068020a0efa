"""The blocks of a batch: where their anchors are, what they are to predict, and the drafter's states for them.

Draft k (from 0) of a block with its anchor at p stands for position p + 1 + k. An anchor is a token of the answer with one
more behind it, as in a server, whose first anchor is the answer's first token.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from radiance_jax.models.draft.backbone import BlockDrafter
from radiance_jax.models.layers import product
from radiance_jax.spec.drafter import Shared, Surroundings
from radiance_jax.training.attention import attend_shared
from radiance_jax.training.target import Target, head_table, real_only

ALONE = Surroundings(tp=1, reduce=lambda x: x, gather=lambda x: x, rank=lambda: 0, branches=False, attend=attend_shared)


@struct.dataclass
class Batch:
    """Sequences int32 [B, T], padded behind; `answer_start` and `length` int32 [B]; `index` int32 [B], of the answers."""

    tokens: Any
    answer_start: Any
    length: Any
    index: Any


@struct.dataclass
class Blocks:
    """`position` int32 [B, A] of the anchors; `labels` and the tokens `before` them int32 [B, A, N]; `live` bool [B, A, N]:
    labels that are of an answer, an unbroken run from the first of a block on."""

    position: Any
    labels: Any
    before: Any
    live: Any


def choose_anchors(key: jax.Array, batch: Batch, count: int) -> tuple[jax.Array, jax.Array]:
    """`count` different positions of each answer at random, int32 [B, A], and whether there were that many, bool [B, A]."""
    place = jnp.arange(batch.tokens.shape[1])
    allowed = (place >= batch.answer_start[:, None]) & (place < batch.length[:, None] - 1)
    score = jnp.where(allowed, jax.random.uniform(key, batch.tokens.shape), -1.0)
    best, position = jax.lax.top_k(score, count)
    return jnp.where(best >= 0, position, 0), best >= 0


def blocks_at(batch: Batch, position: jax.Array, real: jax.Array, drafts: int) -> Blocks:
    """The blocks of N = `drafts` behind anchors [B, A]; those that are not `real` have nothing live."""
    ahead = position[..., None] + 1 + jnp.arange(drafts)
    live = real[..., None] & (ahead < batch.length[:, None, None])

    def at(where: jax.Array) -> jax.Array:
        where = jnp.minimum(where, batch.tokens.shape[1] - 1)
        return jnp.take_along_axis(batch.tokens, where.reshape(where.shape[0], -1), axis=1).reshape(where.shape)

    return Blocks(position=position, labels=at(ahead), before=at(ahead - 1), live=live)


def contexts(drafter: BlockDrafter, params: Any, taps: jax.Array) -> tuple[jax.Array, ...]:
    """Keys and values [B, T, 2, G, H] of whole sequences, one array a layer; taps [B, T, n, Dt]."""
    batch, length = taps.shape[:2]
    rows = drafter.context(params, taps.reshape(batch * length, *taps.shape[2:]), jnp.tile(jnp.arange(length), batch), ALONE)
    return tuple(jnp.stack([k, v], axis=1).reshape(batch, length, 2, *k.shape[1:]) for k, v in rows)


def block_states(drafter: BlockDrafter, params: Any, shared: Shared, taps: jax.Array, blocks: Blocks) -> jax.Array:
    """The drafter's normed states [B, A, N, D]: its own network, as a server runs it, but for who shares a context."""
    anchor, position = blocks.before[..., 0].reshape(-1), blocks.position.reshape(-1)
    states = drafter.states(params, shared, contexts(drafter, params, taps), anchor, position, ALONE)
    return states.reshape(*blocks.position.shape, *states.shape[1:])


def shared_ends(params: Any, target: Target) -> Shared:
    """The target's embedding and head, frozen; logits f32 [.., V'], padded entries -inf."""
    table = jax.lax.stop_gradient(head_table(params))

    def head(x: jax.Array) -> jax.Array:
        return real_only(frozen_product(x.reshape(-1, x.shape[-1]), table), target.config.vocab_size).reshape(*x.shape[:-1], -1)

    return Shared(embed=lambda ids: params["embed"][ids], head=head)


# Products with tables as long as the vocabulary. Their gradients come in f32, as long as the logits: they are rounded to the
# dtype of the products first, or the way back would run at a fraction of the speed.

@jax.custom_vjp
def frozen_product(x: jax.Array, table: jax.Array) -> jax.Array:
    """[R, D] x [V, D] to f32 [R, V]; no gradient to the table."""
    return product(x, table)


def _frozen_forward(x: jax.Array, table: jax.Array) -> tuple[jax.Array, jax.Array]:
    return product(x, table), table


def _frozen_backward(table: jax.Array, slope: jax.Array) -> tuple[jax.Array, None]:
    return product(slope.astype(table.dtype), table.T).astype(table.dtype), None


frozen_product.defvjp(_frozen_forward, _frozen_backward)


@jax.custom_vjp
def trained_product(x: jax.Array, table: jax.Array) -> jax.Array:
    """[R, r] x f32 [V, r], rounded to the dtype of x, to f32 [R, V]; the table's gradient is f32."""
    return product(x, table.astype(x.dtype))


def _trained_forward(x: jax.Array, table: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return trained_product(x, table), (x, table)


def _trained_backward(saved: tuple[jax.Array, jax.Array], slope: jax.Array) -> tuple[jax.Array, jax.Array]:
    x, table = saved
    slope = slope.astype(x.dtype)
    return product(slope, table.astype(x.dtype).T).astype(x.dtype), product(slope.T, x.T)


trained_product.defvjp(_trained_forward, _trained_backward)
