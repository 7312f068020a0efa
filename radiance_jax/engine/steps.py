"""The device programs: a step, and an admission. All of the engine's `jax.jit` is here.

A step is one flat list of rows. Its layout is made *on the device*: each sequence brings a prefill chunk, or its anchor
and as many drafts as lookup found, so that a sequence without a proposal costs one row and the host need not know.

    plan -> page tables -> proposals -> rows -> forward -> draws at the rows that need one -> acceptance -> history
                                                                      -> context rows of what is committed, for a drafter

Here it is one program; where rows go through GPU kernels it is cut behind the forward pass (`two_part.py`), from the same parts.
"""

from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, PartitionSpec

from radiance_jax import collectives
from radiance_jax.engine import drafting as drafting_
from radiance_jax.engine import sampling
from radiance_jax.engine.drafting import Drafting
from radiance_jax.engine.hooks import NO_HOOKS, Hooks
from radiance_jax.engine.state import DECODE, PREFILL, Capacity, State, state_specs, unpack_admission
from radiance_jax.mesh import TENSOR_AXIS, ArraySpec, abstract, partitions, replicated
from radiance_jax.models import llama
from radiance_jax.models.config import ModelConfig
from radiance_jax.models.partition import Partition
from radiance_jax.models.rows import Rows, Tiles
from radiance_jax.pallas.paged_attention import AttentionShape, make_segments, paged_attention
from radiance_jax.spec import confidence, evidence, lookup_device
from radiance_jax.spec.drafter import Proposal
from radiance_jax.spec.verify import accept
from radiance_jax.wire import EXACT, Wire


@dataclass(frozen=True, kw_only=True)
class StepShape:
    """Static choices of one step program. `tiles` are the heights in which rows go through the layers, as `Tiles` wants
    them; None: all `rows` at once (faster where many rows cost what one costs, but a row's bits then depend on `rows`)."""

    rows: int
    tiles: tuple[tuple[int, int], ...] | None
    head_tile: int
    segment: int
    block_pages: int
    ngram_longest: int
    ngram_shortest: int
    lookup: int  # drafts that prompt lookup may propose, at most K; 0: none
    drafting: Drafting | None = None
    p_min: float = 0.0  # where a drafter's proposal is cut: at the first draft it trusts less
    wire: Wire = EXACT


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Layout:
    """The rows of a step. Per slot: first row, number of rows, first position. Per row: slot and liveness."""

    start: jax.Array
    count: jax.Array
    position: jax.Array
    slot: jax.Array
    live: jax.Array
    total: jax.Array


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Turn:
    """What a step's draws need to know of its rows. Per slot: mode, chunk, drafts [S, K], their number and who made them. Per row:
    position, and whether it needs a draw."""

    mode: Any
    chunk: Any
    drafts: Any
    drafted: Any
    kind: Any
    layout: Layout
    position: Any
    needs: Any


def _layout(count: jax.Array, position: jax.Array, rows: int) -> Layout:
    ends = jnp.cumsum(count)
    index = jnp.arange(rows, dtype=jnp.int32)
    slot = jnp.minimum(jnp.searchsorted(ends, index, side="right", method="compare_all").astype(jnp.int32), count.shape[0] - 1)
    return Layout(ends - count, count, position, slot, index < ends[-1], ends[-1])


def _look(state: State, depth: jax.Array, capacity: Capacity, shape: StepShape):
    """Prompt lookup's drafts [S, K], their number [S], and the most that may be verified on evidence like theirs [S]."""
    drafts, count, agreement = lookup_device.look(state.tokens, state.length, longest=shape.ngram_longest,
                                                  shortest=shape.ngram_shortest, window=shape.lookup)
    most = evidence.at(depth, evidence.level(agreement))
    return jnp.pad(drafts, ((0, 0), (0, capacity.depth - shape.lookup))), count, most


def trusted(made: Proposal, p_min: float) -> Proposal:
    """The proposal, cut at the first draft that the drafter trusts less than `p_min`."""
    return replace(made, count=confidence.cut(made.count, made.confidence, p_min))


