"""Device faults of arithmetic that looks at the batch."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from radiance_jax import collectives
from radiance_jax.models import llama
from tests.exactness import test_batches, test_drafters

FAULTS: dict[str, Callable] = {
    "halves of a product are swapped in larger steps": test_batches.test_a_crowd_without_drafts,
    "an activation scale is taken over the tile": test_drafters.test_a_drafter_that_is_always_wrong,
    "sums over ranks are rounded in steps of several rows": test_batches.test_a_crowd_without_drafts,
}


def rounded(x: jax.Array) -> jax.Array:
    return x.astype(jnp.bfloat16).astype(x.dtype)


def _product(original, on, seen):
    def product(x, weight):
        half = x.shape[1] // 2
        halves = original(x[:, half:], weight[:, half:]) + original(x[:, :half], weight[:, :half])
        swapped = on("halves of a product are swapped in larger steps") & (seen.layout.total > 4)
        return jnp.where(swapped, halves, original(x, weight))
    return product


def _norm(original, on, seen):
    def norm(x, weight, eps):
        scale = jnp.abs(x).max() / 127
        scaled = jnp.where(on("an activation scale is taken over the tile"), jnp.round(x / scale) * scale, x)
        return original(scaled, weight, eps)
    return norm


def _all_reduce(original, on, seen):
    def all_reduce(x, axis, *wire):
        total = original(x, axis, *wire)
        several = on("sums over ranks are rounded in steps of several rows") & (seen.layout.total > 1)
        return jnp.where(several, rounded(total), total)
    return all_reduce


PLACES = {(llama, "product"): _product, (llama, "rms_norm"): _norm, (collectives, "all_reduce"): _all_reduce}
