"""A real model under a wire: the scores of a text, and the messages that its layers send."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from radiance_jax import collectives
from radiance_jax.config import EngineConfig
from radiance_jax.container.default_model import model_file
from radiance_jax.container.source import open_model
from radiance_jax.errors import UserError
from radiance_jax.mesh import TENSOR_AXIS, make_mesh, partitions, zeros_of
from radiance_jax.models import llama
from radiance_jax.models.config import parse_config
from radiance_jax.models.load import load_params
from radiance_jax.models.partition import partition
from radiance_jax.models.rows import Rows, Tiles
from radiance_jax.pallas.paged_attention import AttentionShape, make_segments, paged_attention
from radiance_jax.text.tokenizer import Tokenizer
from radiance_jax.wire import Wire

PAGE = 16


def open_for(config: EngineConfig, log: Callable[[str], None]) -> tuple[Any, Tokenizer]:
    """The model that the flags name, and its tokenizer."""
    path = model_file(config.model, config.cache_dir, "bf16", log)
    model = open_model(path)
    return model, Tokenizer.from_model(model)


@dataclass(frozen=True)
class Network:
    """Weights in bf16 over a mesh, for texts of at most `length` tokens (a multiple of the page), one text a step."""

    config: Any
    cut: Any
    mesh: Any
    params: Any
    length: int

    @classmethod
    def load(cls, model: Any, ranks: int, length: int) -> "Network":
        config = parse_config(model.config)
        if length > config.max_position:
            raise UserError(f"texts must fit the context of {config.max_position} tokens; the longest needs {length}")
        cut, mesh = partition(config, ranks), make_mesh(ranks)
        return cls(config, cut, mesh, load_params(config, cut, model, mesh, jnp.bfloat16), length)

    def compile(self, wire: Wire, keep: bool) -> Callable[[np.ndarray], tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """A function of token ids [T] to: the logprob of each token after the first, the likeliest id behind each token, and,
        with `keep`, what every layer gave to its two sums, bf16 [W, 2 L, length, D]."""
        config, cut, length = self.config, self.cut, self.length
        specs = llama.param_specs(config, cut, jnp.bfloat16)
        cache = llama.cache_spec(config, cut, length // PAGE, PAGE, jnp.bfloat16)
        place = jnp.arange(length, dtype=jnp.int32)
        first = jnp.zeros(1, jnp.int32)
        segments = make_segments(first, first + length, first, 8, length // 8 + 1)
        sent: list[jax.Array] = []

        def reduce_add(x, residual, bias=None):
            sent.append(x)
            return collectives.all_reduce_add(x, residual, TENSOR_AXIS, wire, bias)

        def run(params, caches, ids):
            sent.clear()
            around = llama.Surroundings(
                tiles=Tiles(((length, 1),)), reduce=lambda x: collectives.all_reduce(x, TENSOR_AXIS), reduce_add=reduce_add,
                attend=lambda q, c: paged_attention(q, c, place[None, :length // PAGE], segments, AttentionShape(height=8)),
                rank=lambda: lax.axis_index(TENSOR_AXIS))
            x, *_ = llama.forward(params, config, cut, Rows(ids, place, place // PAGE, place % PAGE), caches, around)
            logits = collectives.all_gather_last(llama.head(params, x, config), TENSOR_AXIS)[:, : config.vocab_size]
            scores = jax.nn.log_softmax(logits)
            following = jnp.roll(ids, -1)
            kept = jnp.stack(sent)[None] if keep else jnp.zeros((1, 0), jnp.bfloat16)
            return jnp.take_along_axis(scores, following[:, None], 1)[:, 0], jnp.argmax(logits, -1).astype(jnp.int32), kept

        caches = (cache,) * config.num_layers
        step = jax.jit(jax.shard_map(
            run, mesh=self.mesh, in_specs=(partitions(specs), partitions(caches), jax.P()),
            out_specs=(jax.P(), jax.P(), jax.P(TENSOR_AXIS)), check_vma=False))
        empty = zeros_of(caches, self.mesh)

        def score(ids: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
            padded = np.zeros(length, np.int32)
            padded[: len(ids)] = ids
            logprobs, best, kept = step(self.params, empty, padded)
            return np.asarray(logprobs)[: len(ids) - 1], np.asarray(best)[: len(ids) - 1], np.asarray(kept)

        return score
