"""The one pipeline by which the target draws its own token at every row of a step.

penalties -> minimum length -> bias -> temperature -> top-k -> top-p -> min-p -> argmax (of Gumbel-perturbed logits
above temperature 0). Counts for the penalties are those of the committed tokens *plus this row's ancestors*, so that
a token drawn behind three drafts is the token that would be drawn after they were committed.

Stages nobody in the tile asked for are skipped: under `lax.cond`, or by a host that knows the requests and takes a program
without them (`Branches`). Their neutral parameters are exact identities (division by 1, addition of 0, a threshold
below every logit), so a row draws the same whoever its mates are.

What is summed over the vocabulary is summed as integers (`mass.py`); all else is maxima, counts and functions of one logit. A
product that meets a sum is clamped first, by a bound it never reaches: a compiler that contracts products and sums, as
XLA's GPU backend does where both stand in one kernel, would else round it once or twice as its kernels fall out.
"""

from collections.abc import Callable

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from radiance_jax.engine.mass import mass
from radiance_jax.engine.noise import gumbel

NEVER = -jnp.inf
FAR = 1e9  # beyond any penalty; the argument of a clamp that only keeps a product and a sum apart
LEAST_NOISE = -8.0  # gumbel noise is above -3


@dataclass(frozen=True)
class Branches:
    """How each stage is entered: `choice(predicate, yes, no, x)`, as `lax.cond`, or one of the two without a predicate."""

    adjusts: Callable[..., Any] = lax.cond
    warm: Callable[..., Any] = lax.cond
    filters: Callable[..., Any] = lax.cond
    tops: Callable[..., Any] = lax.cond
    top_k: Callable[..., Any] = lax.top_k


def always(predicate: Any, yes: Callable[[Any], Any], no: Callable[[Any], Any], x: Any) -> Any:
    return yes(x)


def never(predicate: Any, yes: Callable[[Any], Any], no: Callable[[Any], Any], x: Any) -> Any:
    return no(x)


BY_NEED = Branches()


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Draw:
    """Per-sequence sampling state, one entry a slot (S) or, gathered, one a row (R).

    `stops` int32 [S, 16], -1 where unused; `bias` f32 and `counts` int32 [S, V'] (output tokens), `seen` bool [S, V']
    (prompt tokens), V' the padded vocabulary.
    """

    temperature: Any
    top_k: Any
    top_p: Any
    min_p: Any
    presence: Any
    frequency: Any
    repetition: Any
    min_tokens: Any
    seed: Any  # uint32 [S, 2]
    choice: Any
    stops: Any
    adjusts: Any  # bool: has penalties, a minimum length or a bias


def adjust(logits: jax.Array, draw: Draw, counts: jax.Array, seen: jax.Array, bias: jax.Array, slot: jax.Array,
           output_index: jax.Array, ancestors: jax.Array) -> jax.Array:
    """Penalties, minimum length and bias. `draw` is by row; counts, seen, bias [S, V'] are by slot; ancestors [R, K]
    are the draft tokens before this row (-1: none)."""
    width = logits.shape[-1]
    row = jnp.arange(logits.shape[0])[:, None]
    count = counts[slot].at[row, jnp.where(ancestors >= 0, ancestors, width)].add(1, mode="drop")
    present = (count > 0) | seen[slot]
    factor = jnp.where(present, draw.repetition[:, None], 1.0)
    logits = jnp.where(logits > 0, logits / factor, logits * factor)
    logits = logits - jnp.clip(draw.frequency[:, None] * count, -FAR, FAR) - jnp.where(count > 0, draw.presence[:, None], 0.0)
    logits = logits + bias[slot]
    early = (output_index < draw.min_tokens)[:, None] & (draw.stops >= 0)
    return logits.at[row, jnp.where(early, draw.stops, width)].set(NEVER, mode="drop")


def _sortable(x: jax.Array) -> jax.Array:
    """f32 to int32 with the same order."""
    bits = lax.bitcast_convert_type(jnp.where(x == 0, 0.0, x), jnp.int32)  # one zero only
    return jnp.where(bits < 0, bits ^ jnp.int32(0x7FFFFFFF), bits)


