"""The interface of an objective, and what all of them use.

Logits over the vocabulary are too many to keep for a whole batch, so a batch is taken part by part, each with its own way
back. `terms` turns the logits of a part's blocks into a few numbers a row, and `loss` gives the part's share of the whole
loss: shares add up to it.
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

    def loss(self, terms: Terms, live: jax.Array, whole: jax.Array) -> tuple[jax.Array, Terms]:
        """Terms and `live` [B, C, N] of a part to its share of what is minimised, and of what is logged beside it; `whole`
        [B, A, N]: what is live in the batch."""
        raise NotImplementedError

    def decay(self, live: jax.Array) -> jax.Array:
        """exp(-k / gamma) of draft k, from 0, where it is live."""
        return live * jnp.exp(-jnp.arange(live.shape[-1]) / self.gamma)


def cross_entropy(logits: jax.Array, labels: jax.Array) -> tuple[jax.Array, jax.Array]:
    """-log softmax at the labels, and whether they are the likeliest, [R] each.

    The label's logit is a masked sum, not a lookup: on a GPU the way back of a lookup writes a whole array of zeros first.
    """
    right = jnp.where(jnp.arange(logits.shape[-1]) == labels[:, None], logits, 0).sum(-1)
    return jax.nn.logsumexp(logits, axis=-1) - right, right >= logits.max(-1)


def mean(values: jax.Array, weights: jax.Array, whole: jax.Array) -> jax.Array:
    """A part's share of the mean of `values` by `weights`, which for the batch are `whole`."""
    return (values * weights).sum() / jnp.maximum(whole.sum(), 1e-9)
