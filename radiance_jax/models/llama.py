"""The Llama family (Llama, Qwen2, Qwen3) as pure functions: x += attention(norm(x)); x += swiglu(norm(x)); norm; head.

Weights are per rank and fused where one product serves: `qkv` [tp, (N' + 2G')H, D] and `gate_up` [tp, 2F', D], with
N', G', F' the padded sizes of one rank (`partition.py`). The forward pass runs under `shard_map`, where each
rank sees its own slice, and asks its caller for three things: how to walk rows, how to attend, how to sum over ranks.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from radiance_jax.mesh import ArraySpec
from radiance_jax.models import partition as cut_
from radiance_jax.models.config import ModelConfig
from radiance_jax.models.layers import linear, product, rms_norm, rotary_frequencies, rotate
from radiance_jax.models.partition import Partition
from radiance_jax.models.rows import Rows, Tiles
from radiance_jax.models.tensors import tensor_shapes

__all__ = ["Params", "Surroundings", "cache_spec", "embed", "forward", "fuse", "head", "logits", "param_specs",
           "tensor_shapes"]

Params = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """What the forward pass needs from its caller. `attend(q, layer_cache) -> [R, N', H]`; `reduce(x) -> sum over
    ranks`, always exact; `reduce_add(x, residual, bias=None) -> residual + (sum over ranks + bias)`, on the engine's
    wire; `rank()` the index of this rank."""

    tiles: Tiles
    attend: Callable[[jax.Array, jax.Array], jax.Array]
    reduce: Callable[[jax.Array], jax.Array]
    reduce_add: Callable[..., jax.Array]
    rank: Callable[[], Any]


def param_specs(config: ModelConfig, cut: Partition, dtype) -> Params:
    """The parameter tree with an `ArraySpec` at each leaf."""
    d, h = config.width, config.head_size
    qkv = (cut.local_heads + 2 * cut.local_kv_heads) * h

    def spec(*dims: tuple[int, str | None]) -> ArraySpec:
        return ArraySpec(tuple(n for n, _ in dims), np.dtype(dtype), tuple(a for _, a in dims))

    whole = (d, None)
    layer = {
        "attention_norm": spec(whole), "mlp_norm": spec(whole),
        "qkv": spec((cut.tp, "heads"), (qkv, None), whole),
        "out": spec((cut.tp, "heads"), whole, (cut.local_heads * h, None)),
        "gate_up": spec((cut.tp, "ff"), (2 * cut.local_ff, None), whole),
        "down": spec((cut.tp, "ff"), whole, (cut.local_ff, None)),
    }
    if config.qk_norm:
        layer |= {"q_norm": spec((h, None)), "k_norm": spec((h, None))}
    if config.attention_bias:
        layer["qkv_bias"] = spec((cut.tp, "heads"), (qkv, None))
    if config.output_bias:
        layer["out_bias"] = spec(whole)
    if config.mlp_bias:
        layer |= {"gate_up_bias": spec((cut.tp, "ff"), (2 * cut.local_ff, None)), "down_bias": spec(whole)}
    params: Params = {"embed": spec((cut.vocab_size, "vocab"), whole), "norm": spec(whole), "layers": [layer] * config.num_layers}
    if not config.tied_head:
        params["head"] = spec((cut.vocab_size, "vocab"), whole)
    return params


def fuse(read: Callable[[str], np.ndarray], config: ModelConfig, cut: Partition, path: tuple) -> np.ndarray:
    """The padded, fused values of the parameter at `path`, e.g. `("layers", 3, "qkv")`, from a checkpoint's tensors."""

    def heads(name: str) -> np.ndarray:
        parts = [cut_.pad_query_heads(read(f"{p}self_attn.q_proj.{name}"), config, cut)]
        parts += [cut_.pad_kv_heads(read(f"{p}self_attn.{x}_proj.{name}"), config, cut) for x in "kv"]
        return np.concatenate(parts, axis=1)

    def ff(name: str) -> np.ndarray:
        split = [cut_.pad_axis(read(f"{p}mlp.{x}_proj.{name}"), 0, cut.ff_width) for x in ("gate", "up")]
        return np.concatenate([w.reshape(cut.tp, cut.local_ff, *w.shape[1:]) for w in split], axis=1)

    def rows_of_columns(weight: np.ndarray) -> np.ndarray:  # [D, tp * n] to [tp, D, n]
        return np.moveaxis(weight.reshape(config.width, cut.tp, -1), 1, 0)

    if path[0] != "layers":
        name = {"embed": "model.embed_tokens.weight", "norm": "model.norm.weight", "head": "lm_head.weight"}[path[0]]
        return read(name) if path[0] == "norm" else cut_.pad_axis(read(name), 0, cut.vocab_size)
    p = f"model.layers.{path[1]}."
    match path[2]:
        case "attention_norm":
            return read(p + "input_layernorm.weight")
        case "mlp_norm":
            return read(p + "post_attention_layernorm.weight")
        case "q_norm" | "k_norm":
            return read(f"{p}self_attn.{path[2]}.weight")
        case "qkv":
            return heads("weight")
        case "qkv_bias":
            return heads("bias")
        case "out":
            by_row = cut_.pad_query_heads(np.ascontiguousarray(read(p + "self_attn.o_proj.weight").T), config, cut)
            return np.moveaxis(by_row, 2, 1)
        case "gate_up":
            return ff("weight")
        case "gate_up_bias":
            return ff("bias")
        case "down":
            return rows_of_columns(cut_.pad_axis(read(p + "mlp.down_proj.weight"), 1, cut.ff_width))
        case "out_bias":
            return read(p + "self_attn.o_proj.bias")
        case "down_bias":
            return read(p + "mlp.down_proj.bias")
    raise AssertionError(path)


