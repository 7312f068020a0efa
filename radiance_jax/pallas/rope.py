"""Query/key norm, rotary embedding, and the way of keys and values into the cache: one kernel, one row a thread block.

The fused projection's row holds N query heads, G key heads and G value heads of H. Queries go where the attention kernel
looks for them, in the tile of their segment and key head; keys (normed, turned) and values go to page and offset of the row,
in place.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from radiance_jax.pallas.mosaic import ROWS, after_predecessor, shape
from radiance_jax.pallas.verify_attention import Places


def oracle(qkv: jax.Array, cos: jax.Array, sin: jax.Array, page: jax.Array, offset: jax.Array, cache: jax.Array,
           norms: tuple[jax.Array, jax.Array] | None, eps: float, heads: int) -> tuple[jax.Array, jax.Array]:
    """What `rope_and_store` computes, in jnp; but the queries come back by row, [R, G, N/G, H]."""
    rows, groups, size = qkv.shape[0], cache.shape[1] // 2, cache.shape[3]
    y = qkv.reshape(rows, heads + 2 * groups, size)
    turning = y[:, :heads + groups].astype(jnp.float32)
    if norms is not None:
        scale = lax.rsqrt(jnp.mean(turning * turning, -1, keepdims=True) + eps)
        weight = jnp.concatenate([jnp.tile(norms[0], (heads, 1)), jnp.tile(norms[1], (groups, 1))]).astype(jnp.float32)
        turning = ((turning * scale).astype(qkv.dtype).astype(jnp.float32) * weight).astype(qkv.dtype).astype(jnp.float32)
    low, high = jnp.split(turning, 2, -1)
    c, s = cos[:, None], sin[:, None]
    turned = jnp.concatenate([low * c - high * s, high * c + low * s], -1).astype(qkv.dtype)
    cache = cache.at[page, :, offset].set(jnp.concatenate([turned[:, heads:], y[:, heads + groups:]], 1))
    share = heads // groups
    return turned[:, :heads].reshape(rows, groups, share, size), cache


def rope_and_store(qkv: jax.Array, cos: jax.Array, sin: jax.Array, page: jax.Array, offset: jax.Array, cache: Any,
                   norms: tuple[jax.Array, jax.Array] | None, eps: float, heads: int, places: Places, *,
                   interpret: Any = None) -> jax.Array:
    """qkv [R, (N + 2G)H] to queries [C + 1, G, 64, H]; writes keys and values into the reference `cache` [P, 2G, page, H].

    cos, sin: f32 [R, H/2] of the rows' positions, the attention factor in them; page, offset: int32 [R]; norms: weights
    [H] of query and key, or None. Flat row j * N/G + i of a segment's tile is head i of its row j; what no row fills
    is left unwritten. N + 2G is at most 64, H a multiple of 64.
    """
    rows, groups, size = qkv.shape[0], cache.shape[1] // 2, cache.shape[3]
    share, half, total = heads // groups, size // 2, heads + 2 * groups
    if size % 64:  # a copy out of shared memory begins at a multiple of 128 bytes, whatever the head
        raise ValueError(f"the size of a head must be a multiple of 64; got {size}")
    if total > ROWS:
        raise ValueError(f"at most {ROWS} heads of queries, keys and values on one device; got {total}")
    wgmma, by_row, by_column = plgpu.Layout.WGMMA, plgpu.Layout.WGMMA.reduce(1), plgpu.Layout.WGMMA.reduce(0)

    def load(ref, layout):
        return plgpu.load(ref, layout=layout, optimized=False)

    def body(*refs):
        qkv_g, cos_g, sin_g, page_g, offset_g, segment_g, index_g, *rest = refs
        norm_g = (rest.pop(0), rest.pop(0)) if norms is not None else ()
        cache_g, q_g, low_s, high_s, cos_s, sin_s, *rest = rest
        norm_s, (out_s, arrived, weighed) = rest[:4], rest[4:]
        row = lax.axis_index("row")
        halves = [pl.ds(0, half), pl.ds(half, half)]
        for i, each in enumerate(norm_g):
            for j in range(2):
                plgpu.copy_gmem_to_smem(each.at[halves[j]], norm_s[2 * i + j], weighed)
        after_predecessor(interpret)
        for part, buffer in zip(halves, (low_s, high_s), strict=True):
            plgpu.copy_gmem_to_smem(qkv_g.at[row, :, part], buffer.at[pl.ds(0, total)], arrived)
        plgpu.copy_gmem_to_smem(cos_g.at[row], cos_s, arrived)
        plgpu.copy_gmem_to_smem(sin_g.at[row], sin_s, arrived)
        plgpu.barrier_wait(arrived)
        across = lambda v: lax.broadcast_in_dim(v, (ROWS, half), [1])  # noqa: E731
        head = plgpu.broadcasted_iota(jnp.int32, (ROWS, half), 0, layout=wgmma)
        plain = [load(buffer, wgmma) for buffer in (low_s, high_s)]
        wide = [part.astype(jnp.float32) for part in plain]
        if norms is not None:
            plgpu.barrier_wait(weighed)
            squares = plgpu.layout_cast(jnp.sum(wide[0] * wide[0] + wide[1] * wide[1], axis=1), by_row)
            scale = lax.broadcast_in_dim(lax.rsqrt(squares / size + eps), (ROWS, half), [0])
            for j in range(2):
                weight = [across(load(norm_s[2 * i + j], by_column).astype(jnp.float32)) for i in range(2)]
                part = (wide[j] * scale).astype(qkv.dtype).astype(jnp.float32) * jnp.where(head < heads, weight[0], weight[1])
                wide[j] = part.astype(qkv.dtype).astype(jnp.float32)
        c, s = across(load(cos_s, by_column)), across(load(sin_s, by_column))
        turned = [wide[0] * c - wide[1] * s, wide[1] * c + wide[0] * s]
        turns = head < heads + groups
        for j in range(2):
            out_s.at[:, halves[j]][...] = plgpu.layout_cast(jnp.where(turns, turned[j].astype(qkv.dtype), plain[j]), wgmma)
        plgpu.commit_smem()
        for group in range(groups):
            plgpu.copy_smem_to_gmem(out_s.at[pl.ds(group * share, share)],
                                    q_g.at[segment_g[row], group, pl.ds(index_g[row] * share, share)])
        plgpu.copy_smem_to_gmem(out_s.at[pl.ds(heads, 2 * groups)], cache_g.at[page_g[row], :, offset_g[row]])
        plgpu.wait_smem_to_gmem(0, wait_read_only=True)

    tile, vector = plgpu.SMEM((ROWS, half), qkv.dtype), plgpu.SMEM((half,), jnp.float32)
    weight = plgpu.SMEM((half,), qkv.dtype)
    kernel = plgpu.kernel(
        body, kernel_name="rope_and_store", out_type=shape(places.segments + 1, groups, ROWS, size, dtype=qkv.dtype), grid=(rows,), grid_names=("row",),
        interpret=interpret,
        scratch_types=[tile, tile, vector, vector, weight, weight, weight, weight, plgpu.SMEM((ROWS, size), qkv.dtype),
                       plgpu.Barrier(num_arrivals=4), plgpu.Barrier(num_arrivals=4)])
    return kernel(qkv.reshape(rows, total, size), cos, sin, page, offset, places.segment, places.index, *(norms or ()), cache)