def _propose(params, draft, state: State, mode: jax.Array, depth: jax.Array, capacity: Capacity, shape: StepShape,
             hooks: Hooks, knobs):
    """Drafts [S, K], their number [S] and who made them [S], never past the length limit; written behind the history as
    well. `depth` [S] holds the most drafts for each level of evidence, packed. A copy whose level allows drafts is verified;
    elsewhere the drafter proposes, as deep as the level `NEURAL` allows. `draft`: the drafter's parameters and cache, or what it
    proposed for all slots in a program of its own."""
    slots = capacity.slots
    if capacity.depth == 0:
        return state, jnp.zeros((slots, 0), jnp.int32), jnp.zeros(slots, jnp.int32), jnp.zeros(slots, jnp.int32)
    left = jnp.where(mode == DECODE, jnp.maximum(state.limit - state.length - 1, 0), 0)
    drafts, count = jnp.zeros((slots, capacity.depth), jnp.int32), jnp.zeros(slots, jnp.int32)
    most = count
    if shape.lookup:
        drafts, count, most = _look(state, depth, capacity, shape)
    neural = None
    if shape.drafting is not None:
        own, count = evidence.at(depth, evidence.NEURAL), jnp.minimum(count, most)
        most = jnp.where(count > 0, most, own)
        wants = (count == 0) & (jnp.minimum(own, left) > 0)
        neural = (replace(draft, count=jnp.where(wants, draft.count, 0)) if isinstance(draft, Proposal) else
                  trusted(drafting_.propose(shape.drafting, *draft, params, state, wants), shape.p_min))
    drafts, count, kind = drafting_.combine(neural, (drafts, count))
    if hooks.propose is not None:
        drafts, count = hooks.propose(state, knobs, drafts, count)
    count = jnp.clip(count, 0, jnp.minimum(most, left))
    slot = jnp.arange(slots)[:, None]
    behind = jnp.arange(capacity.depth)[None]
    column = jnp.where(behind < count[:, None], state.length[:, None] + behind, state.tokens.shape[1])
    return replace(state, tokens=state.tokens.at[slot, column].set(drafts, mode="drop")), drafts, count, kind


def _observe(draft, taps, state: State, layout: Layout, position: jax.Array, shape: StepShape):
    """The drafter's cache with the rows of this step that are committed, `state` being the one behind the step: the row of
    a draft that was not kept lies at `computed` or past it."""
    if shape.drafting is None:
        return ()
    keep = layout.live & (position < state.computed[layout.slot])
    return drafting_.observe(shape.drafting, *draft, taps, layout.slot, position, keep, state.computed, layout.total)


def _draw_rows(params, config: ModelConfig, state: State, layout: Layout, position: jax.Array, needs: jax.Array,
               x: jax.Array, tiles: Tiles, capacity: Capacity, shape: StepShape):
    """Draws at the rows that need one, and raw logprobs. Returns drawn [R], logprob [R], top ids and logprobs [R, 20].

    A prompt row's logprob is that of the prompt's own next token, any other row's that of the token drawn there.
    """
    rows, wanted = x.shape[0], rows_wanted(needs)
    if tiles.rows is not None:  # one height is enough here: the pipeline is long to compile, and most rows need no draw
        tiles = Tiles(((shape.head_tile, 1),), needs.sum())

    def body(tile, carry):
        index = tiles.take(wanted, tile)
        at = jnp.minimum(index, rows - 1)
        local = llama.head(params, x[at], config)
        parts = draw_at(config, state, capacity, layout.slot[at], position[at], index < rows, local, sampling.BY_NEED)
        return tuple(into.at[index].set(part, mode="drop") for into, part in zip(carry, parts, strict=True))

    start = (jnp.zeros(rows, jnp.int32), jnp.zeros(rows, jnp.float32), jnp.zeros((rows, capacity.tops), jnp.int32),
             jnp.zeros((rows, capacity.tops), jnp.float32))
    return tiles.walk(body, start)


def rows_wanted(needs: jax.Array) -> jax.Array:
    """In:  needs [True, False, True]    Out: [0, 2, 3]: the rows that need a draw, then one beyond the last."""
    return jnp.nonzero(needs, size=needs.shape[0], fill_value=needs.shape[0])[0].astype(jnp.int32)


