"""The interface of an objective, and what all of them use.

Logits over the vocabulary are too many to keep for a whole batch, so an objective works in two halves: `terms` turns the
logits of some blocks into a few numbers a row, one part of the batch after the other and again on the way back; `loss`
puts the numbers of all rows together.
"""

from dataclasses import dataclass
from typing import Any, Self

import jax
import jax.numpy as jnp

from radiance_jax.models.draft.backbone import BlockDrafter
from radiance_jax.spec.drafter import Shared
from radiance_jax.training.blocks import ALONE
from radiance_jax.training.config import TrainConfig

Terms = dict[str, jax.Array]
KEEP = "keep"  # name of what is not computed again on the way back


@dataclass(frozen=True, kw_only=True)
class Part:
    """Some blocks of a batch, R rows in all, N to a block: `states` [R, D], `labels` and the tokens `before` them int32 [R];
    `target_logits` f32 [R, V'] of the target for the labels, where the objective asks for them. `params` are the drafter's in
    the dtype of the products, `masters` the same in f32."""

    drafter: BlockDrafter
    params: Any
    masters: Any
    shared: Shared
    states: jax.Array
    labels: jax.Array
    before: jax.Array
    target_logits: jax.Array | None

    def logits(self) -> jax.Array:
        """f32 [R, V'] of the slots alone."""
        return self.drafter.logits(self.params, self.shared, self.states, ALONE)[0]

    def row(self, name: str, ids: jax.Array) -> jax.Array:
        """Rows of a table, rounded as they are served; the gradient is summed in f32."""
        return self.masters[name][ids].astype(self.states.dtype)


@dataclass(frozen=True, kw_only=True)
class Objective:
    gamma: float

    wants_target: bool = False

    @classmethod
    def of(cls, config: TrainConfig) -> Self:
        return cls(gamma=config.gamma)

    def terms(self, part: Part) -> Terms:
        """Numbers [R] of each row. `hit` bool: the greedy choice, given that all before it were right, is the label."""
        raise NotImplementedError

    def loss(self, terms: Terms, live: jax.Array) -> tuple[jax.Array, Terms]:
        """Terms and `live` [B, A, N] to what is minimised, and to what is logged beside it."""
        raise NotImplementedError

    def decay(self, live: jax.Array) -> jax.Array:
        """exp(-k / gamma) of draft k, from 0, where it is live."""
        return live * jnp.exp(-jnp.arange(live.shape[-1]) / self.gamma)


def cross_entropy(logits: jax.Array, labels: jax.Array) -> tuple[jax.Array, jax.Array]:
    """-log softmax at the labels, and whether they are the likeliest, [R] each."""
    right = jnp.take_along_axis(logits, labels[:, None], axis=-1)[:, 0]
    return jax.nn.logsumexp(logits, axis=-1) - right, jnp.argmax(logits, axis=-1) == labels


def mean(values: jax.Array, weights: jax.Array) -> jax.Array:
    return (values * weights).sum() / jnp.maximum(weights.sum(), 1e-9)
