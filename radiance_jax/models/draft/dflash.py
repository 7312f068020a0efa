"""DFlash: the backbone and nothing else; every slot's token is drawn by itself (arXiv 2602.06036, PyPI `dflash`)."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from radiance_jax.models.draft.backbone import BlockDrafter, Params
from radiance_jax.spec.drafter import Noise, Proposal, Shared, Surroundings, draw


@dataclass(frozen=True, kw_only=True)
class DFlash(BlockDrafter):
    name = "DFlash"

    def propose(self, params: Params, shared: Shared, cache: Any, anchor: jax.Array, position: jax.Array, live: jax.Array,
                noise: Noise, around: Surroundings) -> Proposal:
        states = self.states(params, shared, cache, anchor, position, around)
        scores, ids = self.logits(params, shared, states, around)
        one = jax.vmap(lambda scores, k: draw(scores, ids, k, noise, around, split=True), in_axes=(1, 0), out_axes=1)
        return Proposal(tokens=one(scores, jnp.arange(self.block)), count=jnp.where(live, self.block, 0))
