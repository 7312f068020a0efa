"""What a drafter would have got accepted, under any reading of it, over texts that the target wrote: no engine, no verifying.

A draft is accepted iff it equals the target's own token, and the texts are the target's own. So the acceptance at an anchor
is the number of drafts that agree with the text behind it, and a walk over the anchors takes the steps that the engine would
have taken with the same text. All anchors of all texts are drafted from, not only those of the walk.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from radiance_jax import collectives
from radiance_jax.bench.doctor_readings import Reading
from radiance_jax.engine.noise import gumbel_at
from radiance_jax.mesh import TENSOR_AXIS, make_mesh, zeros
from radiance_jax.models import llama
from radiance_jax.models.config import RopeConfig
from radiance_jax.models.load import load_params, place_params
from radiance_jax.models.partition import Partition, partition
from radiance_jax.models.rows import Rows, Tiles
from radiance_jax.pallas.paged_attention import AttentionShape, make_segments, paged_attention
from radiance_jax.spec.drafter import Noise, Shared, Surroundings

PAGE, CHUNK = 16, 32  # anchors that draft together
EVERYTHING = 1 << 30  # a window that reaches back to the beginning
ALONE = Surroundings(tp=1, reduce=lambda x: x, gather=lambda x: x, rank=lambda: 0, branches=False)


@dataclass(frozen=True)
class Text:
    """Token ids of a prompt and the target's answer to it; `prompt`: how many are the prompt's. `cut`: the answer has as many
    tokens as were asked for, else the model ended it."""

    id: str
    ids: tuple[int, ...]
    prompt: int
    cut: bool

    @property
    def anchors(self) -> range:
        """Positions of the answer that are followed by drafts. The last token of an answer that is cut is never drafted: the
        step that draws it needs none."""
        return range(self.prompt, len(self.ids) - 1 - self.cut)

    def is_new(self) -> list[bool]:
        """By anchor: whether the token behind it, after the same two tokens, was not in the text before.

        In:  5 6 7 5 6 7 8, anchors from the second 5    Out: new, not new, new (5 after 6 7; 6 7 after 5; 8)
        """
        seen, new = set(), []
        for at in range(1, len(self.ids) - 1):
            three = self.ids[at - 1:at + 2]
            if at in self.anchors:
                new.append(three not in seen)
            seen.add(three)
        return new


@dataclass(frozen=True)
class Accepted:
    """Drafts accepted at every anchor of every text, at most `most`."""

    texts: tuple[Text, ...]
    counts: tuple[tuple[int, ...], ...]
    most: int

    def means(self) -> np.ndarray:
        """By text, over all its anchors."""
        return np.array([np.mean(each) for each in self.counts])

    def means_of_new_text(self) -> np.ndarray:
        """By text, over the anchors whose next token no copy would have given; NaN where there is none."""
        return np.array([np.mean(kept) if (kept := [c for c, new in zip(counts, text.is_new(), strict=True) if new]) else np.nan
                         for text, counts in zip(self.texts, self.counts, strict=True)])

    def walk(self) -> list[list[int]]:
        """By text: drafts accepted at each step with drafts of the engine's way through it.

        In:  counts 2, 0, 1, 0, 0    Out: 2, 0, 0 (from anchors 0, 3 and 4)
        """
        ways = []
        for counts in self.counts:
            at, way = 0, []
            while at < len(counts):
                way.append(counts[at])
                at += counts[at] + 1
            ways.append(way)
        return ways

    def mean_of_walk(self) -> float:
        steps = [step for way in self.walk() for step in way]
        return sum(steps) / max(len(steps), 1)

    def tokens_per_verify(self) -> float:
        """Tokens behind each answer's first, over all steps: one more without drafts where they leave just one token to draw."""
        steps = sum(len(way) + (text.cut and sum(way) + len(way) == len(counts))
                    for text, way, counts in zip(self.texts, self.walk(), self.counts, strict=True))
        return sum(len(text.ids) - text.prompt - 1 for text in self.texts) / max(steps, 1)


