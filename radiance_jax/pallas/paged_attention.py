"""Paged attention over the rows of a step: chunks, decode rows and chains of drafts alike.

The rows of one sequence that stand together in a step are cut into *segments* of at most `height` consecutive
rows. A segment walks the sequence's keys and values in fixed blocks of absolute position, from block 0, with the
online softmax of Milakov & Gimelshein (2018, arXiv 1805.02867) in f32. A block beyond a row's position is fully
masked for it and neutral to the last bit (maximum unchanged, correction exactly 1, zero added), so that a row's
bits do not depend on the segment it stands in, on its mates, or on where its pages lie.

This is the `jnp` form: the CPU path, and the oracle of the GPU kernels.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

MASKED = -1e30  # finite, so that a fully masked block gives exp(0) = 1 and never NaN


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Segments:
    """int32 [n] each: the slot, first row, first position and number of rows of every segment; `count` are live."""

    slot: Any
    row: Any
    position: Any
    rows: Any
    count: Any


@dataclass(frozen=True, kw_only=True)
class AttentionShape:
    """Static choices. `height` rows a segment, `block_pages` pages a key/value block; `loop` walks the segments
    one by one under a traced count (one program for any batch), otherwise all are taken at once."""

    height: int
    block_pages: int = 1
    loop: bool = True


def make_segments(start: jax.Array, count: jax.Array, position: jax.Array, height: int, capacity: int) -> Segments:
    """Cuts each slot's rows [start, start + count), at positions from `position`, into segments.

    In:  start [0, 3], count [3, 5], position [7, 0], height 4
    Out: slot [0, 1, 1], row [0, 3, 7], position [7, 0, 4], rows [3, 4, 1], count 3
    """
    each = -(-count // height)
    ends = jnp.cumsum(each)
    index = jnp.arange(capacity, dtype=jnp.int32)
    slot = jnp.minimum(jnp.searchsorted(ends, index, side="right", method="compare_all").astype(jnp.int32), count.shape[0] - 1)
    first = (index - (ends - each)[slot]) * height
    rows = jnp.where(index < ends[-1], jnp.clip(count[slot] - first, 0, height), 0)
    return Segments(slot, start[slot] + first, position[slot] + first, rows, ends[-1])


def _attend(q: jax.Array, cache: jax.Array, tables: jax.Array, position: jax.Array, rows: jax.Array,
            block_pages: int) -> jax.Array:
    """q [n, T, N, H] of n segments, cache [P, 2, G, page, H], tables [n, M] to [n, T, N, H]."""
    n, height, heads, size = q.shape
    _, _, groups, page, _ = cache.shape
    block = block_pages * page
    share = heads // groups
    query = jnp.swapaxes(q.reshape(n, height, groups, share, size), 1, 2).reshape(n, groups, height * share, size)
    query = (query.astype(jnp.float32) * size**-0.5).astype(q.dtype)
    row_position = (position[:, None] + jnp.repeat(jnp.arange(height), share))[:, None, :, None]
    last = position + rows - 1  # keys behind it are another step's leftovers: masked, so that no NaN can leak
    blocks = jnp.max(jnp.where(rows > 0, last // block + 1, 0))

    def walk(b, carry):
        best, total, out = carry
        if n == 1 and block_pages == 1:
            kv = lax.dynamic_index_in_dim(cache, tables[0, b], 0, keepdims=True)[:, None]
        else:
            pages = lax.dynamic_slice_in_dim(tables, b * block_pages, block_pages, axis=1)
            kv = cache[pages]
        kv = jnp.moveaxis(kv, 1, 3).reshape(n, 2, groups, block, size)
        at = b * block + jnp.arange(block)
        if block == 1:  # a product by one vector, whose bits depend on a row's place: XLA gets a masked key beside it
            kv, at = jnp.pad(kv, ((0, 0), (0, 0), (0, 0), (0, 1), (0, 0))), jnp.append(at, jnp.iinfo(jnp.int32).max)
        k, v = kv[:, 0], jnp.where(at[None, None, :, None] <= last[:, None, None, None], kv[:, 1], 0)
        score = jnp.einsum("sgxh,sgjh->sgxj", query, k, preferred_element_type=jnp.float32)
        score = jnp.where(at[None, None, None] <= row_position, score, MASKED)
        top = jnp.maximum(best, score.max(-1))
        keep, weight = jnp.exp(best - top), jnp.exp(score - top[..., None])
        mixed = jnp.einsum("sgxj,sgjh->sgxh", weight.astype(v.dtype), v, preferred_element_type=jnp.float32)
        return top, total * keep + weight.sum(-1), out * keep[..., None] + mixed

    shape = (n, groups, height * share)
    start = (jnp.full(shape, MASKED, jnp.float32), jnp.zeros(shape, jnp.float32), jnp.zeros((*shape, size), jnp.float32))
    _, total, out = lax.fori_loop(0, blocks, walk, start)
    out = (out / jnp.maximum(total, 1e-30)[..., None]).astype(q.dtype)
    return jnp.swapaxes(out.reshape(n, groups, height, share, size), 1, 2).reshape(n, height, heads, size)


def paged_attention(q: jax.Array, cache: jax.Array, tables: jax.Array, segments: Segments,
                    shape: AttentionShape) -> jax.Array:
    """Causal attention of q [R, N, H] over cache [P, 2, G, page, H] through page tables [S, M].

    The keys and values of the rows themselves must be in the cache already. Rows of no live segment come back
    as zeros or as leftovers; nothing may read them.
    """
    total_rows = q.shape[0]
    height = shape.height
    tables = jnp.pad(tables, ((0, 0), (0, -tables.shape[1] % shape.block_pages)))  # whole blocks, or slices would clamp
    padded = jnp.pad(q, ((0, height), (0, 0), (0, 0)))  # so that a slice at the last row stays in range
    if not shape.loop:
        index = segments.row[:, None] + jnp.arange(height)
        live = jnp.arange(height) < segments.rows[:, None]
        out = _attend(padded[jnp.where(live, index, total_rows)], cache, tables[segments.slot], segments.position,
                      segments.rows, shape.block_pages)
        return jnp.zeros_like(q).at[jnp.where(live, index, total_rows)].set(out, mode="drop")

    def one(i, out):
        slot, row = segments.slot[i], segments.row[i]
        tile = lax.dynamic_slice_in_dim(padded, row, height)[None]
        done = _attend(tile, cache, tables[slot][None], segments.position[i][None], segments.rows[i][None], shape.block_pages)
        # Rows behind the segment's own get leftovers here; the segments that own them come later and overwrite.
        return lax.dynamic_update_slice_in_dim(out, done[0], row, axis=0)

    return lax.fori_loop(0, segments.count, one, jnp.zeros_like(padded))[:total_rows]