def _largest_threshold(keys: jax.Array, enough) -> jax.Array:
    """The largest int32 t per row with `enough(keys >= t)`; `enough` is monotone. Exact bisection in 32 steps, so
    that no sort is needed and ties at the threshold are kept together."""
    low = jnp.full(keys.shape[:1], jnp.iinfo(jnp.int32).min, jnp.int32)
    high = jnp.full(keys.shape[:1], jnp.iinfo(jnp.int32).max, jnp.int32)

    def halve(_, bounds):
        low, high = bounds
        middle = (low >> 1) + (high >> 1) + ((low | high) & 1)  # rounded up, without overflow
        ok = enough(keys >= middle[:, None])
        return jnp.where(ok, middle, low), jnp.where(ok, high, middle - 1)

    return lax.fori_loop(0, 32, halve, (low, high))[0]


def keep_likely(logits: jax.Array, draw: Draw) -> jax.Array:
    """top-k, then top-p of what is left, then min-p of what is left; the rest becomes -inf. Ties at an edge stay."""
    keys = _sortable(logits)
    limited = (draw.top_k > 0) & (draw.top_k < logits.shape[-1])
    k = jnp.where(limited, draw.top_k, 0)
    edge = _largest_threshold(keys, lambda kept: kept.sum(-1) >= k)
    logits = jnp.where(limited[:, None] & (keys < edge[:, None]), NEVER, logits)
    weight = jnp.exp(logits - logits.max(-1, keepdims=True))
    goal = jnp.maximum(draw.top_p * mass(weight), 1e-30)  # the likeliest token, of weight 1, always stays
    edge = _largest_threshold(keys, lambda kept: mass(jnp.where(kept, weight, 0)) >= goal)
    logits = jnp.where((draw.top_p < 1)[:, None] & (keys < edge[:, None]), NEVER, logits)
    return jnp.where(weight < draw.min_p[:, None], NEVER, logits)


def sample(logits: jax.Array, draw: Draw, output_index: jax.Array, how: Branches = BY_NEED) -> jax.Array:
    """Adjusted f32 logits [R, V'] to the drawn token ids [R]. Ties go to the lowest id."""

    def warm(logits):
        hot = draw.temperature > 0
        scaled = logits / jnp.where(hot, draw.temperature, 1.0)[:, None]
        filtered = (draw.top_k > 0) | (draw.top_p < 1) | (draw.min_p > 0)
        scaled = how.filters((hot & filtered).any(), lambda x: keep_likely(x, draw), lambda x: x, scaled)
        noise = gumbel((draw.seed[:, 0], draw.seed[:, 1]), draw.choice, output_index, logits.shape[-1])
        perturbed = scaled + jnp.maximum(noise, LEAST_NOISE)
        return jnp.where(hot, jnp.argmax(perturbed, -1), jnp.argmax(logits, -1)).astype(jnp.int32)

    return how.warm((draw.temperature > 0).any(), warm, lambda x: jnp.argmax(x, -1).astype(jnp.int32), logits)


def top_by_rounds(logits: jax.Array, count: int) -> tuple[jax.Array, jax.Array]:
    """`lax.top_k` of f32 [R, V] by one maximum a round, for GPUs, where XLA sorts the whole vocabulary."""
    ids, rows = jnp.arange(logits.shape[-1], dtype=jnp.int32)[None], logits.shape[0]

    def find(i, found):
        values, at = found
        value, last = values[:, i - 1][:, None], at[:, i - 1][:, None]
        left = (i == 0) | (logits < value) | (logits == value) & (ids > last)
        best = jnp.argmax(jnp.where(left, logits, NEVER), -1).astype(jnp.int32)
        value = jnp.take_along_axis(logits, best[:, None], axis=-1)[:, 0]
        return values.at[:, i].set(value), at.at[:, i].set(best)

    return lax.fori_loop(0, count, find, (jnp.zeros((rows, count), jnp.float32), jnp.zeros((rows, count), jnp.int32)))


def raw_logprobs(logits: jax.Array, label: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The log-normaliser [R] of raw f32 logits [R, V'] and the log-probability [R] of `label` [R]."""
    top = logits.max(-1)
    total = mass(jnp.exp(logits - top[:, None]))  # at least 1, so that the clamp below changes nothing
    normaliser = top + jnp.maximum(jnp.log(total), 0.0)
    return normaliser, jnp.take_along_axis(logits, label[:, None], axis=-1)[:, 0] - normaliser