@dataclass
class Replay:
    """The target's weights and the drafter's, and the target's states behind every layer wanted, over texts by their kind."""

    config: Any
    cut: Partition
    params: Any
    draft: Any
    states: dict[str, dict[int, jax.Array]]  # kind of texts -> layer -> [B, T, D]
    ids: dict[str, np.ndarray]
    texts: dict[str, tuple[Text, ...]]
    temperature: float = 0.0
    seed: int = 0

    @classmethod
    def load(cls, model: Any, config: Any, drafter: Any, read: Callable[[str], np.ndarray], dtype: Any,
             texts: dict[str, Sequence[Text]], layers: Sequence[int], temperature: float = 0.0, seed: int = 0) -> "Replay":
        cut, mesh = partition(config, 1), make_mesh(1)
        params = load_params(config, cut, model, mesh, dtype)
        draft = place_params(drafter.param_specs(cut, dtype), lambda path: drafter.fuse(read, cut, path), mesh)
        made = cls(config, cut, params, draft, {}, {}, {}, temperature, seed)
        longest = max(len(text.ids) for each in texts.values() for text in each)
        length = -(-(longest + 2) // PAGE) * PAGE  # one place more than a shifted context needs
        run = _states(config, cut, mesh, dtype, length, tuple(layers))
        for name, each in texts.items():
            padded = np.zeros((len(each), length), np.int32)
            for row, text in zip(padded, each, strict=True):
                row[:len(text.ids)] = text.ids
            streams = [run(params, row) for row in padded]
            made.texts[name], made.ids[name] = tuple(each), padded
            made.states[name] = {layer: jnp.stack([one[i] for one in streams]) for i, layer in enumerate(layers)}
        return made

    def accepted(self, reading: Reading, most: int) -> Accepted:
        """What `reading` gets accepted, of at most `most` drafts an anchor."""
        texts, ids = self.texts[reading.texts], self.ids[reading.texts]
        taps = jnp.stack([self.states[reading.texts][tap] for tap in reading.taps], axis=2)
        program, draft, switches = self._prepared(reading)
        rings = _contexts(_for_context(program), self.cut, draft, switches, taps, reading.offset, reading.offset + reading.rows)
        places = [(row, at) for row, text in enumerate(texts) for at in text.anchors]
        found = []
        for first in range(0, len(places), CHUNK):
            some = places[first:first + CHUNK]
            row, at = np.array(some + some[-1:] * (CHUNK - len(some)), np.int32).T
            prompt = np.array([texts[i].prompt for i in row], np.int32)
            drafts = _drafts(program, self.config, self.params, draft, switches, rings, row, ids[row, at], at, prompt,
                             self.temperature, self.seed)
            found += np.asarray(drafts)[:len(some), :most].tolist()
        counts: list[list[int]] = [[] for _ in texts]
        for (row, at), drafts in zip(places, found, strict=True):
            behind = texts[row].ids[at + 1:len(texts[row].ids) - texts[row].cut]
            counts[row].append(next((i for i, (x, y) in enumerate(zip(drafts, behind, strict=False)) if x != y),
                                    min(len(drafts), len(behind))))
        return Accepted(texts, tuple(map(tuple, counts)), most)

    def _prepared(self, reading: Reading) -> tuple[Any, Any, "Switches"]:
        """The drafter with as much as possible of the reading as values, so that few programs serve all readings: the mask
        token's embedding as a parameter, windows and rotary frequencies as arguments."""
        drafter, c, draft = reading.drafter, reading.drafter.config, self.draft
        frequencies, factor = drafter.rotary()
        switches = Switches(windows=np.array([window or EVERYTHING for window in c.windows], np.int32),
                            frequencies=np.asarray(frequencies, np.float32), factor=np.float32(factor))
        if not c.own_mask:
            draft = draft | {"mask": draft.get("embed", self.params["embed"])[c.mask_id]}
        plain = replace(c, windows=(None,) * c.num_layers, rope=RopeConfig(), own_mask=True, mask_id=0)
        return replace(drafter, config=plain), draft, switches


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class Switches:
    """Of a reading, what a program takes as values: windows int32 [L], rotary frequencies f32 [H/2] and their factor."""

    windows: Any
    frequencies: Any
    factor: Any

    def on(self, drafter: Any) -> Any:
        """The drafter, with these traced values where it has constants."""
        switches = self

        class Switched(type(drafter)):
            def rotary(self) -> tuple[Any, Any]:
                return switches.frequencies, switches.factor

        config = replace(drafter.config, windows=tuple(switches.windows[i] for i in range(drafter.config.num_layers)))
        return Switched(**vars(drafter) | {"config": config})


def _for_context(drafter: Any) -> Any:
    """The same drafter without the switches that its context does not depend on."""
    c = drafter.config
    return replace(drafter, config=replace(c, causal=(False,) * c.num_layers, shifted=False, embedding_scale=1.0))


def _states(config: Any, cut: Partition, mesh: Any, dtype: Any, length: int, layers: tuple[int, ...]) -> Callable:
    """A function of parameters and ids [T] to the residual stream [L, T, D] behind each of `layers`."""
    cache = llama.cache_spec(config, cut, length // PAGE, PAGE, dtype)
    place, first = jnp.arange(length, dtype=jnp.int32), jnp.zeros(1, jnp.int32)
    segments = make_segments(first, first + length, first, 8, length // 8 + 1)
    attention = AttentionShape(height=8, loop=jax.default_backend() == "cpu")

    def run(params: Any, caches: Any, ids: jax.Array) -> jax.Array:
        around = llama.Surroundings(
            tiles=Tiles(((length, 1),)), reduce=lambda x: collectives.all_reduce(x, TENSOR_AXIS), rank=lambda: 0,
            attend=lambda q, c: paged_attention(q, c, place[None, :length // PAGE], segments, attention),
            reduce_add=lambda x, residual, bias=None: collectives.all_reduce_add(x, residual, TENSOR_AXIS, bias=bias))
        rows = Rows(ids, place, place // PAGE, place % PAGE)
        return jnp.stack(llama.forward(params, config, cut, rows, caches, around, layers)[2])

    step = jax.jit(jax.shard_map(run, mesh=mesh, in_specs=jax.P(), out_specs=jax.P(), check_vma=False))
    empty = (zeros(cache, mesh),) * config.num_layers
    return lambda params, ids: step(params, empty, jnp.asarray(ids))


@partial(jax.jit, static_argnums=(0, 1))
def _contexts(drafter: Any, cut: Partition, draft: Any, switches: Switches, taps: jax.Array, offset: Any,
              back: Any) -> tuple[jax.Array, ...]:
    """Rings [B, T, 2, G, H] as long as the texts, of taps [B, T, n, D]. The state of position p is turned to p + `offset` and
    lies at p + `offset` - `back`."""
    texts, length = taps.shape[:2]
    slot, position = jnp.repeat(jnp.arange(texts), length), jnp.tile(jnp.arange(length), texts)
    shapes = [(texts, length, *spec.shape[2:]) for spec in drafter.cache_specs(cut, texts, length, taps.dtype)]
    rings = switches.on(drafter).observe(draft, tuple(jnp.zeros(shape, taps.dtype) for shape in shapes),
                                         taps.reshape(-1, *taps.shape[2:]), slot, position + offset,
                                         jnp.ones(texts * length, bool), ALONE)
    return tuple(jnp.roll(ring, -back, axis=1) for ring in rings)


@partial(jax.jit, static_argnums=(0, 1, 10))
def _drafts(drafter: Any, config: Any, params: Any, draft: Any, switches: Switches, rings: tuple[jax.Array, ...],
            row: jax.Array, anchor: jax.Array, position: jax.Array, prompt: jax.Array, temperature: float,
            seed: Any) -> jax.Array:
    """Drafts [C, N] behind anchors [C] at `position` of texts `row`."""
    count = anchor.shape[0]

    def gumbel(k: Any, ids: jax.Array) -> jax.Array:
        if temperature == 0:
            return jnp.zeros((count, ids.shape[-1]))
        low, high = jnp.full(count, seed, jnp.uint32), jnp.zeros(count, jnp.uint32)
        return gumbel_at((low, high), jnp.zeros(count, jnp.int32), position + 1 + k - prompt, ids)

    def head(x: jax.Array) -> jax.Array:
        logits = llama.logits(params, x.reshape(-1, config.width))
        real = jnp.arange(logits.shape[-1]) < config.vocab_size
        return jnp.where(real, logits, -jnp.inf).reshape(*x.shape[:-1], -1)

    shared = Shared(embed=lambda ids: params["embed"][ids], head=head)
    noise = Noise(temperature=jnp.full(count, temperature, jnp.float32), gumbel=gumbel)
    return switches.on(drafter).propose(draft, shared, tuple(ring[row] for ring in rings), anchor, position,
                                        jnp.ones(count, bool), noise, ALONE).tokens
