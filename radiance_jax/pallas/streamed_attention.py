"""The split walk of `verify_attention` as a stream: one warpgroup loads, one or two multiply.

The first form waits at every split for its work, its queries and its keys, and at every block for its own softmax. Here the
loading warpgroup runs ahead over the splits of a thread block without a pause, bounded only by shared memory, and two
*lanes* share a split: lane i takes the blocks whose absolute number is i modulo the lanes, so that one multiplies while the
other exponentiates. Each lane walks its blocks in ascending order with its own maximum and sum; lane 1 then takes over lane
0's from shared memory, always in this order, and stores the rows that are live. What a lane does to a row depends
on absolute positions alone, and a lane without a visible block is neutral to the last bit (factors exactly 0 and 1).

Barriers: whoever waits on a barrier waits on each of its phases, and every arrival is awaited (the loader drains at the end
what it did not have to wait for). The loader is never ahead of what it owes: data of a split is issued in the order in which
lanes need it, and lanes wait for each other only behind the blocks of the same split or the one before.
"""

import math
from functools import reduce
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from radiance_jax.pallas.mosaic import ROWS, after_predecessor, shape, tiled
from radiance_jax.pallas.paged_attention import MASKED, Segments
from radiance_jax.pallas.splits import BLOCK, ITEM, SplitShape, pages_of, work_list

QUERIES = 2  # tiles of queries on their way
HEIGHTS = (8, 16, 32, 64)  # flat rows of a tile that are stored
PAGES = 8  # page numbers read at once, about
LARGEST = 128  # size of a head: beyond it, sums do not fit registers, nor buffers shared memory
LOADER, LANE = 56, 224  # registers a thread where three warpgroups share the file: 56 + 2 * 224 <= 512


