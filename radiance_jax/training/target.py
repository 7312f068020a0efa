"""The target while a drafter is trained: whole sequences, causal, no cache, no gradient; its layers stacked and scanned.

The network is that of `models/llama.py` at one rank. A server computes the same states by tiles and pages; the two differ
by rounding alone.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh

from radiance_jax.models import llama
from radiance_jax.models.config import ModelConfig
from radiance_jax.models.layers import linear, product, rms_norm, rotary_frequencies, rotate
from radiance_jax.models.load import Checkpoint, check_tensors
from radiance_jax.models.partition import Partition
from radiance_jax.training.sharding import of_spec, place, whole

Params = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Target:
    """What a target is, for the programs: hashable, without its weights. `attention`: which one of jax.nn's, None the plain."""

    config: ModelConfig
    cut: Partition
    taps: tuple[int, ...]
    attention: str | None = None


def load(config: ModelConfig, cut: Partition, checkpoint: Checkpoint, mesh: Mesh, dtype: Any) -> Params:
    """The parameters, layers stacked on a first axis."""
    check_tensors(config, checkpoint)
    specs = llama.param_specs(config, cut, dtype)
    layer, spec = specs["layers"][0], {name: one for name, one in specs.items() if name != "layers"}

    def read(*path: Any) -> np.ndarray:
        return np.asarray(llama.fuse(checkpoint.read, config, cut, path), dtype)

    ends = {name: place(read(name), of_spec(one, mesh)) for name, one in spec.items()}
    stacked = {name: place(np.stack([read("layers", i, name) for i in range(config.num_layers)]), whole(mesh)) for name in layer}
    return ends | {"layers": stacked}


def states(params: Params, target: Target, tokens: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Tokens int32 [B, T] to the tapped residual streams [B, T, n, D] and the normed last states [B, T, D]."""
    config, (batch, length) = target.config, tokens.shape
    n, g, h = config.num_heads, config.num_kv_heads, config.head_size
    frequencies, factor = rotary_frequencies(config.rope, h)
    position = jnp.tile(jnp.arange(length), batch)
    x = params["embed"][tokens].reshape(batch * length, config.width)
    place_of = np.full(config.num_layers, len(target.taps))  # the last place is for layers that nobody reads
    for place, tap in enumerate(target.taps):
        if tap >= 0:
            place_of[tap] = place
    streams = jnp.zeros((len(target.taps) + 1, *x.shape), x.dtype)
    if -1 in target.taps:
        streams = streams.at[target.taps.index(-1)].set(x)

    def layer(carry: tuple, given: tuple) -> tuple:
        x, streams = carry
        w, place = given
        y = linear(rms_norm(x, w["attention_norm"], config.norm_eps), w["qkv"][0],
                   w["qkv_bias"][0] if "qkv_bias" in w else None).reshape(-1, n + 2 * g, h)
        q, k, v = y[:, :n], y[:, n:n + g], y[:, n + g:]
        if config.qk_norm:
            q, k = rms_norm(q, w["q_norm"], config.norm_eps), rms_norm(k, w["k_norm"], config.norm_eps)
        q, k = (rotate(each, position, frequencies, factor) for each in (q, k))
        q, k, v = (each.reshape(batch, length, *each.shape[1:]) for each in (q, k, v))
        y = jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation=target.attention)
        x = x + linear(y.reshape(batch * length, n * h), w["out"][0], w.get("out_bias"))
        gate, up = jnp.split(linear(rms_norm(x, w["mlp_norm"], config.norm_eps), w["gate_up"][0],
                                    w["gate_up_bias"][0] if "gate_up_bias" in w else None), 2, axis=-1)
        x = x + linear(jax.nn.silu(gate) * up, w["down"][0], w.get("down_bias"))
        return (x, lax.dynamic_update_index_in_dim(streams, x, place, 0)), None

    (x, streams), _ = lax.scan(layer, (x, streams), (params["layers"], jnp.asarray(place_of)))
    taps = jnp.moveaxis(streams[:-1], 0, 1).reshape(batch, length, len(target.taps), config.width)
    return taps, rms_norm(x, params["norm"], config.norm_eps).reshape(batch, length, config.width)


def head_table(params: Params) -> jax.Array:
    return params.get("head", params["embed"])


def logits(params: Params, target: Target, x: jax.Array) -> jax.Array:
    """Normed states [R, D] to f32 logits [R, V'], padded entries -inf."""
    return real_only(product(x, head_table(params)), target.config.vocab_size)


def real_only(raw: jax.Array, vocabulary: int) -> jax.Array:
    if raw.shape[-1] == vocabulary:
        return raw
    return jnp.where(jnp.arange(raw.shape[-1]) < vocabulary, raw, -jnp.inf)


def attention_for(platform: str, dtype: Any, size: int, log: Callable[[str], None]) -> str | None:
    """cuDNN's attention where it can be had: a GPU, 16 bits, and a program of it that runs."""
    if platform not in ("gpu", "cuda") or dtype != jnp.bfloat16:
        return None
    x = jnp.zeros((1, 64, 1, size), dtype)
    try:
        jax.jit(lambda x: jax.nn.dot_product_attention(x, x, x, is_causal=True, implementation="cudnn"))(x).block_until_ready()
    except Exception as error:  # whatever its build, driver or library says: the plain one is right as well
        log(f"attention: XLA's, as cuDNN's cannot be had ({type(error).__name__}: {str(error).splitlines()[0][:100]})")
        return None
    log("attention: cuDNN's, for the target")
    return "cudnn"