def cache_spec(config: ModelConfig, cut: Partition, pages: int, page_size: int, dtype) -> ArraySpec:
    """One layer's keys and values, [P, 2, G, page, H]."""
    return ArraySpec((pages, 2, cut.kv_heads, page_size, config.head_size), np.dtype(dtype),
                     (None, None, "kv_heads", None, None))


def embed(params: Params, tokens: jax.Array, around: Surroundings) -> jax.Array:
    """Token ids [R] to [R, D]; each rank looks up its own slice of the vocabulary, the others add exact zeros."""
    table = params["embed"]
    local = tokens - around.rank() * table.shape[0]
    mine = (local >= 0) & (local < table.shape[0])
    found = jnp.where(mine[:, None], table[jnp.clip(local, 0, table.shape[0] - 1)], 0)
    return around.reduce(found)


def head(params: Params, x: jax.Array, config: ModelConfig) -> jax.Array:
    """Last residual [R, D] to this rank's f32 logits [R, V/tp]."""
    return logits(params, rms_norm(x, params["norm"], config.norm_eps))


def logits(params: Params, x: jax.Array) -> jax.Array:
    """States [R, D] that are normed already to this rank's f32 logits [R, V/tp]."""
    return product(x, params.get("head", params["embed"]))


def forward(params: Params, config: ModelConfig, cut: Partition, rows: Rows, caches: tuple[jax.Array, ...],
            around: Surroundings, taps: tuple[int, ...] = ()) -> tuple[jax.Array, tuple[jax.Array, ...], tuple[jax.Array, ...]]:
    """Runs all layers over the rows; returns the residual stream [R, D], the caches with the rows' own keys and values
    written, and for each of `taps` the residual stream [R, D] behind that layer (from 0; -1: the embedding's output)."""
    tiles, h = around.tiles, config.head_size
    n, g = cut.local_heads, cut.local_kv_heads
    frequencies, attention_factor = rotary_frequencies(config.rope, h)
    x = embed(params, rows.token, around)

    def attention_inputs(layer: Params, tile, carry):
        queries, cache = carry
        y = linear(rms_norm(tiles.take(x, tile), layer["attention_norm"], config.norm_eps), layer["qkv"][0],
                   layer["qkv_bias"][0] if "qkv_bias" in layer else None).reshape(-1, n + 2 * g, h)
        turning = y[:, : n + g]
        if config.qk_norm:  # a padded head is all zeros and stays so
            turning = jnp.concatenate([rms_norm(y[:, :n], layer["q_norm"], config.norm_eps),
                                       rms_norm(y[:, n:n + g], layer["k_norm"], config.norm_eps)], axis=1)
        turned = rotate(turning, tiles.take(rows.position, tile), frequencies, attention_factor)
        kv = jnp.stack([turned[:, n:], y[:, n + g:]], axis=1)  # [T, 2, G, H]
        cache = cache.at[tiles.take(rows.page, tile), :, :, tiles.take(rows.offset, tile)].set(kv.astype(cache.dtype))
        return tiles.put(queries, turned[:, :n], tile), cache

    def rest(layer: Params, attended: jax.Array, tile, x):
        y = product(tiles.take(attended, tile).reshape(-1, n * h), layer["out"][0]).astype(x.dtype)
        r = around.reduce_add(y, tiles.take(x, tile), layer.get("out_bias"))
        gate, up = jnp.split(linear(rms_norm(r, layer["mlp_norm"], config.norm_eps), layer["gate_up"][0],
                                    layer["gate_up_bias"][0] if "gate_up_bias" in layer else None), 2, axis=-1)
        y = product(jax.nn.silu(gate) * up, layer["down"][0]).astype(x.dtype)
        return tiles.put(x, around.reduce_add(y, r, layer.get("down_bias")), tile)

    out, streams = [], {-1: x}
    for number, (layer, cache) in enumerate(zip(params["layers"], caches, strict=True)):
        queries = jnp.zeros((x.shape[0], n, h), x.dtype)
        queries, cache = tiles.walk(lambda tile, c, layer=layer: attention_inputs(layer, tile, c), (queries, cache))
        attended = around.attend(queries, cache)
        x = tiles.walk(lambda tile, c, layer=layer, attended=attended: rest(layer, attended, tile, c), x)
        out.append(cache)
        streams[number] = x
    return x, tuple(out), tuple(streams[tap] for tap in taps)
