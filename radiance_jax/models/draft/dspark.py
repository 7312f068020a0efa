"""DSpark: DFlash with slots shifted by one, a bias on each slot's logits by the token before it, and a confidence
(arXiv 2607.05147; deepseek-ai/DeepSpec). e is the row W1[a] of the token a before the slot, y the slot's state:

    vanilla: bias = W2 e      gated: bias = W2 (sigmoid(Wg [y; e] + b) * e)
    rnn:     (g, c, o) = W [state; e; y] + b;  bias = W2 tanh(o);  state' = sigmoid(g) state + (1 - sigmoid(g)) tanh(c)
    confidence = sigmoid(w [y; e] + b), or of y alone

With rank 0 there is no bias: that is how DeepSpec stores a plain DFlash.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from radiance_jax.models import partition as cut_
from radiance_jax.models.draft.backbone import BlockDrafter, Params, Read, spec
from radiance_jax.models.draft.config import DraftConfig
from radiance_jax.models.draft.options import Options
from radiance_jax.models.layers import linear, product
from radiance_jax.models.partition import Partition
from radiance_jax.spec.drafter import Noise, Proposal, Shared, Surroundings, draw

KINDS = ("vanilla", "gated", "rnn")
_MIXERS = {"gated": "gate_proj", "rnn": "joint_proj"}
_CONFIDENCE = "confidence_head.proj."


@dataclass(frozen=True, kw_only=True)
class DSpark(BlockDrafter):
    kind: str | None  # of the bias; None: there is none
    rank: int
    confident: bool
    confidence_sees_token: bool
    confidence_bias: bool = True

    name = "DSpark"
    shifted = True

    @classmethod
    def read(cls, options: Options, config: DraftConfig) -> Self:
        rank = options.whole("markov_rank", 0, low=0)
        kind = options.word("markov_head_type", KINDS, "vanilla") if rank else None
        if kind == "rnn" and not config.shifted:
            raise options.fail("sample_from_anchor", "true where markov_head_type is rnn",
                               "Whether the anchor's slot moves its state is not settled between the published trainers.")
        # SpecForge may say it by the weight of the loss alone.
        confident = options.optional_number("confidence_head_alpha", low=0.0, high=1e6) not in (None, 0.0)
        for key in ("enable_confidence_head", "use_confidence_head"):
            said = options.optional_flag(key)
            confident = confident if said is None else said
        sees = confident and options.flag("confidence_head_with_markov", rank > 0)
        if sees and not rank:
            raise options.fail("confidence_head_with_markov", "false where markov_rank is 0")
        return cls(config=config, kind=kind, rank=rank, confident=confident, confidence_sees_token=sees)

    def holding(self, names: Iterable[str], where: str) -> Self:
        names = set(names)
        return replace(super().holding(names, where), confidence_bias=_CONFIDENCE + "bias" in names)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        c, r, shapes = self.config, self.rank, super().shapes()
        if self.kind:
            shapes |= {"markov_head.markov_w1.weight": (c.vocab_size, r), "markov_head.markov_w2.weight": (c.head_vocab, r)}
        if self.kind in _MIXERS:
            (out, inputs), name = self._mixer, f"markov_head.{_MIXERS[self.kind]}."
            shapes |= {name + "weight": (out, inputs), name + "bias": (out,)}
        if self.confident:
            shapes[_CONFIDENCE + "weight"] = (1, self._confidence_width)
            if self.confidence_bias:
                shapes[_CONFIDENCE + "bias"] = (1,)
        return shapes

    @property
    def _mixer(self) -> tuple[int, int]:
        r, d = self.rank, self.config.width
        return (r, d + r) if self.kind == "gated" else (3 * r, 2 * r + d)

    @property
    def _confidence_width(self) -> int:
        return self.config.width + self.rank * self.confidence_sees_token

    def param_specs(self, cut: Partition, dtype: Any) -> Params:
        params = super().param_specs(cut, dtype)
        if self.kind:  # the first table is whole on every rank: it is read at each slot, and a sum of ranks costs more
            params["before"] = spec(dtype, (self.config.vocab_size, None), (self.rank, None))
            params["bias"] = spec(dtype, (self.head_size(cut), "vocab"), (self.rank, None))
        if self.kind in _MIXERS:
            out, inputs = self._mixer
            params |= {"mix": spec(dtype, (out, None), (inputs, None)), "mix_bias": spec(dtype, (out, None))}
        if self.confident:
            params["confidence"] = spec(dtype, (1, None), (self._confidence_width, None))
            if self.confidence_bias:
                params["confidence_bias"] = spec(dtype, (1, None))
        return params

    def fuse(self, read: Read, cut: Partition, path: tuple) -> np.ndarray:
        match path:
            case ("before",):
                return read("markov_head.markov_w1.weight")
            case ("bias",):
                return cut_.pad_axis(read("markov_head.markov_w2.weight"), 0, self.head_size(cut))
            case ("mix",) | ("mix_bias",):
                return read(f"markov_head.{_MIXERS[self.kind]}." + ("weight" if path == ("mix",) else "bias"))
            case ("confidence",) | ("confidence_bias",):
                return read(_CONFIDENCE + ("weight" if path == ("confidence",) else "bias"))
        return super().fuse(read, cut, path)

    def propose(self, params: Params, shared: Shared, cache: Any, anchor: jax.Array, position: jax.Array, live: jax.Array,
                noise: Noise, around: Surroundings) -> Proposal:
        states = self.states(params, shared, cache, anchor, position, around)
        logits, ids = self.logits(params, shared, states, around)

        def walk(carry: tuple, slot: tuple) -> tuple:
            before, memory = carry
            k, logits, y = slot
            e = params["before"][before] if self.kind else None
            bias, memory = self.bias(params, memory, e, y)
            scores = logits if bias is None else logits + bias
            token = draw(scores, ids, k, noise, around, split=True)
            return (token, memory), (token, self.confidence(params, e, y))

        by_slot = lambda x: jnp.moveaxis(x, 1, 0)  # noqa: E731
        memory = jnp.zeros((anchor.shape[0], self.rank if self.kind == "rnn" else 0), states.dtype)
        _, (path, confidence) = lax.scan(walk, (anchor, memory), (jnp.arange(self.block), by_slot(logits), by_slot(states)),
                                         unroll=not around.branches)
        return Proposal(tokens=by_slot(path), count=jnp.where(live, self.block, 0),
                        confidence=by_slot(confidence) if self.confident else None)

    def bias(self, params: Params, memory: jax.Array, e: jax.Array | None, y: jax.Array) -> tuple[jax.Array | None, jax.Array]:
        """This rank's f32 biases [S, C] behind tokens of rows e [S, r] at states y [S, D], and the next memory."""
        if e is None:
            return None, memory
        e, memory = self.mixed(params, memory, e, y)
        return product(e, params["bias"]), memory

    def mixed(self, params: Params, memory: jax.Array, e: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
        """What the second table is multiplied with, [S, r], and the next memory."""
        if self.kind == "gated":
            e = jax.nn.sigmoid(linear(jnp.concatenate([y, e], -1), params["mix"], params["mix_bias"])) * e
        elif self.kind == "rnn":
            gate, new, out = jnp.split(linear(jnp.concatenate([memory, e, y], -1), params["mix"], params["mix_bias"]), 3, axis=-1)
            gate, e = jax.nn.sigmoid(gate), jnp.tanh(out)
            memory = gate * memory + (1 - gate) * jnp.tanh(new)
        return e, memory

    def confidence(self, params: Params, e: jax.Array | None, y: jax.Array) -> jax.Array:
        """f32 [S]; nothing, [S, 0], of a drafter that has no confidence."""
        if not self.confident:
            return jnp.zeros((y.shape[0], 0))
        return jax.nn.sigmoid(self.confidence_score(params, e, y))

    def confidence_score(self, params: Params, e: jax.Array | None, y: jax.Array) -> jax.Array:
        """The confidence before its sigmoid, f32 [S]."""
        seen = jnp.concatenate([y, e], axis=-1) if self.confidence_sees_token else y
        score = product(seen, params["confidence"])[:, 0]
        return score + params["confidence_bias"].astype(jnp.float32) if self.confidence_bias else score
