"""DSpark: mostly the distance to the target's law, some cross-entropy, and a confidence that learns what will be accepted
(arXiv 2607.05147; deepseek-ai/DeepSpec).

    loss = 0.1 CE + 0.9 sum_v |q(v) - p(v)| + 1.0 BCE(confidence, 1 - sum_v |q(v) - p(v)| / 2)

each a mean weighted by exp(-k / gamma); q with the bias of the true token before, p the target's law there at temperature 1.
What the confidence is to say has no gradient.
"""

from dataclasses import dataclass
from typing import Self

import jax
import jax.numpy as jnp

from radiance_jax.training.blocks import trained_product
from radiance_jax.training.config import TrainConfig
from radiance_jax.training.objectives.base import Objective, Part, Terms, cross_entropy, mean


@dataclass(frozen=True, kw_only=True)
class DSparkLoss(Objective):
    ce_weight: float
    l1_weight: float
    confidence_weight: float

    @classmethod
    def of(cls, config: TrainConfig) -> Self:
        return cls(gamma=config.gamma, wants_target=config.l1_weight > 0 or config.confidence, ce_weight=config.ce_weight,
                   l1_weight=config.l1_weight, confidence_weight=config.confidence_weight)

    def terms(self, part: Part) -> Terms:
        e = part.row("before", part.before)
        logits = part.logits() + trained_product(self._mixed(part, e), part.masters["bias"])
        ce, hit = cross_entropy(logits, part.labels)
        terms = {"ce": ce, "hit": hit}
        if not self.wants_target:
            return terms
        law = jnp.exp(logits - jax.nn.logsumexp(logits, axis=-1, keepdims=True))  # shares the sum with the cross-entropy
        terms["l1"] = jnp.abs(law - jax.nn.softmax(part.target_logits)).sum(-1)
        if part.drafter.confident:
            score = part.drafter.confidence_score(part.params, e, part.states)
            goal = jax.lax.stop_gradient(1 - terms["l1"] / 2)
            terms["bce"] = jax.nn.softplus(score) - goal * score
            terms["off"] = jnp.abs(jax.nn.sigmoid(score) - goal)
        return terms

    def loss(self, terms: Terms, live: jax.Array, whole: jax.Array) -> tuple[jax.Array, Terms]:
        weights, all_weights = self.decay(live), self.decay(whole)
        parts = {name: mean(terms[name], weights, all_weights) for name in ("ce", "l1", "bce", "off") if name in terms}
        by = {"ce": self.ce_weight, "l1": self.l1_weight, "bce": self.confidence_weight}
        return sum(weight * parts[name] for name, weight in by.items() if name in parts), parts

    def _mixed(self, part: Part, e: jax.Array) -> jax.Array:
        """What the second table is multiplied with, [R, r]: row by row but for the kind that remembers."""
        drafter, params, y = part.drafter, part.params, part.states
        if drafter.kind != "rnn":
            return drafter.mixed(params, y[:, :0], e, y)[0]
        e, y = (x.reshape(-1, drafter.block, x.shape[-1]) for x in (e, y))
        memory, out = jnp.zeros((e.shape[0], drafter.rank), y.dtype), []
        for k in range(drafter.block):
            mixed, memory = drafter.mixed(params, memory, e[:, k], y[:, k])
            out.append(mixed)
        return jnp.stack(out, axis=1).reshape(-1, drafter.rank)
