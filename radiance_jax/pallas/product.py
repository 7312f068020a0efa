"""The row-invariant product x [R, K] times w [N, K] transposed, and its fused forms.

A row's bits depend on the row and the weight alone: K is walked in ascending order in steps of 16 (one wgmma each) by one
warpgroup, in f32, without a split; there is nothing in a tile that could tell one row from its mates. How many rows
and columns a tile has, how deep the pipeline is, may change the speed and not a bit (checked on the card at start-up).

One warpgroup loads (TMA), one or two multiply. At few rows the floor is the weight's bytes: tiles are as narrow as
makes one wave of thread blocks that fills the card, and weights are on their way before the kernel's own input is ready.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from radiance_jax.pallas.mosaic import ROWS, after_predecessor, shape, tiled


WIDEST = 256  # columns of a wgmma


@dataclass(frozen=True, kw_only=True)
class Tile:
    """Static choices of a product. `columns` of N a thread block (a multiple of 8), `depth` of K a stage (a multiple of
    64), `stages` in flight, `warpgroups` of 64 rows each. None of them changes a bit."""

    columns: int
    depth: int = 64
    stages: int = 8
    warpgroups: int = 1

    @property
    def rows(self) -> int:
        return ROWS * self.warpgroups

    def shared_memory(self, rows: int, weights: int, out_bytes: int) -> int:
        """Bytes a thread block needs for `rows` rows, with `weights` products side by side."""
        height = min(rows, self.rows)
        stage = (height + weights * self.columns) * self.depth * 2
        return stage * self.stages + (self.rows - height) * self.depth * 2 + self.rows * self.columns * out_bytes + 8192


def oracle(x: jax.Array, w: jax.Array, bias: jax.Array | None = None, *, gated: bool = False, dtype: Any = None) -> jax.Array:
    """What `product` computes, in jnp: f32 sums, the bias in f32, one rounding; `gated`: silu of the first half of N times
    the second half, each rounded first, as the networks do."""
    y = lax.dot_general(x, w, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32)
    if bias is not None:
        y = y + bias.astype(jnp.float32)
    if not gated:
        return y.astype(dtype or x.dtype)
    gate, up = jnp.split(y.astype(x.dtype).astype(jnp.float32), 2, axis=-1)
    return (gate * jax.nn.sigmoid(gate) * up).astype(dtype or x.dtype)


def _silu(x: jax.Array) -> jax.Array:
    return x / (1.0 + jnp.exp(-x))


def product(x: jax.Array, w: jax.Array, bias: jax.Array | None = None, *, tile: Tile, gated: bool = False, dtype: Any = None,
            interpret: Any = None) -> jax.Array:
    """x [R, K] bf16 times w [N, K] bf16 to [R, N], or [R, N/2] if `gated`, in `dtype` (that of x).

    R is a multiple of 8, and of the tile's rows where it has more; K of 64; N (N/2 if gated) of the tile's columns.
    """
    rows, k = x.shape
    n = w.shape[0] // (2 if gated else 1)
    height, columns, depth = min(rows, tile.rows), tile.columns, tile.depth
    if rows % 8 or rows % height or k % depth or n % columns or columns % 8:
        raise ValueError(f"a product of {rows} rows, {k} x {n} does not divide into tiles of {height} x {depth} x {columns}")
    dtype = dtype or x.dtype
    groups, parts, steps = tile.warpgroups, 2 if gated else 1, k // depth
    stages = min(tile.stages, steps)
    if stages < 2 and steps > 1:  # a stage is given back when the next one is being multiplied
        raise ValueError(f"a product of {steps} steps along K needs at least 2 stages; got {tile.stages}")

    def body(*refs):
        x_g, w_g, *rest = refs
        bias_g = rest.pop(0) if bias is not None else None
        o_g, x_s, w_s, o_s, b_s, full, empty, once = rest
        column, row, group = lax.axis_index("column"), lax.axis_index("row"), lax.axis_index("group")

        def own_rows(slot, count):
            """The rows of a stage begin behind those of the stage before. A wgmma takes 64 all the same: beyond the own ones it
            multiplies another stage's, for rows of the result that nobody keeps, and shared memory holds more stages."""
            return pl.ds(slot * height if isinstance(slot, int) else pl.multiple_of(slot * height, 8), count)

        def fetch_weights(step, slot):
            for part in range(parts):
                plgpu.copy_gmem_to_smem(w_g.at[pl.ds(part * n + column * columns, columns), pl.ds(step * depth, depth)],
                                        w_s.at[slot, part], full.at[slot])

        def fetch_rows(step, slot):
            plgpu.copy_gmem_to_smem(x_g.at[pl.ds(row * height, height), pl.ds(step * depth, depth)],
                                    x_s.at[own_rows(slot, height)], full.at[slot])

        @pl.when(group == groups)
        def _():
            if groups > 1:
                plgpu.set_max_registers(40, action="decrease")
            for step in range(stages):
                fetch_weights(step, step)
            after_predecessor(interpret)
            for step in range(stages):
                fetch_rows(step, step)

            def refill(step, _):
                slot = lax.rem(step, stages)
                plgpu.barrier_wait(empty.at[slot])
                fetch_weights(step, slot)
                fetch_rows(step, slot)
                return ()

            lax.fori_loop(stages, steps, refill, ())

        @pl.when(group < groups)
        def _():
            if groups > 1:
                plgpu.set_max_registers(232, action="increase")
            mine = pl.ds(group * ROWS, ROWS)
            theirs = lambda slot: pl.ds(pl.multiple_of(slot * height + group * ROWS, 8), ROWS)  # noqa: E731
            if bias is not None:
                for part in range(parts):
                    plgpu.copy_gmem_to_smem(bias_g.at[pl.ds(part * n + column * columns, columns)], b_s.at[part, group, pl.ds(0, columns)],
                                            once.at[group])
                plgpu.barrier_wait(once.at[group])

            def accumulate(*accumulators):
                def multiply(step, _):
                    slot = lax.rem(step, stages)
                    plgpu.barrier_wait(full.at[slot])
                    for part, accumulator in enumerate(accumulators):
                        plgpu.wgmma(accumulator, x_s.at[theirs(slot)], w_s.at[slot, part].T)
                    plgpu.wgmma_wait(parts)  # those of the step before are done, their slot is free

                    @pl.when((step > 0) & (step - 1 + stages < steps))  # only if it is filled again
                    def _():
                        plgpu.barrier_arrive(empty.at[lax.rem(step - 1, stages)])

                    return ()

                lax.fori_loop(0, steps, multiply, ())
                plgpu.wgmma_wait(0)
                sums = [accumulator[...] for accumulator in accumulators]
                return tuple(sums)

            sums = pl.run_scoped(accumulate, *(plgpu.ACC((ROWS, columns), jnp.float32) for _ in range(parts)))
            if bias is not None:
                sums = [y + lax.broadcast_in_dim(b_s[part, group, pl.ds(0, columns)].astype(jnp.float32), (ROWS, columns), [1])
                        for part, y in enumerate(sums)]
            if gated:
                gate, up = (y.astype(x.dtype).astype(jnp.float32) for y in sums)
                y = _silu(gate) * up
            else:
                y = sums[0]
            o_s[mine] = y.astype(dtype)
            plgpu.commit_smem()
            kept = min(height, ROWS)
            plgpu.copy_smem_to_gmem(o_s.at[pl.ds(group * ROWS, kept)],
                                    o_g.at[pl.ds(row * height + group * ROWS, kept), pl.ds(column * columns, columns)])
            plgpu.wait_smem_to_gmem(0, wait_read_only=True)

    copies = parts + 1
    kernel = plgpu.kernel(
        body, kernel_name=f"product_{k}x{n}" + ("_gated" if gated else ""), out_type=shape(rows, n, dtype=dtype), grid=(rows // height, n // columns), grid_names=("row", "column"),
        num_threads=groups + 1, thread_name="group", interpret=interpret,
        scratch_types=[
            plgpu.SMEM((stages * height + tile.rows - height, depth), x.dtype, transforms=tiled(depth, x.dtype)),
            plgpu.SMEM((stages, parts, columns, depth), w.dtype, transforms=tiled(depth, w.dtype)),
            plgpu.SMEM((tile.rows, columns), dtype, transforms=tiled(columns, dtype)),
            plgpu.SMEM((parts, groups, WIDEST), w.dtype),  # copies begin at multiples of 128 bytes
            plgpu.Barrier(num_arrivals=copies, num_barriers=stages),
            plgpu.Barrier(num_arrivals=groups, num_barriers=stages),
            plgpu.Barrier(num_arrivals=parts, num_barriers=groups)])
    return kernel(x, w) if bias is None else kernel(x, w, bias)


