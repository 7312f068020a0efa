"""The backbone that all block drafters share, and what a family adds to it.

A block is the anchor's token and mask tokens behind it. Its queries see the context (keys and values made of the target's tapped
states, each row once in its life) and the block itself (DFlash, arXiv 2602.06036):

    c = norm(fc([tap_1; ..; tap_n]));  k, v of the context = rope(norm(W_k c)), W_v c, the same c in every layer
    x = embedding of the block;  x += attention(norm(x));  x += swiglu(norm(x));  states = norm(x)

A family is a subclass: its own fields, tensors and parameters, and `propose` on top of `states` and `logits`; it may wrap
each half of a layer. Weights are per rank and fused as in `models/llama.py`.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np

from radiance_jax.errors import ModelError
from radiance_jax.mesh import ArraySpec
from radiance_jax.models import partition as cut_
from radiance_jax.models.draft import tensors
from radiance_jax.models.draft.attention import attend
from radiance_jax.models.draft.config import DraftConfig
from radiance_jax.models.draft.options import Options
from radiance_jax.models.layers import linear, product, rms_norm, rotary_frequencies, rotate
from radiance_jax.models.partition import Partition, partition
from radiance_jax.spec.drafter import Shared, Surroundings

Params = dict[str, Any]
Read = Callable[[str], np.ndarray]


def spec(dtype: Any, *dims: tuple[int, str | None]) -> ArraySpec:
    return ArraySpec(tuple(n for n, _ in dims), np.dtype(dtype), tuple(axis for _, axis in dims))


@dataclass(frozen=True, kw_only=True)
class BlockDrafter:
    """A `Drafter` (`spec/drafter.py`) but for `propose`. Frozen and hashable: a static part of the step program."""

    config: DraftConfig

    name: ClassVar[str]
    shifted: ClassVar[bool] = False  # the family's slot convention where a checkpoint does not say
    norm: ClassVar[Callable[[jax.Array, jax.Array, float], jax.Array]] = staticmethod(rms_norm)

    @classmethod
    def read(cls, options: Options, config: DraftConfig) -> Self:
        """The family's own fields. Raises `ModelError` naming the one that cannot be served."""
        return cls(config=config)

    def holding(self, names: Iterable[str], where: str) -> Self:
        """The same drafter, given which tensors its file really holds of those it may as well borrow."""
        c, names = self.config, set(names)
        own_mask = "mask_embedding" in names
        if c.mask_id is None and not own_mask:
            raise ModelError(f"{where}: mask_token_id must be given; got nothing. It is the id of the mask token in the target's "
                             "tokenizer: add it to the drafter's config.json.", param="mask_token_id")
        return replace(self, config=replace(
            c, own_embed="embed_tokens.weight" in names, own_head="lm_head.weight" in names or c.head_vocab != c.vocab_size,
            mapped="d2t" in names or c.head_vocab != c.vocab_size, own_mask=own_mask))

    # What the engine asks.

    @property
    def taps(self) -> tuple[int, ...]:
        return self.config.taps

    @property
    def block(self) -> int:
        return self.config.drafts

    @property
    def depth(self) -> int:
        return self.config.declared or self.config.drafts

    @property
    def window(self) -> int | None:
        return self.config.window

    # Parameters.

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Canonical name to shape of every tensor of this drafter."""
        return tensors.backbone_shapes(self.config)

    def layer_specs(self, dtype: Any) -> dict[str, ArraySpec]:
        """What the family adds to every layer."""
        return {}

    def param_specs(self, cut: Partition, dtype: Any) -> Params:
        """The parameter tree with an `ArraySpec` at each leaf; `cut` is the target's."""
        c, own = self.config, partition(self.config, cut.tp)
        d, h, ranks = (c.width, None), c.head_size, (cut.tp, "heads")
        q, kv = (own.local_heads * h, None), (2 * own.local_kv_heads * h, None)
        layer = {
            "attention_norm": spec(dtype, d), "mlp_norm": spec(dtype, d), "q_norm": spec(dtype, (h, None)),
            "k_norm": spec(dtype, (h, None)), "q": spec(dtype, ranks, q, d), "kv": spec(dtype, ranks, kv, d),
            "out": spec(dtype, ranks, d, q), "gate_up": spec(dtype, (cut.tp, "ff"), (2 * own.local_ff, None), d),
            "down": spec(dtype, (cut.tp, "ff"), d, (own.local_ff, None)), **self.layer_specs(dtype)}
        if c.attention_bias:
            layer |= {"q_bias": spec(dtype, ranks, q), "kv_bias": spec(dtype, ranks, kv), "out_bias": spec(dtype, d)}
        params: Params = {"fc": spec(dtype, (cut.tp, "ff"), d, (self._tap_columns(cut.tp), None)), "context_norm": spec(dtype, d),
                          "norm": spec(dtype, d), "layers": [layer] * c.num_layers}
        head = (self.head_size(cut), "vocab")
        if c.own_embed:
            params["embed"] = spec(dtype, (cut.vocab_size, "vocab"), d)
        if c.own_head:
            params["head"] = spec(dtype, head, d)
        if c.mapped:
            params["head_ids"] = spec(np.int32, head)
        if c.own_mask:
            params["mask"] = spec(dtype, d)
        return params

    def fuse(self, read: Read, cut: Partition, path: tuple) -> np.ndarray:
        """The padded, fused values of the parameter at `path`, e.g. `("layers", 3, "kv")`, from tensors by canonical name."""
        c, own = self.config, partition(self.config, cut.tp)

        def heads(names: str, kind: str) -> np.ndarray:
            pad = cut_.pad_query_heads if names == "q" else cut_.pad_kv_heads
            return np.concatenate([pad(read(f"{p}self_attn.{x}_proj.{kind}"), c, own) for x in names], axis=1)

        def columns(weight: np.ndarray) -> np.ndarray:  # [D, tp * n] to [tp, D, n]
            return np.moveaxis(weight.reshape(c.width, cut.tp, -1), 1, 0)

        match path[-1]:
            case "fc":
                return columns(cut_.pad_axis(read("fc.weight"), 1, cut.tp * self._tap_columns(cut.tp)))
            case "context_norm":
                return read("hidden_norm.weight")
            case "norm":
                return read("norm.weight")
            case "embed":
                return cut_.pad_axis(read("embed_tokens.weight"), 0, cut.vocab_size)
            case "head":
                return cut_.pad_axis(read("lm_head.weight"), 0, self.head_size(cut))
            case "head_ids":
                return cut_.pad_axis(self.head_ids(read), 0, self.head_size(cut))
            case "mask":
                return read("mask_embedding")
        p = f"layers.{path[1]}."
        match path[-1]:
            case "attention_norm":
                return read(p + "input_layernorm.weight")
            case "mlp_norm":
                return read(p + "post_attention_layernorm.weight")
            case "q_norm" | "k_norm":
                return read(f"{p}self_attn.{path[-1]}.weight")
            case "q" | "kv":
                return heads(path[-1], "weight")
            case "q_bias" | "kv_bias":
                return heads(path[-1].removesuffix("_bias"), "bias")
            case "out":
                by_row = cut_.pad_query_heads(np.ascontiguousarray(read(p + "self_attn.o_proj.weight").T), c, own)
                return np.moveaxis(by_row, 2, 1)
            case "out_bias":
                return read(p + "self_attn.o_proj.bias")
            case "gate_up":
                split = [cut_.pad_axis(read(f"{p}mlp.{x}_proj.weight"), 0, own.ff_width) for x in ("gate", "up")]
                return np.concatenate([w.reshape(cut.tp, own.local_ff, -1) for w in split], axis=1)
            case "down":
                return columns(cut_.pad_axis(read(p + "mlp.down_proj.weight"), 1, own.ff_width))
        raise AssertionError(path)

    def head_ids(self, read: Read) -> np.ndarray:
        """The target's id of each row of the head; `d2t` holds the differences. Raises `ModelError` for ids there are not."""
        ids = read("d2t").astype(np.int64) + np.arange(self.config.head_vocab)
        if ids.min() < 0 or ids.max() >= self.config.vocab_size:
            raise ModelError(f"d2t must lead to token ids below vocab_size ({self.config.vocab_size}); "
                             f"got {ids.min()} to {ids.max()}", param="d2t")
        return ids

    def head_size(self, cut: Partition) -> int:
        """Padded rows of the head: the target's own where it is borrowed or as long."""
        c = self.config
        if c.head_vocab == c.vocab_size:
            return cut.vocab_size
        return partition(replace(c, vocab_size=c.head_vocab), cut.tp).vocab_size

    def _tap_columns(self, tp: int) -> int:
        return -(-len(self.config.taps) * self.config.target_width // tp)

    # The drafter's own cache.

    def cache_specs(self, cut: Partition, slots: int, length: int, dtype: Any) -> tuple[ArraySpec, ...]:
        """One ring [S, W, 2, G, H] a layer, W at most the layer's own window."""
        own = partition(self.config, cut.tp)
        return tuple(ArraySpec((slots, min(window or length, length), 2, own.kv_heads, self.config.head_size), np.dtype(dtype),
                               (None, None, None, "kv_heads", None)) for window in self.config.windows)

    def observe(self, params: Params, cache: tuple[jax.Array, ...], taps: jax.Array, slot: jax.Array, position: jax.Array,
                keep: jax.Array, around: Surroundings) -> tuple[jax.Array, ...]:
        """Writes the context rows of committed tokens: taps [R, T, Dt], slot, position int32 [R], keep bool [R]."""
        slots, longest = cache[0].shape[0], max(ring.shape[1] for ring in cache)
        newest = jnp.full(slots, -1).at[slot].max(jnp.where(keep, position, -1))
        out = []
        for (k, v), ring in zip(self.context(params, taps, position, around), cache, strict=True):
            stays = keep
            if ring.shape[1] < longest:  # in a shorter ring two rows of one call may want the same place: the newer has it
                stays = keep & (position > newest[slot] - ring.shape[1])
            to = jnp.where(stays, slot, slots)
            out.append(ring.at[to, position % ring.shape[1]].set(jnp.stack([k, v], axis=1).astype(ring.dtype), mode="drop"))
        return tuple(out)

    def context(self, params: Params, taps: jax.Array, position: jax.Array,
                around: Surroundings) -> list[tuple[jax.Array, jax.Array]]:
        """Keys and values [R, G, H] that each layer makes of rows of context: taps [R, T, Dt], position int32 [R]."""
        states = self._project(params, taps.reshape(taps.shape[0], -1), around)
        states = self.norm(states, params["context_norm"], self.config.norm_eps)
        return [self._keys_values(layer, states, position) for layer in params["layers"]]

    # The network.

    def states(self, params: Params, shared: Shared, cache: tuple[jax.Array, ...], anchor: jax.Array, position: jax.Array,
               around: Surroundings) -> jax.Array:
        """Normed states [S, N, D] of the slots that stand for draft 0, 1, .., for anchors int32 [S] at `position` [S]."""
        c, slots, size = self.config, anchor.shape[0], self.config.block_size
        x = self._embed(params, shared, anchor, around).reshape(slots * size, c.width)
        positions = (position[:, None] + jnp.arange(size)).reshape(-1)
        for layer, ring, window, causal in zip(params["layers"], cache, c.windows, c.causal, strict=True):

            def attention(u: jax.Array, layer=layer, ring=ring, window=window, causal=causal) -> jax.Array:
                q = self._turn(linear(u, layer["q"][0], _first(layer, "q_bias")), layer["q_norm"], positions)
                k, v = self._keys_values(layer, u, positions)
                q, k, v = (y.reshape(slots, size, *y.shape[1:]) for y in (q, k, v))
                y = (around.attend or attend)(q, k, v, ring, position, window, causal, around.branches).reshape(slots * size, -1)
                y = around.reduce(product(y, layer["out"][0]).astype(x.dtype))
                return y + layer["out_bias"] if "out_bias" in layer else y

            def swiglu(u: jax.Array, layer=layer) -> jax.Array:
                gate, up = jnp.split(linear(u, layer["gate_up"][0]), 2, axis=-1)
                return around.reduce(product(jax.nn.silu(gate) * up, layer["down"][0]).astype(x.dtype))

            x = x + self.around_half(layer, "attention", self.norm(x, layer["attention_norm"], c.norm_eps), attention)
            x = x + self.around_half(layer, "mlp", self.norm(x, layer["mlp_norm"], c.norm_eps), swiglu)
        y = self.norm(x, params["norm"], c.norm_eps).reshape(slots, size, c.width)
        return y if c.shifted else y[:, 1:]

    def around_half(self, layer: Params, half: str, u: jax.Array, compute: Callable[[jax.Array], jax.Array]) -> jax.Array:
        """One half of a layer, "attention" or "mlp", on its normed input [S * B, D]: a family may put something round it."""
        return compute(u)

    def logits(self, params: Params, shared: Shared, states: jax.Array, around: Surroundings) -> tuple[jax.Array, jax.Array]:
        """This rank's f32 logits [S, N, C] of states [S, N, D], padded entries -inf, and their token ids int32 [C]."""
        c = self.config
        if "head" in params:
            count = params["head"].shape[0]
            row = around.rank() * count + jnp.arange(count, dtype=jnp.int32)
            raw = product(states.reshape(-1, c.width), params["head"]).reshape(*states.shape[:-1], count)
            real = jnp.broadcast_to(row < c.head_vocab, raw.shape)
        else:
            raw = shared.head(states)
            row = around.rank() * raw.shape[-1] + jnp.arange(raw.shape[-1], dtype=jnp.int32)
            real = raw > -jnp.inf
        scaled = raw * c.logit_scale
        if c.logit_cap:
            scaled = c.logit_cap * jnp.tanh(scaled / c.logit_cap)
        return jnp.where(real, scaled, -jnp.inf), params.get("head_ids", row)

    def lookup(self, table: jax.Array, ids: jax.Array, around: Surroundings) -> jax.Array:
        """Rows [.., n] of a table that is split by vocabulary; the ranks that lack a row add exact zeros."""
        local = ids - around.rank() * table.shape[0]
        mine = (local >= 0) & (local < table.shape[0])
        return around.reduce(jnp.where(mine[..., None], table[jnp.clip(local, 0, table.shape[0] - 1)], 0))

    def _embed(self, params: Params, shared: Shared, anchor: jax.Array, around: Surroundings) -> jax.Array:
        """Embeddings [S, B, D] of the blocks: each anchor's, and one mask for all."""
        c = self.config
        ids = jnp.concatenate([anchor, jnp.full(1, c.mask_id or 0, anchor.dtype)])
        rows = self.lookup(params["embed"], ids, around) if "embed" in params else shared.embed(ids)
        mask = params["mask"].astype(rows.dtype) if "mask" in params else rows[-1]
        masks = jnp.broadcast_to(mask, (anchor.shape[0], c.block_size - 1, c.width))
        block = jnp.concatenate([rows[:-1, None], masks], axis=1)
        return block if c.embedding_scale == 1.0 else block * jnp.asarray(c.embedding_scale, block.dtype)

    def _project(self, params: Params, taps: jax.Array, around: Surroundings) -> jax.Array:
        """fc of taps [R, T * Dt]: each rank takes its columns of them."""
        share, weight = self._tap_columns(around.tp), params["fc"][0]
        if around.tp > 1:
            taps = jnp.pad(taps, ((0, 0), (0, around.tp * share - taps.shape[1])))
            taps = jax.lax.dynamic_slice_in_dim(taps, around.rank() * share, share, axis=1)
        return around.reduce(product(taps.astype(weight.dtype), weight).astype(weight.dtype))

    def _keys_values(self, layer: Params, u: jax.Array, position: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Keys, normed and turned, and values of rows [R, D], [R, G, H] each."""
        k, v = jnp.split(linear(u, layer["kv"][0], _first(layer, "kv_bias")), 2, axis=-1)
        return self._turn(k, layer["k_norm"], position), v.reshape(v.shape[0], -1, self.config.head_size)

    def rotary(self) -> tuple[Any, Any]:
        """Angles per position, f32 [H/2], and the factor on cos and sin."""
        return rotary_frequencies(self.config.rope, self.config.head_size)

    def _turn(self, y: jax.Array, weight: jax.Array, position: jax.Array) -> jax.Array:
        """[R, n * H] to heads [R, n, H], normed and turned."""
        frequencies, factor = self.rotary()
        y = self.norm(y.reshape(y.shape[0], -1, self.config.head_size), weight, self.config.norm_eps)
        return rotate(y, position, frequencies, factor)


def _first(layer: Params, name: str) -> jax.Array | None:
    return layer[name][0] if name in layer else None
