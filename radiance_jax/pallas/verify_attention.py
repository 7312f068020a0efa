"""Paged attention of chunks, decode rows and chains of drafts on a Hopper GPU: the kernel form of `paged_attention`.

A thread block takes one segment (rows of one sequence that stand together), one key head and one *split* of the context. Splits
begin at fixed positions (`splits.py`), are walked in blocks of 64 and combined in ascending order. So a row meets the same
keys in the same order whatever its segment, its mates and the pages' places; a block or split that is masked for it is neutral
to the last bit (maximum unchanged, factor exactly 1, zero added).

There are two forms: the one here, in which one warpgroup does everything, and the stream of `streamed_attention`, in which
blocks of a split are dealt to lanes. Their bits differ; within a form nothing but where splits begin, and `lanes`, changes one.

The queries of the heads that share a key head are rows of one wgmma tile: flat row j * share + i is head i of row j.
"""

import math
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from radiance_jax.pallas.mosaic import ROWS, after_predecessor, shape, tiled
from radiance_jax.pallas.paged_attention import MASKED, Segments
from radiance_jax.pallas.splits import BLOCK, ITEM, SplitShape, first_block, work_list
from radiance_jax.pallas.streamed_attention import streamed_partials

TOGETHER = 32  # heads' statistics read at once when splits are combined
THREADS = 128
COPY = 256  # elements of one TMA copy, at most


