"""A step as two programs, for forward passes in GPU kernels: rows through all layers, then their draws.

The forward program holds no draw and no branch, so that one serves every request; the draw programs come in kinds
(`kinds.py`), chosen by the host. Neither has a loop or a branch that waits for the host, and the host waits for neither: both
are sent, and one packed array is fetched a step.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, PartitionSpec

from radiance_jax import collectives
from radiance_jax.engine.draft_programs import proposal_spec
from radiance_jax.engine.hooks import NO_HOOKS, Hooks
from radiance_jax.engine.kernels import Kernels, segments_of
from radiance_jax.engine.kinds import FULL, GREEDY, PLAIN
from radiance_jax.engine.launches import compiler_options, weight_bytes
from radiance_jax.engine.sampling import Branches, always, never, top_by_rounds
from radiance_jax.engine.state import Capacity, State, state_specs
from radiance_jax.engine.steps import Layout, StepShape, Turn, commit, draw_at, lay_out, rows_wanted
from radiance_jax.mesh import TENSOR_AXIS, ArraySpec, abstract, partitions, replicated
from radiance_jax.models import llama, llama_mosaic
from radiance_jax.models.config import ModelConfig
from radiance_jax.models.partition import Partition
from radiance_jax.models.rows import Tiles
from radiance_jax.pallas.paged_attention import make_segments
from radiance_jax.pallas.verify_attention import BLOCK, make_places
from radiance_jax.spec.drafter import Proposal

STAGES = {
    GREEDY: Branches(adjusts=never, warm=never, filters=never, tops=never),
    PLAIN: Branches(adjusts=never, warm=always, filters=never, tops=never),
    FULL: Branches(adjusts=always, warm=always, filters=always, tops=always, top_k=top_by_rounds),
}


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Drawn:
    """What the forward program hands to the draw program. `wanted` int32 [R]: the rows that need a draw, in order; `x`, `y`
    [R, D]: the rows' residual stream before the last layer's output, and that output."""

    turn: Turn
    wanted: Any
    x: Any
    y: Any


def head_params(params: Any) -> Any:
    """What of the parameters (or of their specs) the draw programs take."""
    return {name: value for name, value in params.items() if name != "layers"}


def _forward(config: ModelConfig, cut: Partition, capacity: Capacity, shape: StepShape, kernels: Kernels, hooks: Hooks, params,
             caches, state: State, plan: jax.Array, knobs: Any, proposed: Proposal | tuple[()]):
    state, turn, rows = lay_out(capacity, shape, hooks, params, proposed, state, plan, knobs)
    layout, per_block = turn.layout, BLOCK // capacity.page_size
    height, segments = segments_of(config, cut, capacity, shape.rows)
    segments = make_segments(layout.start, layout.count, layout.position, height, segments)
    tables = jnp.pad(state.table, ((0, 0), (0, -state.table.shape[1] % per_block)))  # whole blocks
    reduce = lambda x: collectives.all_reduce(x, TENSOR_AXIS)  # noqa: E731
    x = llama.embed(params, rows.token, llama.Surroundings(
        tiles=Tiles(((shape.rows, 1),)), attend=lambda q, cache: q, reduce=reduce, rank=lambda: lax.axis_index(TENSOR_AXIS),
        reduce_add=lambda x, residual, bias=None: collectives.all_reduce_add(x, residual, TENSOR_AXIS, shape.wire, bias)))
    x, y, caches, taps = llama_mosaic.forward(params, config, cut, rows, x, caches, llama_mosaic.KernelSurroundings(
        tables=tables, segments=segments, places=make_places(segments, shape.rows), how=kernels.attention(capacity),
        reduce=reduce, interpret=kernels.interpret), shape.drafting.drafter.taps if shape.drafting else ())
    return caches, state, Drawn(turn, rows_wanted(turn.needs), x, y), taps


def _draw(config: ModelConfig, capacity: Capacity, kernels: Kernels, draws: int, kind: str, params, state: State, drawn: Drawn):
    rows, turn, index = drawn.wanted.shape[0], drawn.turn, drawn.wanted[:draws]
    at = jnp.minimum(index, rows - 1)
    local = llama_mosaic.head(params, drawn.x[at], drawn.y[at], config, interpret=kernels.interpret)
    tokens, logprob, *top = draw_at(config, state, capacity, turn.layout.slot[at], turn.position[at], index < rows, local,
                                    STAGES[kind])
    spread = lambda part: jnp.zeros((rows, *part.shape[1:]), part.dtype).at[index].set(part, mode="drop")  # noqa: E731
    state, packed = commit(capacity, state, turn, spread(tokens), spread(logprob))
    return state, packed, tuple(spread(part) for part in top) if kind == FULL else ()


def lower_forward(config: ModelConfig, cut: Partition, capacity: Capacity, shape: StepShape, kernels: Kernels, mesh: Mesh, params,
                  caches, hooks: Hooks = NO_HOOKS, platforms: tuple[str, ...] | None = None):
    """Lowers the forward program of `shape.rows` rows for arrays described by `ArraySpec` trees. Caches and state are donated,
    and so is what it returned the last time, unread: it writes there again (a graph of kernels is sent in half the time where no
    address has changed). It takes what a drafter proposed (`()`: there is none) and returns its taps. `platforms`: to lower
    for others than the mesh's own."""
    state, whole = state_specs(capacity, cut.vocab_size), PartitionSpec()

    def forward(params, caches, state, plan, knobs, proposed, returned):
        del returned
        with hooks.tracing(knobs):
            return _forward(config, cut, capacity, shape, kernels, hooks, params, caches, state, plan, knobs, proposed)

    run = jax.shard_map(
        forward, mesh=mesh, in_specs=(partitions(params), partitions(caches), partitions(state), whole, whole, whole, whole),
        out_specs=(partitions(caches), partitions(state), whole, whole), check_vma=False)
    plan = replicated((capacity.slots + capacity.updates, 3), jnp.int32)
    knobs = jax.tree.map(lambda x: replicated(x.shape, x.dtype), hooks.knobs)
    proposed = proposal_spec(capacity) if shape.drafting else ()
    returned = returned_specs(config, capacity, shape, params["norm"].dtype)
    arguments = (abstract(tree, mesh) for tree in (params, caches, state, plan, knobs, proposed, returned))
    options = compiler_options(config.num_layers, weight_bytes(params, mesh.size)) if kernels.interpret is None else {}
    made = jax.jit(run, donate_argnums=(1, 2, 6), keep_unused=True, compiler_options=options)
    return made.trace(*arguments).lower(lowering_platforms=platforms)


