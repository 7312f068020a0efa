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

GROUP = 64


def likeliest(logits: jax.Array, count: int) -> jax.Array:
    """Ids int32 [R, count] of the largest of logits [R, V], largest first. They are among the groups of 64 with the `count`
    largest maxima, so that nothing as long as the vocabulary is sorted."""
    rows, size = logits.shape
    if size % GROUP or size // GROUP <= count:
        return jax.lax.top_k(logits, count)[1]
    groups = logits.reshape(rows, size // GROUP, GROUP)
    best = jnp.sort(jax.lax.top_k(groups.max(-1), count)[1], axis=-1)
    ids = (best[:, :, None] * GROUP + jnp.arange(GROUP)).reshape(rows, count * GROUP)
    values = jnp.take_along_axis(groups, best[:, :, None], axis=1).reshape(rows, count * GROUP)
    return jnp.take_along_axis(ids, jax.lax.top_k(values, count)[1], axis=-1)


@dataclass(frozen=True, kw_only=True)
class DFlash2Loss(Objective):
    weight: float

    @classmethod
    def of(cls, config: TrainConfig) -> Self:
        return cls(gamma=config.gamma, weight=config.candidate_weight)

    def terms(self, part: Part) -> Terms:
        logits, labels = part.logits(), part.labels
        ce, _ = cross_entropy(logits, labels)
        found = likeliest(jax.lax.stop_gradient(logits), part.drafter.candidates)
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