def segment_height(share: int, size: int) -> int:
    """Rows of a segment, with `share` query heads of `size` a key head. A row's sums are read in whole multiples of the
    threads, which must not reach beyond the tile."""
    padded = -(-share * size // THREADS) * THREADS
    return min(ROWS // share, (ROWS * size - padded) // (share * size) + 1)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Places:
    """Where rows stand in segments: int32 [R] each, the segment (C, one beyond the last, for rows of none) and the place in
    it. `segments` is C."""

    segment: Any
    index: Any
    segments: int = field(metadata={"static": True})


def make_places(segments: Segments, rows: int) -> Places:
    """In:  rows 8 of segments row [0, 3], rows [3, 4]    Out: segment [0, 0, 0, 1, 1, 1, 1, 2], index [0, 1, 2, 0, 1, 2, 3, 0]"""
    count, index = segments.slot.shape[0], jnp.arange(rows, dtype=jnp.int32)
    live = jnp.arange(count) < segments.count
    first = jnp.where(live, segments.row, jnp.int32(2**30))
    segment = jnp.maximum(jnp.searchsorted(first, index, side="right", method="compare_all").astype(jnp.int32) - 1, 0)
    inside = index - segments.row[segment]
    own = (inside < segments.rows[segment]) & live[segment]
    return Places(jnp.where(own, segment, count), jnp.where(own, inside, 0), count)


def _partials(q: jax.Array, cache: jax.Array, tables: jax.Array, segments: Segments, share: int, how: SplitShape,
              interpret: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
    """q [C + 1, G, 64, H], cache [P, 2G, page, H] to unnormalised sums f32 [splits, C, G, 64, H], the softmax's sums and
    maxima [splits, C, G, 64]."""
    _, groups, _, size = q.shape
    page = cache.shape[2]
    count, per_block, per_split = segments.slot.shape[0], BLOCK // page, how.blocks
    scale = size**-0.5 * math.log2(math.e)
    dtype, stages = q.dtype, min(how.stages, per_split)
    work, number = work_list(segments, how)
    walkers = max(min(how.walkers // groups, work.shape[0]), 1)

    def body(q_g, cache_g, tables_g, work_g, number_g, of_g, o_g, l_g, m_g, q_s, k_s, v_s, p_s, of_s, of_here, q_here, k_here,
             v_here):
        group, walker = lax.axis_index("group"), lax.axis_index("walker")
        plgpu.copy_gmem_to_smem(of_g, of_s, of_here)
        after_predecessor(interpret)
        plgpu.barrier_wait(of_here)

        def attend(turn, done):
            segment, split, slot, position, last, begin, blocks = (work_g[turn * walkers + walker, i] for i in range(len(ITEM)))

            def fetch(i, stage, buffer, here, which):
                for j in range(per_block):
                    at = tables_g[slot, (begin + i) * per_block + j]
                    plgpu.copy_gmem_to_smem(cache_g.at[at, which], buffer.at[stage, pl.ds(j * page, page)], here.at[stage])

            def fetch_keys(i, stage):
                fetch(i, stage, k_s, k_here, group)

            def fetch_values(i, stage):
                fetch(i, stage, v_s, v_here, groups + group)

            plgpu.copy_gmem_to_smem(q_g.at[segment, group], q_s, q_here)
            for stage in range(stages):
                @pl.when(stage < blocks)
                def _(stage=stage):
                    fetch_keys(stage, stage)
                    fetch_values(stage, stage)

            plgpu.barrier_wait(q_here)
            where = of_s[...] + position

            def walk(i, carry):
                out, best, total = carry
                stage = lax.rem(i, stages)
                start = (begin + i) * BLOCK
                plgpu.barrier_wait(k_here.at[stage])

                def scores(accumulator):
                    plgpu.wgmma(accumulator, q_s, k_s.at[stage].T)
                    return accumulator[...]

                score = pl.run_scoped(scores, plgpu.ACC((ROWS, BLOCK), jnp.float32)) * scale

                @pl.when(i + stages < blocks)
                def _():
                    fetch_keys(i + stages, stage)

                if how.cap is not None:
                    limit = how.cap * math.log2(math.e)
                    score = jnp.tanh(score / limit) * limit
                at = lax.broadcasted_iota(jnp.int32, (ROWS, BLOCK), 1) + start
                own = lax.broadcast_in_dim(where, (ROWS, BLOCK), [0])
                seen = at <= own
                if how.window is not None:
                    seen = seen & (at > own - how.window)
                score = jnp.where(seen, score, MASKED)
                top = jnp.maximum(best, score.max(axis=1))
                keep = jnp.exp2(best - top)
                weight = jnp.where(seen, jnp.exp2(score - lax.broadcast_in_dim(top, score.shape, [0])), 0.0)
                total = total * keep + weight.sum(axis=1)
                p_s[...] = weight.astype(dtype)
                plgpu.barrier_wait(v_here.at[stage])

                @pl.when(start + BLOCK > last + 1)  # what lies behind the last row is another step's: no NaN may leak
                def _():
                    v = v_s[stage]
                    mine = lax.broadcasted_iota(jnp.int32, (BLOCK, size), 0) + start <= last
                    v_s[stage] = jnp.where(mine, v, jnp.zeros_like(v))

                plgpu.commit_smem()

                def mix(accumulator):
                    plgpu.wgmma(accumulator, p_s, v_s.at[stage])
                    return accumulator[...]

                mixed = pl.run_scoped(mix, plgpu.ACC((ROWS, size), jnp.float32))
                out = out * lax.broadcast_in_dim(keep, out.shape, [0]) + mixed

                @pl.when(i + stages < blocks)
                def _():
                    fetch_values(i + stages, stage)

                return out, top, total

            full = lambda value, *dims: jnp.full(dims, value, jnp.float32)  # noqa: E731
            out, best, total = lax.fori_loop(0, blocks, walk, (full(0.0, ROWS, size), full(MASKED, ROWS), full(0.0, ROWS)))
            for ref, value in ((o_g, out), (l_g, total), (m_g, best)):
                ref.at[split, segment, group][...] = value
            return done + 1

        turns = lax.div(number_g[0] - walker + (walkers - 1), jnp.int32(walkers))
        lax.fori_loop(jnp.int32(0), turns, attend, jnp.int32(0))

    parts = (how.most, count, groups)
    f32 = jnp.float32
    tile, block = plgpu.SMEM((ROWS, size), dtype, transforms=tiled(size, dtype)), plgpu.SMEM(
        (stages, BLOCK, size), dtype, transforms=tiled(size, dtype))
    arrivals = plgpu.Barrier(num_arrivals=per_block, num_barriers=stages)
    kernel = plgpu.kernel(
        body, kernel_name="attention", grid=(groups, walkers), grid_names=("group", "walker"), interpret=interpret,
        out_type=(shape(*parts, ROWS, size, dtype=f32), shape(*parts, ROWS, dtype=f32), shape(*parts, ROWS, dtype=f32)),
        scratch_types=[tile, block, block, plgpu.SMEM((ROWS, BLOCK), dtype, transforms=tiled(BLOCK, dtype)),
                       plgpu.SMEM((ROWS,), jnp.int32), plgpu.Barrier(), plgpu.Barrier(), arrivals, arrivals])
    return kernel(q, cache, tables, work, number, jnp.arange(ROWS, dtype=jnp.int32) // share)


def _combine(parts: tuple[jax.Array, jax.Array, jax.Array], segments: Segments, places: Places, share: int, how: SplitShape,
             dtype: Any, interpret: Any) -> jax.Array:
    """Partial sums to attended rows [R, G * share * H]: splits in ascending order, f32."""
    sums, totals, tops = parts
    rows, (most, count, groups, _, size) = places.segment.shape[0], sums.shape
    width = share * size
    padded = -(-width // THREADS) * THREADS
    layout = plgpu.Layout.WG_STRIDED((padded,), vec_size=math.gcd(4, padded // THREADS))
    unroll = min(max(TOGETHER // share, 2), most)
    at = jnp.minimum(places.segment, count - 1)
    position = segments.position[at]
    last = position + segments.rows[at] - 1
    begin = how.number(first_block(position, how.window) * BLOCK)
    # Everything a row must know to begin, side by side: one read, not a chain of them.
    ways = jnp.stack([places.segment, places.index, begin, how.number(last) + 1], axis=1).astype(jnp.int32)

    def body(sums_g, total_g, top_g, ways_g, o_g, o_s):
        row, group = lax.axis_index("row"), lax.axis_index("group")
        after_predecessor(interpret)
        segment, own, begin, end = (ways_g[row, i] for i in range(4))

        @pl.when(segment < count)
        def _():
            head = plgpu.broadcasted_iota(jnp.int32, (padded,), 0, layout=layout) // size
            full = lambda value: plgpu.layout_cast(jnp.full((padded,), value, jnp.float32), layout)  # noqa: E731

            def by_head(values):
                spread = full(values[-1])
                for i in range(share - 1):
                    spread = jnp.where(head == i, values[i], spread)
                return spread

            def some(i, carry):
                out, best, total = carry
                for j in range(unroll):
                    split = begin + i * unroll + j
                    live = split < end
                    at = jnp.minimum(split, end - 1)
                    stats = [by_head([jnp.where(live, ref[at, segment, group, own * share + k], neutral) for k in range(share)])
                             for ref, neutral in ((top_g, MASKED), (total_g, 0.0))]
                    part = plgpu.load(sums_g.at[at, segment, group, pl.ds(own * width, padded)], layout=layout, optimized=False)
                    part = jnp.where(lax.broadcast(live, (padded,)), part, full(0.0))
                    top = jnp.maximum(best, stats[0])
                    keep, new = jnp.exp2(best - top), jnp.exp2(stats[0] - top)
                    out = out * keep + part * new
                    total = total * keep + stats[1] * new
                    best = top
                return out, best, total

            out, _, total = lax.fori_loop(0, pl.cdiv(end - begin, unroll), some, (full(0.0), full(MASKED), full(0.0)))
            if padded == width:
                o_g.at[row, pl.ds(group * width, width)][...] = (out / total).astype(dtype)
                return
            o_s[...] = (out / total).astype(dtype)
            plgpu.commit_smem()
            for start in range(0, width, COPY):
                wide = min(COPY, width - start)
                plgpu.copy_smem_to_gmem(o_s.at[pl.ds(start, wide)], o_g.at[row, pl.ds(group * width + start, wide)])
            plgpu.wait_smem_to_gmem(0, wait_read_only=True)

    kernel = plgpu.kernel(
        body, kernel_name="attention_combine", out_type=shape(rows, groups * width, dtype=dtype), grid=(rows, groups), grid_names=("row", "group"),
        interpret=interpret, scratch_types=[plgpu.SMEM((padded,), dtype)])
    flat = sums.reshape(most, count, groups, ROWS * size)
    return kernel(flat, totals, tops, ways)


def verify_attention(q: jax.Array, cache: jax.Array, tables: jax.Array, segments: Segments, places: Places, *, share: int,
                     how: SplitShape, interpret: Any = None) -> jax.Array:
    """Causal attention of the queries [C + 1, G, 64, H] of `rope_and_store` over cache [P, 2G, page, H].

    tables: int32 [S, M], M a whole number of blocks; segments of at most `segment_height` rows; `share` query heads
    a key head. Returns [R, G * share * H]; rows of no segment are left unwritten.
    """
    partials = streamed_partials if how.lanes else _partials
    parts = partials(q, cache, tables, segments, share, how, interpret)
    return _combine(parts, segments, places, share, how, q.dtype, interpret)
