"""DFlash: cross-entropy of every slot with the target's own text, slots further on counting less (arXiv 2602.06036); and
D-PACE, which weighs them by how likely they are to be reached (arXiv 2605.18810).

    DFlash:  sum_k w_k CE_k / sum_k w_k,  w_k = exp(-k / gamma)
    D-PACE:  sum_k w_k CE_k / blocks,     w_k = sum_{m >= k} prod_{i <= m} ((1 - a) q_i(label) + a), without gradient
"""

from dataclasses import dataclass
from typing import Self

import jax
import jax.numpy as jnp

from radiance_jax.training.config import TrainConfig
from radiance_jax.training.objectives.base import Objective, Part, Terms, cross_entropy, mean


@dataclass(frozen=True, kw_only=True)
class DFlashLoss(Objective):
    def terms(self, part: Part) -> Terms:
        ce, hit = cross_entropy(part.logits(), part.labels)
        return {"ce": ce, "hit": hit}

    def loss(self, terms: Terms, live: jax.Array, whole: jax.Array) -> tuple[jax.Array, Terms]:
        loss = mean(terms["ce"], self.decay(live), self.decay(whole))
        return loss, {"ce": loss}


@dataclass(frozen=True, kw_only=True)
class DPaceLoss(DFlashLoss):
    smoothing: float

    @classmethod
    def of(cls, config: TrainConfig) -> Self:
        return cls(gamma=config.gamma, smoothing=config.smoothing)

    def loss(self, terms: Terms, live: jax.Array, whole: jax.Array) -> tuple[jax.Array, Terms]:
        weights = jax.lax.stop_gradient(self.weights(terms["ce"], live))
        blocks = jnp.maximum(whole[..., 0].sum(), 1)
        return (weights * terms["ce"]).sum() / blocks, {"ce": mean(terms["ce"], live, whole)}

    def weights(self, ce: jax.Array, live: jax.Array) -> jax.Array:
        """[B, A, N]: what a slot adds to the expected length, it and those behind it."""
        sure = jnp.where(live, (1 - self.smoothing) * jnp.exp(-ce) + self.smoothing, 1.0)
        reached = jnp.cumprod(sure, axis=-1) * live
        return jnp.flip(jnp.cumsum(jnp.flip(reached, -1), axis=-1), -1)
