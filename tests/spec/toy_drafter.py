"""A toy drafter, whole: a linear recurrence from one tap of the target to its own head. See docs/new_drafter.md.

    h(0) = C tap(s - 1) + E embed(anchor);  draft k = draw(head(norm h(k)));  h(k + 1) = C h(k) + E embed(draft k)
"""

from dataclasses import dataclass

import jax.numpy as jnp
from jax import lax

from radiance_jax.mesh import replicated
from radiance_jax.models.draft.backbone import BlockDrafter
from radiance_jax.models.layers import linear, rms_norm
from radiance_jax.spec.drafter import Proposal, draw, ring


@dataclass(frozen=True, kw_only=True)
class Toy(BlockDrafter):
    """Taps, width, block and window come from `self.config`, which any block drafter's config.json gives."""

    name = "Toy"
    shifted = True  # as many drafts as the block has places

    def shapes(self):
        d = self.config.width
        return {"carry.weight": (d, d), "read.weight": (d, d), "norm.weight": (d,)}

    def param_specs(self, cut, dtype):
        return {name.removesuffix(".weight"): replicated(shape, dtype) for name, shape in self.shapes().items()}

    def fuse(self, read, cut, path):
        return read(f"{path[0]}.weight")

    def cache_specs(self, cut, slots, length, dtype):
        return {"tap": replicated((slots, ring(self, length), self.config.width), dtype)}

    def observe(self, params, cache, taps, slot, position, keep, around):
        slots, places, _ = cache["tap"].shape
        to = jnp.where(keep, slot, slots)  # a slot that is not there: nothing is written
        return {"tap": cache["tap"].at[to, position % places].set(taps[:, 0], mode="drop")}

    def propose(self, params, shared, cache, anchor, position, live, noise, around):
        slots, places, _ = cache["tap"].shape
        state = cache["tap"][jnp.arange(slots), (position - 1) % places]

        def one(carry, k):
            state, token = carry
            state = linear(state, params["carry"]) + linear(shared.embed(token), params["read"])
            logits = shared.head(rms_norm(state, params["norm"], 1e-6))
            ids = around.rank() * logits.shape[-1] + jnp.arange(logits.shape[-1], dtype=jnp.int32)
            token = draw(logits, ids, k, noise, around, split=True)
            return (state, token), token

        _, tokens = lax.scan(one, (state, anchor), jnp.arange(self.block), unroll=not around.branches)
        return Proposal(tokens=tokens.T, count=jnp.where(live, self.block, 0))
