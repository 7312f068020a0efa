"""A drafter beside a step in two programs: what it proposes before the step, and what it keeps of it behind.

Both are programs of their own. Proposing is the same whatever rows the step has, so that there is one program of it, sent only
when somebody's depth allows drafts; keeping depends on the rows alone, so that the many draw programs know nothing of drafters.

    propose -> forward pass -> draws -> observe
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from radiance_jax.engine import drafting as drafting_
from radiance_jax.engine.drafting import Drafting
from radiance_jax.engine.state import DECODE, Capacity, State, state_specs
from radiance_jax.engine.steps import Turn, trusted
from radiance_jax.mesh import ArraySpec, abstract, partitions, replicated
from radiance_jax.spec import evidence
from radiance_jax.spec.drafter import Proposal


@dataclass(frozen=True)
class DraftPrograms:
    """Compiled. `propose(draft params, draft cache, head params, state, plan, last)` returns a `Proposal` of tokens [S, K] and
    their number [S] in the place of the last one; `observe`, by rows, `(draft params, draft cache, taps, turn, computed)` the
    cache, which it takes over."""

    propose: Any
    observe: dict[int, Any]


def proposal_spec(capacity: Capacity) -> Proposal:
    return Proposal(tokens=replicated((capacity.slots, capacity.depth), jnp.int32), count=replicated((capacity.slots,), jnp.int32))


def anybody_drafts(capacity: Capacity, plan: np.ndarray) -> bool:
    """Whether a packed plan int32 [S + U, 3] lets some sequence verify a drafter's proposal."""
    mode, depths = plan[: capacity.slots, 0], plan[: capacity.slots, 2]
    return bool(((mode == DECODE) & (evidence.at(depths, evidence.NEURAL) > 0)).any())


def lower_propose(drafting: Drafting, capacity: Capacity, p_min: float, mesh: Mesh, head: Any, dtype: Any):
    """Lowers the proposals of all slots, from the history as the step before left it. `head`: specs of the target's parameters
    outside its layers."""
    specs = (drafting.drafter.param_specs(drafting.cut, dtype), cache_specs(drafting, capacity, dtype), head,
             state_specs(capacity, drafting.cut.vocab_size), replicated((capacity.slots + capacity.updates, 3), jnp.int32),
             proposal_spec(capacity))

    def propose(draft_params, cache, params, state: State, plan, last: Proposal) -> Proposal:
        del last
        mode = jnp.where(state.done, 0, plan[: capacity.slots, 0])
        own = evidence.at(plan[: capacity.slots, 2], evidence.NEURAL)
        wants = (mode == DECODE) & (jnp.minimum(own, state.limit - state.length - 1) > 0)
        made = trusted(drafting_.propose(drafting, draft_params, cache, params, state, wants), p_min)
        return Proposal(tokens=made.tokens, count=made.count)

    run = jax.shard_map(propose, mesh=mesh, in_specs=tuple(map(partitions, specs)), out_specs=PartitionSpec(), check_vma=False)
    return jax.jit(run, donate_argnums=5, keep_unused=True).lower(*(abstract(tree, mesh) for tree in specs))


def lower_observe(drafting: Drafting, capacity: Capacity, turn: Turn, taps: Sequence[ArraySpec], mesh: Mesh, dtype: Any):
    """Lowers the cache's update by the rows of a step, of which `turn` and the streams `taps` [R, D] are described."""
    specs = (drafting.drafter.param_specs(drafting.cut, dtype), cache_specs(drafting, capacity, dtype), tuple(taps), turn,
             replicated((capacity.slots,), jnp.int32))

    def observe(draft_params, cache, taps, turn: Turn, computed):
        layout = turn.layout
        keep = layout.live & (turn.position < computed[layout.slot])
        return drafting_.observe(drafting, draft_params, cache, taps, layout.slot, turn.position, keep, computed, layout.total)

    run = jax.shard_map(observe, mesh=mesh, in_specs=tuple(map(partitions, specs)), out_specs=partitions(specs[1]), check_vma=False)
    return jax.jit(run, donate_argnums=1).lower(*(abstract(tree, mesh) for tree in specs))


def cache_specs(drafting: Drafting, capacity: Capacity, dtype: Any) -> Any:
    return drafting.drafter.cache_specs(drafting.cut, capacity.slots, capacity.length, dtype)
