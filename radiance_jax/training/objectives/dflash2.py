"""DFlash2: DFlash's loss, and the cross-entropy of the choice among candidates behind the true token before (PyPI `dflash`,
NVIDIA ModelOpt).

    loss = DFlash + weight * mean_k CE over the K candidates of slot k of logit_k[b] + <P[a] * W y_k, Q[b]>

A label that is no candidate takes the last one's place. All slots count alike in the second part.
"""

from dataclasses import dataclass
from typing import Self

import jax
import jax.numpy as jnp

from radiance_jax.models.layers import product
from radiance_jax.training.config import TrainConfig
from radiance_jax.training.objectives.base import Objective, Part, Terms, cross_entropy, mean


@dataclass(frozen=True, kw_only=True)
class DFlash2Loss(Objective):
    weight: float

    @classmethod
    def of(cls, config: TrainConfig) -> Self:
        return cls(gamma=config.gamma, weight=config.candidate_weight)

    def terms(self, part: Part) -> Terms:
        logits, labels = part.logits(), part.labels
        ce, _ = cross_entropy(logits, labels)
        found = jax.lax.top_k(jax.lax.stop_gradient(logits), part.drafter.candidates)[1]
        missing = ~(found == labels[:, None]).any(-1)
        chosen = found.at[:, -1].set(jnp.where(missing, labels, found[:, -1]))
        z = product(part.states, part.params["selector"])
        given = part.row("predecessors", part.before).astype(jnp.float32) * z  # [R, r]

        def scores(tokens: jax.Array) -> jax.Array:
            pairs = jnp.einsum("nr,nkr->nk", given, part.row("successors", tokens).astype(jnp.float32))
            return jnp.take_along_axis(logits, tokens, axis=-1) + pairs

        among, _ = cross_entropy(scores(chosen), jnp.argmax(chosen == labels[:, None], axis=-1))
        best = jnp.argmax(jax.lax.stop_gradient(scores(found)), axis=-1)[:, None]
        return {"ce": ce, "among": among, "hit": jnp.take_along_axis(found, best, axis=-1)[:, 0] == labels, "missing": missing}

    def loss(self, terms: Terms, live: jax.Array, whole: jax.Array) -> tuple[jax.Array, Terms]:
        ce, among = mean(terms["ce"], self.decay(live), self.decay(whole)), mean(terms["among"], live, whole)
        return ce + self.weight * among, {"ce": ce, "candidates": among, "missing": mean(terms["missing"], live, whole)}