def draw_at(config: ModelConfig, state: State, capacity: Capacity, slot: jax.Array, where: jax.Array, live: jax.Array,
            local: jax.Array, how: sampling.Branches):
    """Draws at rows [R'] of these slots and positions, from this rank's f32 logits [R', V'/tp]. Returns drawn [R'], logprob
    [R'], top ids and logprobs [R', 20]."""
    vocab = state.bias.shape[1]
    raw = jnp.where(jnp.arange(vocab) < config.vocab_size, collectives.all_gather_last(local, TENSOR_AXIS), sampling.NEVER)
    draw = jax.tree.map(lambda field: field[slot], state.draw)
    output_index = where + 1 - state.prompt[slot]
    behind = state.length[slot][:, None] + jnp.arange(capacity.depth)[None]
    ancestors = jnp.where(behind <= where[:, None], state.tokens[slot[:, None], behind], -1)
    logits = how.adjusts(
        draw.adjusts.any(),
        lambda l: sampling.adjust(l, draw, state.counts, state.seen, state.bias, slot, output_index, ancestors),
        lambda l: l, raw)
    drawn = sampling.sample(logits, draw, output_index, how)
    following = state.tokens[slot, where + 1]
    label = jnp.where(where + 1 < state.prompt[slot], following, drawn)
    normaliser, logprob = sampling.raw_logprobs(raw, label)

    def best(raw):
        values, ids = how.top_k(raw, capacity.tops)
        return ids.astype(jnp.int32), values - normaliser[:, None]

    def none(raw):
        shape = (raw.shape[0], capacity.tops)
        return jnp.zeros(shape, jnp.int32), jnp.zeros(shape, jnp.float32)

    return (drawn, logprob, *how.tops((state.wants_top[slot] & live).any(), best, none, raw))


