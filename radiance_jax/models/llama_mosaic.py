"""The Llama family's forward pass in Mosaic kernels, for Hopper GPUs: the same networks as `llama.py`, row-invariant.

Nine kernels a layer, in one chain: add and norm; projection; norm, rotary embedding and store; attention and its
combination; output; add and norm; gated projection; down. Whatever sums anything is a kernel whose order depends on shapes of weights
and on absolute positions alone; what XLA is left with is data movement and sums of two numbers. So a row's bits are the
same in a program of 8 rows and of 512, alone and in company.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from radiance_jax.models.config import ModelConfig
from radiance_jax.models.layers import rotary_frequencies
from radiance_jax.models.llama import Params
from radiance_jax.models.partition import Partition
from radiance_jax.models.rows import Rows
from radiance_jax.pallas.norm import add_norm
from radiance_jax.pallas.paged_attention import Segments
from radiance_jax.pallas.product import product
from radiance_jax.pallas.rope import rope_and_store
from radiance_jax.pallas.tiles import choose
from radiance_jax.pallas.verify_attention import Places, SplitShape, verify_attention


def row_invariant(x: jax.Array, w: jax.Array, bias: jax.Array | None = None, *, gated: bool = False, dtype: Any = None,
                  interpret: Any = None) -> jax.Array:
    """A linear layer in the tile that `pallas/tiles.py` chooses for its shape."""
    n = w.shape[0] // (2 if gated else 1)
    tile = choose(x.shape[0], x.shape[1], n, gated=gated, out_bytes=jnp.dtype(dtype or x.dtype).itemsize)
    return product(x, w, bias, tile=tile, gated=gated, dtype=dtype, interpret=interpret)


@dataclass(frozen=True, kw_only=True)
class KernelSurroundings:
    """What the forward pass needs from its caller. `tables` int32 [S, M], whole blocks; `reduce(x)` sums over ranks; `linear`:
    what multiplies (another one than `row_invariant` may be faster, and gives the promise up)."""

    tables: jax.Array
    segments: Segments
    places: Places
    how: SplitShape
    reduce: Callable[[jax.Array], jax.Array]
    linear: Callable[..., jax.Array] = row_invariant
    interpret: Any = None


def rotations(config: ModelConfig, position: jax.Array) -> tuple[jax.Array, jax.Array]:
    """cos and sin of the rows' angles, f32 [R, H/2], the attention factor in them."""
    frequencies, factor = rotary_frequencies(config.rope, config.head_size)
    angle = position.astype(jnp.float32)[:, None] * frequencies
    return jnp.cos(angle) * factor, jnp.sin(angle) * factor


def forward(params: Params, config: ModelConfig, cut: Partition, rows: Rows, x: jax.Array, caches: tuple[jax.Array, ...],
            around: KernelSurroundings, taps: tuple[int, ...] = ()) -> tuple[
                jax.Array, jax.Array, tuple[jax.Array, ...], tuple[jax.Array, ...]]:
    """Embedded rows [R, D] through all layers. Returns the residual stream before the last layer's output, that output (both
    [R, D]; their sum is the stream), the caches [P, 2, G, page, H] with the rows' keys and values written, and for each of `taps`
    the stream [R, D] behind that layer (from 0; -1: the embedding)."""
    share, interpret = cut.local_heads // cut.local_kv_heads, around.interpret
    linear = partial(around.linear, interpret=interpret)

    def summed(part: jax.Array, bias: jax.Array | None) -> jax.Array:
        part = around.reduce(part)
        return part if bias is None else part + bias

    @jax.jit  # layers are alike: one of them is traced and lowered
    def through(layer: Params, x: jax.Array, y: jax.Array, cache: jax.Array, rows: Rows, turns: tuple, tables: jax.Array,
                segments: Segments, places: Places):
        cos, sin = turns
        x, normed = add_norm(x, y, layer["attention_norm"], config.norm_eps, interpret=interpret)
        before = x  # the stream that this layer got, whole: what a drafter taps behind the layer before
        qkv = linear(normed, layer["qkv"][0], layer["qkv_bias"][0] if "qkv_bias" in layer else None)
        pages, two, groups, page, size = cache.shape
        store = jax.new_ref(cache.reshape(pages, two * groups, page, size))
        norms = (layer["q_norm"], layer["k_norm"]) if config.qk_norm else None
        q = rope_and_store(qkv, cos, sin, rows.page, rows.offset, store, norms, config.norm_eps, cut.local_heads, places,
                           interpret=interpret)
        kept = jax.freeze(store)
        attended = verify_attention(q, kept, tables, segments, places, share=share, how=around.how, interpret=interpret)
        y = summed(linear(attended, layer["out"][0]), layer.get("out_bias"))
        x, normed = add_norm(x, y, layer["mlp_norm"], config.norm_eps, interpret=interpret)
        inner = linear(normed, layer["gate_up"][0], layer["gate_up_bias"][0] if "gate_up_bias" in layer else None, gated=True)
        y = summed(linear(inner, layer["down"][0]), layer.get("down_bias"))
        return x, y, kept.reshape(cache.shape), before

    y, turns, out, streams = jnp.zeros_like(x), rotations(config, rows.position), [], {}
    for number, (layer, cache) in enumerate(zip(params["layers"], caches, strict=True)):
        x, y, kept, streams[number - 1] = through(layer, x, y, cache, rows, turns, around.tables, around.segments, around.places)
        out.append(kept)
    streams[len(out) - 1] = x + y
    return x, y, tuple(out), tuple(streams[tap] for tap in taps)


def head(params: Params, x: jax.Array, y: jax.Array, config: ModelConfig, linear: Callable[..., jax.Array] = row_invariant,
         interpret: Any = None) -> jax.Array:
    """Stream and last output [R, D] to this rank's f32 logits [R, V/tp]."""
    _, normed = add_norm(x, y, params["norm"], config.norm_eps, interpret=interpret)
    return linear(normed, params.get("head", params["embed"]), dtype=jnp.float32, interpret=interpret)