def drawn_specs(config: ModelConfig, capacity: Capacity, rows: int, dtype: Any) -> Drawn:
    """What a forward program of `rows` rows returns."""
    slots = lambda *more: replicated((capacity.slots, *more), jnp.int32)  # noqa: E731
    row = replicated((rows,), jnp.int32)
    flag = replicated((rows,), jnp.bool_)
    stream = replicated((rows, config.width), dtype)
    layout = Layout(start=slots(), count=slots(), position=slots(), slot=row, live=flag, total=replicated((), jnp.int32))
    turn = Turn(mode=slots(), chunk=slots(), drafts=slots(capacity.depth), drafted=slots(), kind=slots(), layout=layout, position=row,
                needs=flag)
    return Drawn(turn=turn, wanted=row, x=stream, y=stream)


def tap_specs(config: ModelConfig, rows: int, dtype: Any, taps: tuple[int, ...]) -> tuple[ArraySpec, ...]:
    """The streams that a forward program of `rows` rows returns for a drafter."""
    return (replicated((rows, config.width), dtype),) * len(taps)


def returned_specs(config: ModelConfig, capacity: Capacity, shape: StepShape, dtype: Any) -> tuple[Drawn, tuple[ArraySpec, ...]]:
    """What a forward program returns besides caches and state."""
    taps = shape.drafting.drafter.taps if shape.drafting else ()
    return drawn_specs(config, capacity, shape.rows, dtype), tap_specs(config, shape.rows, dtype, taps)


def lower_draw(config: ModelConfig, cut: Partition, capacity: Capacity, kernels: Kernels, rows: int, draws: int, kind: str,
               mesh: Mesh, params, platforms: tuple[str, ...] | None = None):
    """Lowers the program of `draws` draws of a kind behind a forward program of `rows` rows. The state is donated."""
    head, state, whole = head_params(params), state_specs(capacity, cut.vocab_size), PartitionSpec()
    drawn = drawn_specs(config, capacity, rows, params["norm"].dtype)
    run = jax.shard_map(
        lambda params, state, drawn: _draw(config, capacity, kernels, draws, kind, params, state, drawn), mesh=mesh,
        in_specs=(partitions(head), partitions(state), whole),
        out_specs=(partitions(state), whole, whole), check_vma=False)
    arguments = (abstract(tree, mesh) for tree in (head, state, drawn))
    return jax.jit(run, donate_argnums=1).trace(*arguments).lower(lowering_platforms=platforms)
