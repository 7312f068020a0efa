"""DFlash2: DFlash with a short convolution round each half of a layer, and a walk over candidates (PyPI `dflash` 0.1.0).

Convolution, of a half f on its normed input u, over the rows i of one block, c a channel of group g(c):

    conv_n(x)[i, c] = sum_t (base_n[t, c] + dyn_n[i, t, g(c)]) x[i - t, c],  dyn = W u;   half = conv_1(f(conv_0(u)))

Selector: of each slot j the K likeliest tokens; score_j(a -> b) = logit_j[b] + <P[a] * W y_j, Q[b]>, with a the token
chosen for the slot before (the anchor for the first), P and Q two codebooks [V, r], y_j the slot's state. The walk takes the
best, left to right.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from radiance_jax.mesh import ArraySpec
from radiance_jax.models import partition as cut_
from radiance_jax.models.draft.backbone import BlockDrafter, Params, Read, spec
from radiance_jax.models.draft.config import DraftConfig
from radiance_jax.models.draft.options import Options
from radiance_jax.models.layers import linear, product
from radiance_jax.models.partition import Partition
from radiance_jax.spec.drafter import Noise, Proposal, Shared, Surroundings, draw

FIELDS = ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")
_SELECTOR = {"predecessors": "candidate_selector.predecessor_codebook", "successors": "candidate_selector.successor_codebook",
             "selector": "candidate_selector.hidden_projection.weight"}


@dataclass(frozen=True, kw_only=True)
class DFlash2(BlockDrafter):
    reach: int  # rows that a convolution sees, the current one included
    group: int  # channels that share a dynamic kernel
    rank: int
    candidates: int  # K

    name = "DFlash2"

    @classmethod
    def read(cls, options: Options, config: DraftConfig) -> Self:
        reach, group, rank, candidates = (options.whole(key) for key in FIELDS)
        if reach > config.block_size:
            raise options.fail(FIELDS[0], f"at most block_size ({config.block_size})")
        if config.width % group:
            raise options.fail(FIELDS[1], f"a divisor of hidden_size ({config.width})")
        if config.head_vocab != config.vocab_size:
            raise options.fail("draft_vocab_size", f"vocab_size ({config.vocab_size}): the codebooks hold the whole vocabulary")
        if candidates > config.vocab_size:
            raise options.fail(FIELDS[3], f"at most vocab_size ({config.vocab_size})")
        return cls(config=config, reach=reach, group=group, rank=rank, candidates=candidates)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        c, shapes = self.config, super().shapes()
        kernels = 2 * self.reach * (c.width // self.group)
        for i in range(c.num_layers):
            for half in ("attention", "mlp"):
                shapes |= {f"layers.{i}.{half}_conv.base_kernel": (2, self.reach, c.width),
                           f"layers.{i}.{half}_conv.kernel_projection.weight": (kernels, c.width)}
        book = (c.vocab_size, self.rank)
        return shapes | dict(zip(_SELECTOR.values(), (book, book, (self.rank, c.width)), strict=True))

    def layer_specs(self, dtype: Any) -> dict[str, ArraySpec]:
        d = (self.config.width, None)
        kernels = (2 * self.reach * (self.config.width // self.group), None)
        return {f"{half}_{part}": value for half in ("attention", "mlp") for part, value in (
            ("base", spec(dtype, (2, None), (self.reach, None), d)), ("kernels", spec(dtype, kernels, d)))}

    def param_specs(self, cut: Partition, dtype: Any) -> Params:
        book = spec(dtype, (cut.vocab_size, "vocab"), (self.rank, None))
        return super().param_specs(cut, dtype) | {
            "predecessors": book, "successors": book, "selector": spec(dtype, (self.rank, None), (self.config.width, None))}

    def fuse(self, read: Read, cut: Partition, path: tuple) -> np.ndarray:
        if path[-1] in _SELECTOR:
            value = read(_SELECTOR[path[-1]])
            return value if path[-1] == "selector" else cut_.pad_axis(value, 0, cut.vocab_size)
        half, _, part = path[-1].partition("_")
        if part in ("base", "kernels"):
            return read(f"layers.{path[1]}.{half}_conv." + {"base": "base_kernel", "kernels": "kernel_projection.weight"}[part])
        return super().fuse(read, cut, path)

    def around_half(self, layer: Params, half: str, u: jax.Array, compute: Callable[[jax.Array], jax.Array]) -> jax.Array:
        base, size = layer[f"{half}_base"], self.config.block_size
        dynamic = linear(u, layer[f"{half}_kernels"]).reshape(-1, size, 2, self.reach, self.config.width // self.group)

        def convolve(x: jax.Array, side: int) -> jax.Array:
            rows = x.reshape(-1, size, x.shape[-1] // self.group, self.group)
            total = jnp.zeros(rows.shape, jnp.float32)
            for t in range(self.reach):
                kernel = base[side, t].reshape(-1, self.group) + dynamic[:, :, side, t, :, None]
                shifted = jnp.pad(rows, ((0, 0), (t, 0), (0, 0), (0, 0)))[:, :size]  # nothing comes from before the block
                total = total + kernel.astype(jnp.float32) * shifted
            return total.astype(x.dtype).reshape(x.shape)

        return convolve(compute(convolve(u, 0)), 1)

    def propose(self, params: Params, shared: Shared, cache: Any, anchor: jax.Array, position: jax.Array, live: jax.Array,
                noise: Noise, around: Surroundings) -> Proposal:
        states = self.states(params, shared, cache, anchor, position, around)
        logits, ids = self.logits(params, shared, states, around)
        unary, tokens = self.likeliest(logits, ids, around)
        edges = unary[:, :, None] + self.transitions(params, states, anchor, tokens, around)
        hot = jnp.where(noise.temperature > 0, noise.temperature, 1.0)[:, None]

        def walk(before: jax.Array, slot: tuple) -> tuple:
            k, edges, tokens = slot
            scores = jnp.take_along_axis(edges, before[:, None, None], axis=1)[:, 0]
            token = draw(scores, tokens, k, noise, around)
            chosen = jnp.argmax(tokens == token[:, None], axis=-1)
            return chosen, (token, jax.nn.softmax(scores / hot, axis=-1))

        by_slot = lambda x: jnp.moveaxis(x, 1, 0)  # noqa: E731
        _, (path, law) = lax.scan(walk, jnp.zeros_like(anchor), (jnp.arange(self.block), by_slot(edges), by_slot(tokens)),
                                  unroll=not around.branches)
        return Proposal(tokens=by_slot(path), count=jnp.where(live, self.block, 0), law=(tokens, by_slot(law)))

    def likeliest(self, logits: jax.Array, ids: jax.Array, around: Surroundings) -> tuple[jax.Array, jax.Array]:
        """The K best of all ranks' logits [S, N, C]: f32 and int32 [S, N, K], ties in the order of ids."""
        values, at = lax.top_k(logits, min(self.candidates, logits.shape[-1]))
        values, tokens = around.gather(values), around.gather(ids[at])
        values, at = lax.top_k(values, self.candidates)
        return values, jnp.take_along_axis(tokens, at, axis=-1)

    def transitions(self, params: Params, states: jax.Array, anchor: jax.Array, tokens: jax.Array,
                    around: Surroundings) -> jax.Array:
        """f32 [S, N, K, K]: what candidate a of the slot before adds to the score of candidate b. Before the first slot
        stands the anchor, as every a. All rows of both codebooks are fetched at once, so that the walk needs no collective."""
        slots, count, k = tokens.shape
        before = jnp.concatenate([anchor[:, None], tokens[:, :-1].reshape(slots, -1)], axis=1)
        before = self.lookup(params["predecessors"], before, around)
        first = jnp.broadcast_to(before[:, None, :1], (slots, 1, k, self.rank))
        before = jnp.concatenate([first, before[:, 1:].reshape(slots, count - 1, k, self.rank)], axis=1)
        after = self.lookup(params["successors"], tokens, around)
        z = product(states.reshape(slots * count, -1), params["selector"]).reshape(slots, count, 1, self.rank)
        return jnp.einsum("snar,snbr->snab", before.astype(jnp.float32) * z, after.astype(jnp.float32),
                          precision=lax.Precision.HIGHEST)