def lay_out(capacity: Capacity, shape: StepShape, hooks: Hooks, params, draft, state: State, plan: jax.Array,
            knobs: Any) -> tuple[State, Turn, Rows]:
    """The plan int32 [S + U, 3] to the rows of the step: page tables are updated and drafts proposed on the way. `draft`: as of
    `_propose`."""
    slots, page_size = capacity.slots, capacity.page_size
    mode, chunk, depth = plan[:slots, 0], plan[:slots, 1], plan[:slots, 2]
    update = plan[slots:]
    to = jnp.where(update[:, 0] >= 0, update[:, 0], slots)
    state = replace(state, table=state.table.at[to, update[:, 1]].set(update[:, 2], mode="drop"))
    mode = jnp.where(state.done, 0, mode)

    state, drafts, drafted, kind = _propose(params, draft, state, mode, depth, capacity, shape, hooks, knobs)
    count = jnp.where(mode == DECODE, 1 + drafted, jnp.where(mode == PREFILL, chunk, 0))
    layout = _layout(count, state.computed, shape.rows)
    position = layout.position[layout.slot] + jnp.arange(shape.rows, dtype=jnp.int32) - layout.start[layout.slot]
    position = jnp.where(layout.live, position, 0)
    page = jnp.where(layout.live, state.table[layout.slot, position // page_size], 0)
    rows = Rows(jnp.where(layout.live, state.tokens[layout.slot, position], 0), position, page, position % page_size)
    last_row = position == state.length[layout.slot] - 1
    needs = layout.live & ((mode == DECODE)[layout.slot] | last_row | state.wants_prompt[layout.slot])
    return state, Turn(mode, chunk, drafts, drafted, kind, layout, position, needs), rows


def _forward(config: ModelConfig, cut: Partition, capacity: Capacity, shape: StepShape, params, caches, state: State, turn: Turn,
             rows: Rows):
    """The rows through all layers in XLA's own products."""
    slots, layout = capacity.slots, turn.layout
    if shape.tiles is None:
        tiles, capacity_segments = Tiles(((shape.rows, 1),)), min(slots, shape.rows) + shape.rows // shape.segment
    else:
        tiles, capacity_segments = Tiles(shape.tiles, layout.total), slots + shape.rows // shape.segment
    segments = make_segments(layout.start, layout.count, layout.position, shape.segment, capacity_segments)
    attention = AttentionShape(height=shape.segment, block_pages=shape.block_pages, loop=shape.tiles is not None)
    around = llama.Surroundings(
        tiles=tiles, attend=lambda q, cache: paged_attention(q, cache, state.table, segments, attention),
        reduce=lambda x: collectives.all_reduce(x, TENSOR_AXIS), rank=lambda: lax.axis_index(TENSOR_AXIS),
        reduce_add=lambda x, residual, bias=None: collectives.all_reduce_add(x, residual, TENSOR_AXIS, shape.wire, bias))
    x, caches, taps = llama.forward(params, config, cut, rows, caches, around,
                                    shape.drafting.drafter.taps if shape.drafting else ())
    return x, caches, taps, tiles


def commit(capacity: Capacity, state: State, turn: Turn, drawn: jax.Array, logprob: jax.Array) -> tuple[State, jax.Array]:
    """Draws and raw logprobs by row [R] to the state behind the step, and what the host reads of it."""
    slots, mode, chunk, drafts, drafted, layout = capacity.slots, turn.mode, turn.chunk, turn.drafts, turn.drafted, turn.layout
    finishes = (mode == PREFILL) & (state.computed + chunk >= state.length)
    draws = (mode == DECODE) | finishes
    first = jnp.where(finishes, layout.start + chunk - 1, layout.start)
    run = jnp.arange(capacity.depth + 1, dtype=jnp.int32)[None]
    chain = drawn[jnp.minimum(first[:, None] + run, drawn.shape[0] - 1)]
    verdict = accept(chain, drafts, drafted, draws, state.draw.stops, state.length, state.limit)
    slot = jnp.arange(slots)[:, None]
    kept = run < verdict.emitted[:, None]
    length = state.length + verdict.emitted
    state = replace(
        state,
        tokens=state.tokens.at[slot, jnp.where(kept, state.length[:, None] + run, state.tokens.shape[1])].set(chain, mode="drop"),
        counts=state.counts.at[slot, jnp.where(kept, chain, state.counts.shape[1])].add(1, mode="drop"),
        length=length,
        computed=jnp.where(draws, length - 1, state.computed + jnp.where(mode == PREFILL, chunk, 0)),
        done=state.done | (verdict.ended > 0))
    per_slot = jnp.stack([first, verdict.emitted, verdict.ended, drafted, verdict.accepted, length, turn.kind], axis=1)
    return state, jnp.concatenate([per_slot.reshape(-1), drawn, lax.bitcast_convert_type(logprob, jnp.int32)])


def _step(config: ModelConfig, cut: Partition, capacity: Capacity, shape: StepShape, hooks: Hooks, params, caches, state: State,
          plan, knobs, draft):
    state, turn, rows = lay_out(capacity, shape, hooks, params, draft, state, plan, knobs)
    x, caches, taps, tiles = _forward(config, cut, capacity, shape, params, caches, state, turn, rows)
    drawn, logprob, *top = _draw_rows(params, config, state, turn.layout, turn.position, turn.needs, x, tiles, capacity, shape)
    state, packed = commit(capacity, state, turn, drawn, logprob)
    return caches, state, packed, tuple(top), _observe(draft, taps, state, turn.layout, turn.position, shape)


def _admit(capacity: Capacity, state: State, packed) -> State:
    f = unpack_admission(capacity, packed)
    slot = f["slot"]
    at = jnp.arange(capacity.length)
    vocab = state.counts.shape[1]
    in_prompt, in_output = at < f["prompt"], (at >= f["prompt"]) & (at < f["length"])
    tokens = jnp.where(at < f["length"], f["tokens"], 0)
    seen = jnp.zeros(vocab, bool).at[jnp.where(in_prompt, tokens, vocab)].set(True, mode="drop")
    counts = jnp.zeros(vocab, jnp.int32).at[jnp.where(in_output, tokens, vocab)].add(1, mode="drop")
    ids = jnp.where(f["bias_ids"] >= 0, f["bias_ids"], vocab)
    bias = jnp.zeros(vocab, jnp.float32).at[ids].add(f["bias_values"], mode="drop")
    seed = lax.bitcast_convert_type(jnp.stack([f["seed_low"], f["seed_high"]]), jnp.uint32)
    draw = replace(
        state.draw, seed=state.draw.seed.at[slot].set(seed), stops=state.draw.stops.at[slot].set(f["stops"]),
        adjusts=state.draw.adjusts.at[slot].set(f["adjusts"] != 0),
        **{name: getattr(state.draw, name).at[slot].set(f[name]) for name in
           ("temperature", "top_k", "top_p", "min_p", "presence", "frequency", "repetition", "min_tokens", "choice")})
    flags = {name: getattr(state, name).at[slot].set(f[name] != 0) for name in ("wants_top", "wants_prompt")}
    counters = {name: getattr(state, name).at[slot].set(f[name]) for name in ("length", "computed", "prompt", "limit")}
    return replace(
        state, tokens=state.tokens.at[slot, : capacity.length].set(tokens), done=state.done.at[slot].set(False),
        table=state.table.at[slot].set(f["table"]), counts=state.counts.at[slot].set(counts), seen=state.seen.at[slot].set(seen),
        bias=state.bias.at[slot].set(bias), draw=draw, **flags, **counters)


@dataclass(frozen=True)
class Programs:
    """Compiled programs, and nothing that could compile: a call with other shapes raises.

    `steps` by row count, ascending; `admit`. Both donate what they return anew. A step takes parameters, caches,
    state, plan, knobs, and of the drafter parameters and cache (`()` each where there is none); it returns caches, state,
    results, top ids and logprobs, and the drafter's cache. Where `draws` has programs, by rows, draws and kind, a step is two
    programs: that of `steps` is its forward pass only (`two_part.py`), and a drafter has `drafts` of its own (`draft_programs.py`).
    `returned`: by rows, specs of what such a forward pass returns besides caches and state, and takes back the next time.
    """

    steps: dict[int, Any]
    admit: Any
    draws: dict[tuple[int, int, str], Any] = field(default_factory=dict)
    drafts: Any = None
    returned: dict[int, Any] = field(default_factory=dict)

    @property
    def groups(self) -> tuple[tuple[Any, ...], ...]:
        """The programs of each part of a step, one of which runs."""
        drafts = () if self.drafts is None else ((self.drafts.propose,), tuple(self.drafts.observe.values()))
        return tuple(self.steps.values()), tuple(self.draws.values()), *drafts


def lower_step(config: ModelConfig, cut: Partition, capacity: Capacity, shape: StepShape, mesh: Mesh, params, caches,
               hooks: Hooks = NO_HOOKS):
    """Lowers one step program for arrays described by `ArraySpec` trees."""
    state = state_specs(capacity, cut.vocab_size)
    draft: tuple[Any, Any] = ((), ())
    if shape.drafting is not None:
        drafter, dtype = shape.drafting.drafter, params["embed"].dtype
        draft = (drafter.param_specs(cut, dtype), drafter.cache_specs(cut, capacity.slots, capacity.length, dtype))
    whole = PartitionSpec()

    def step(params, caches, state, plan, knobs, draft_params, draft_cache):
        draft = (draft_params, draft_cache) if shape.drafting is not None else ()
        with hooks.tracing(knobs):
            return _step(config, cut, capacity, shape, hooks, params, caches, state, plan, knobs, draft)

    run = jax.shard_map(
        step, mesh=mesh, in_specs=(partitions(params), partitions(caches), partitions(state), whole, whole,
                                   *map(partitions, draft)),
        out_specs=(partitions(caches), partitions(state), whole, (whole, whole), partitions(draft[1])), check_vma=False)
    plan = ArraySpec((capacity.slots + capacity.updates, 3), jnp.dtype(jnp.int32), (None, None))
    knobs = jax.tree.map(lambda x: replicated(x.shape, x.dtype).abstract(mesh), hooks.knobs)
    return jax.jit(run, donate_argnums=(1, 2, 6)).lower(
        *(abstract(tree, mesh) for tree in (params, caches, state)), plan.abstract(mesh), knobs,
        *(abstract(tree, mesh) for tree in draft))


def lower_admission(capacity: Capacity, padded_vocab: int, mesh: Mesh, size: int):
    specs = state_specs(capacity, padded_vocab)
    state = abstract(specs, mesh)
    packed = ArraySpec((size,), jnp.dtype(jnp.int32), (None,)).abstract(mesh)
    out = jax.tree.map(lambda s: s.sharding, state)
    return jax.jit(lambda state, packed: _admit(capacity, state, packed), donate_argnums=0, out_shardings=out).lower(state, packed)
