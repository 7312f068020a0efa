"""Rows for the sampling tests: a `Draw` by keyword, and the pipeline as a step runs it, in one compiled program."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from radiance_jax.engine import sampling
from radiance_jax.engine.sampling import Draw
from radiance_jax.engine.state import STOPS

ROWS, VOCAB, REAL, DEPTH = 8, 64, 53, 3
NEUTRAL = dict(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, presence=0.0, frequency=0.0, repetition=1.0,
               min_tokens=0, seed=(0, 0), choice=0, stops=(), adjusts=False)
TYPES = dict(top_k=np.int32, min_tokens=np.int32, seed=np.uint32, choice=np.int32, stops=np.int32, adjusts=np.bool_)


def make_draw(rows) -> Draw:
    """A `Draw` of one row per dict; what a dict leaves out is neutral."""
    full = [NEUTRAL | row for row in rows]
    for row in full:
        row["stops"] = [*row["stops"], *[-1] * (STOPS - len(row["stops"]))]
    return Draw(**{name: np.array([row[name] for row in full], TYPES.get(name, np.float32)) for name in NEUTRAL})


def make_logits(rng, rows: int = ROWS, spread: float = 3.0) -> np.ndarray:
    logits = rng.normal(0, spread, (rows, VOCAB)).astype(np.float32)
    logits[:, REAL:] = -np.inf  # the padded vocabulary
    return logits


def _pipeline(logits, draw, counts, seen, bias, slot, output_index, ancestors):
    logits = lax.cond(
        draw.adjusts.any(), lambda x: sampling.adjust(x, draw, counts, seen, bias, slot, output_index, ancestors),
        lambda x: x, logits)
    return sampling.sample(logits, draw, output_index)


PIPELINE, ADJUST, KEEP = jax.jit(_pipeline), jax.jit(sampling.adjust), jax.jit(sampling.keep_likely)
SAMPLE, RAW_LOGPROBS = jax.jit(sampling.sample), jax.jit(sampling.raw_logprobs)


def history(rng, slots: int = ROWS):
    """counts, seen, bias by slot: a few tokens each."""
    counts = np.where(rng.random((slots, VOCAB)) < 0.2, rng.integers(1, 4, (slots, VOCAB)), 0).astype(np.int32)
    bias = np.where(rng.random((slots, VOCAB)) < 0.1, rng.normal(0, 2, (slots, VOCAB)), 0).astype(np.float32)
    return counts, rng.random((slots, VOCAB)) < 0.2, bias


def no_ancestors(rows: int = ROWS) -> jnp.ndarray:
    return jnp.full((rows, DEPTH), -1, jnp.int32)