def streamed_partials(q: jax.Array, cache: jax.Array, tables: jax.Array, segments: Segments, share: int, how: SplitShape,
                      interpret: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
    """q [C + 1, G, 64, H], cache [P, 2G, page, H] to unnormalised sums f32 [splits, C, G, 64, H], the softmax's sums and
    maxima [splits, C, G, 64]. Flat rows behind a segment's last stay unwritten in the sums."""
    _, groups, _, size = q.shape
    lanes, depth, page, dtype = how.lanes, how.stages // how.lanes, cache.shape[2], q.dtype
    if lanes not in (1, 2) or depth < 1:
        raise ValueError(f"the streamed form takes 1 or 2 lanes and a stage for each at least; got {lanes} and {how.stages} stages")
    if size > LARGEST:
        raise ValueError(f"the streamed form takes heads of at most {LARGEST}, or its buffers do not fit; got {size}")
    count, per_block, per_split = segments.slot.shape[0], BLOCK // page, how.blocks
    ahead = max(min(PAGES // per_block, per_split), 1)
    work, number = work_list(segments, how)
    pages = pages_of(work, tables, how, page)
    items = work.shape[0] * groups
    walkers = max(min(how.walkers, items), 1)
    base = 1.0 if how.cap is None else how.cap
    scale, limit = size**-0.5 / base, base * math.log2(math.e)  # of scores before the cap, and of what the exponent takes

    def body(q_g, cache_g, pages_g, work_g, number_g, o_g, l_g, m_g, q_s, k_s, v_s, p_s, o_s, stat_s, q_full, q_empty, k_full,
             k_empty, v_full, v_empty, *between):
        walker, lane = lax.axis_index("walker"), lax.axis_index("lane")
        after_predecessor(interpret)

        def place(turn):
            flat = jnp.minimum(turn * walkers + walker, items - 1)
            at = lax.div(flat, jnp.int32(groups))
            return at, flat - at * groups

        def item(turn):
            at, group = place(turn)
            return group, *(work_g[at, i] for i in range(len(ITEM)))

        def numbers(turn, i):
            """The pages of blocks `i * ahead` and on of an item."""
            at, blocks = place(turn)[0], [jnp.minimum(i * ahead + j, per_split - 1) for j in range(ahead)]
            return [[pages_g[at, block * per_block + k] for k in range(per_block)] for block in blocks]

        def order(turn):
            group, segment, _, _, _, _, begin, blocks = item(turn)
            return group, segment, begin, blocks, numbers(turn, jnp.int32(0))

        def begin_with(read):
            """What `read` gives for the first turn, and the number of turns. It is made to depend on all of that (which is never
            negative), or the compiler would read the rest one latency later."""
            first = read(jnp.int32(0))
            together = reduce(jnp.minimum, jax.tree.leaves(first), jnp.int32(0)) + number_g[0]
            return first, lax.div(together * groups - walker + (walkers - 1), jnp.int32(walkers))

        @pl.when(lane == lanes)
        def _():
            if lanes > 1:
                plgpu.set_max_registers(LOADER, action="decrease")
            first, turns = begin_with(order)

            def fetch(index, part, these, buffer, full):
                for k, at in enumerate(these):
                    plgpu.copy_gmem_to_smem(cache_g.at[at, part], buffer.at[index, pl.ds(k * page, page)], full.at[index])

            def stream(turn, carry):
                sent, (group, segment, begin, blocks, these) = carry
                half = lax.rem(turn, QUERIES)

                @pl.when(turn >= QUERIES)
                def _():
                    plgpu.barrier_wait(q_empty.at[half])

                plgpu.copy_gmem_to_smem(q_g.at[segment, group], q_s.at[half], q_full.at[half])

                def some(i, carry):
                    sent, these = carry
                    for j in range(ahead):
                        block = i * ahead + j
                        live = block < blocks
                        own = lax.rem(begin + block, jnp.int32(lanes))
                        so_far = sent[0] if lanes == 1 else jnp.where(own == 0, sent[0], sent[1])
                        index = own * depth + lax.rem(so_far, depth)

                        @pl.when(live)
                        def _(j=j, index=index, so_far=so_far, these=these):
                            for buffer, full, empty, part in (
                                    (k_s, k_full, k_empty, group), (v_s, v_full, v_empty, groups + group)):
                                @pl.when(so_far >= depth)
                                def _(empty=empty):
                                    plgpu.barrier_wait(empty.at[index])

                                fetch(index, part, these[j], buffer, full)

                        sent = tuple(n + jnp.where(live & (own == i), 1, 0) for i, n in enumerate(sent))
                    return sent, numbers(turn, i + 1) if per_split > ahead else these

                sent, _ = lax.fori_loop(0, pl.cdiv(blocks, ahead), some, (sent, these))
                return sent, order(turn + 1)  # read when everything of this turn is on its way

            sent, _ = lax.fori_loop(jnp.int32(0), turns, stream, ((jnp.int32(0),) * lanes, first))
            for i, n in enumerate(sent):
                def drain(j, _, i=i):
                    for empty in (k_empty, v_empty):
                        plgpu.barrier_wait(empty.at[i * depth + lax.rem(j, depth)])
                    return ()

                lax.fori_loop(jnp.maximum(n - depth, 0), n, drain, ())

            def drain_queries(turn, _):
                plgpu.barrier_wait(q_empty.at[lax.rem(turn, QUERIES)])
                return ()

            lax.fori_loop(jnp.maximum(turns - QUERIES, 0), turns, drain_queries, ())

        @pl.when(lane < lanes)
        def _():
            if lanes > 1:
                plgpu.set_max_registers(LANE, action="increase")
            first, turns = begin_with(item)
            of = lax.div(lax.broadcasted_iota(jnp.int32, (ROWS, BLOCK), 0), jnp.int32(share))
            column = lax.broadcasted_iota(jnp.int32, (ROWS, BLOCK), 1)
            rows = lambda x, wide: lax.broadcast_in_dim(x, (ROWS, wide), [0])  # noqa: E731

            def attend(turn, carry):
                taken, (group, segment, split, _, position, last, begin, blocks) = carry
                following = item(turn + 1)
                lowest = begin + lax.rem(lane - lax.rem(begin, jnp.int32(lanes)) + lanes, jnp.int32(lanes))
                mine = lax.div(jnp.maximum(begin + blocks - lowest, 0) + (lanes - 1), jnp.int32(lanes))
                half = lax.rem(turn, QUERIES)
                plgpu.barrier_wait(q_full.at[half])

                def walk(i, carry):
                    out, best, total = carry
                    index = lane * depth + lax.rem(taken + i, depth)
                    start = (lowest + i * lanes) * BLOCK
                    plgpu.barrier_wait(k_full.at[index])

                    def scores(accumulator):
                        plgpu.wgmma(accumulator, q_s.at[half], k_s.at[index].T)
                        return accumulator[...]

                    score = pl.run_scoped(scores, plgpu.ACC((ROWS, BLOCK), jnp.float32))
                    plgpu.barrier_arrive(k_empty.at[index])
                    if how.cap is None:
                        score = score * (scale * limit)
                    else:
                        score = jnp.tanh(score * scale) * limit
                    own = of + (position - start)
                    seen = column <= own
                    if how.window is not None:
                        seen = seen & (column > own - how.window)
                    score = jnp.where(seen, score, MASKED)
                    top = jnp.maximum(best, score.max(axis=1))
                    keep = jnp.exp2(best - top)
                    # A row that has seen nothing yet subtracts less than its masked scores, so that their weights are 0 too.
                    weight = jnp.exp2(score - rows(jnp.maximum(top, MASKED / 2), BLOCK))
                    total = total * keep + weight.sum(axis=1)
                    p_s[lane] = weight.astype(dtype)
                    plgpu.barrier_wait(v_full.at[index])

                    @pl.when(start + BLOCK > last + 1)  # what lies behind the last row is another step's: no NaN may leak
                    def _():
                        v = v_s[index]
                        inside = lax.broadcasted_iota(jnp.int32, (BLOCK, size), 0) + start <= last
                        v_s[index] = jnp.where(inside, v, jnp.zeros_like(v))

                    plgpu.commit_smem()

                    def mix(accumulator):
                        plgpu.wgmma(accumulator, p_s.at[lane], v_s.at[index])
                        return accumulator[...]

                    mixed = pl.run_scoped(mix, plgpu.ACC((ROWS, size), jnp.float32))
                    plgpu.barrier_arrive(v_empty.at[index])
                    return out * rows(keep, size) + mixed, top, total

                full = lambda value, *dims: jnp.full(dims, value, jnp.float32)  # noqa: E731
                out, best, total = lax.fori_loop(0, mine, walk, (full(0.0, ROWS, size), full(MASKED, ROWS), full(0.0, ROWS)))
                plgpu.barrier_arrive(q_empty.at[half])

                def store(out, best, total):
                    o_s[...] = out
                    plgpu.commit_smem()
                    live = (last - position + 1) * share
                    for low, high in zip((0, *HEIGHTS), HEIGHTS, strict=False):
                        @pl.when((live > low) & (live <= high))
                        def _(high=high):
                            plgpu.copy_smem_to_gmem(o_s.at[pl.ds(0, high)], o_g.at[split, segment, group, pl.ds(0, high)])

                    for ref, value in ((l_g, total), (m_g, best)):
                        ref.at[split, segment, group][...] = value
                    plgpu.wait_smem_to_gmem(0, wait_read_only=True)

                if lanes == 1:
                    store(out, best, total)
                    return taken + mine, following
                handed, returned = between

                @pl.when(lane == 0)
                def _():
                    @pl.when(turn > 0)
                    def _():
                        plgpu.barrier_wait(returned)

                    o_s[...] = out
                    stat_s[0] = best
                    stat_s[1] = total
                    plgpu.barrier_arrive(handed)

                @pl.when(lane == 1)
                def _():
                    plgpu.barrier_wait(handed)
                    other = stat_s[0]
                    top = jnp.maximum(other, best)
                    theirs, ours = jnp.exp2(other - top), jnp.exp2(best - top)
                    store(o_s[...] * rows(theirs, size) + out * rows(ours, size), top, stat_s[1] * theirs + total * ours)
                    plgpu.barrier_arrive(returned)

                return taken + mine, following

            lax.fori_loop(jnp.int32(0), turns, attend, (jnp.int32(0), first))
            if lanes > 1:
                @pl.when((lane == 0) & (turns > 0))
                def _():
                    plgpu.barrier_wait(between[1])

            @pl.when(lane == lanes - 1)
            def _():
                plgpu.wait_smem_to_gmem(0, wait_read_only=True)

    parts, f32 = (how.most, count, groups), jnp.float32
    tile = lambda number, height, columns, dtype: plgpu.SMEM(  # noqa: E731
        (number, height, columns), dtype, transforms=tiled(columns, dtype))
    block, ring = tile(lanes * depth, BLOCK, size, dtype), {"num_barriers": lanes * depth}
    kernel = plgpu.kernel(
        body, kernel_name="attention", grid=(walkers,), grid_names=("walker",), num_threads=lanes + 1, thread_name="lane",
        interpret=interpret, compiler_params=plgpu.CompilerParams(approx_math=how.cap is None),  # tanh.approx has 11 bits
        out_type=(shape(*parts, ROWS, size, dtype=f32), shape(*parts, ROWS, dtype=f32), shape(*parts, ROWS, dtype=f32)),
        scratch_types=[tile(QUERIES, ROWS, size, dtype), block, block, tile(lanes, ROWS, BLOCK, dtype),
                       plgpu.SMEM((ROWS, size), f32, transforms=tiled(size, f32)), plgpu.SMEM((2, ROWS), f32),
                       plgpu.Barrier(num_barriers=QUERIES), plgpu.Barrier(num_arrivals=lanes, num_barriers=QUERIES),
                       plgpu.Barrier(num_arrivals=per_block, **ring), plgpu.Barrier(**ring),
                       plgpu.Barrier(num_arrivals=per_block, **ring), plgpu.Barrier(**ring),
                       *([plgpu.Barrier(), plgpu.Barrier()] if lanes > 1 else ())])
    return kernel(q, cache, pages, work, number)
