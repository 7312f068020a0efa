"""Device faults of attention: which keys a row sees, through whose table, and in which precision."""

from collections.abc import Callable
from dataclasses import replace

import jax.numpy as jnp

from radiance_jax.engine import steps
from radiance_jax.engine.state import DECODE, PREFILL
from radiance_jax.models import llama
from radiance_jax.pallas import paged_attention
from tests.exactness import lab, test_batches, test_closure, test_drafters, test_prompts
from tests.exactness.faults.arithmetic import rounded

FAULTS: dict[str, Callable] = {
    "a draft sees its successor": test_drafters.test_a_drafter_that_is_always_wrong,
    "the last block of a run across two is skipped": test_prompts.test_verify_rows_across_the_edge_of_a_page,
    "the page table of the first sequence serves all": test_batches.test_a_crowd_without_drafts,
    "queries are rounded in steps of several rows": test_batches.test_a_crowd_without_drafts,
    "keys are rounded in steps with a prompt": test_closure.test_reading_equals_decoding,
}


def _segments(original, on, seen):
    def segments(start, count, position, height, capacity):
        made = original(start, count, position, height, capacity)
        run = ((seen.mode == DECODE) & (count > 1))[made.slot]
        left = lab.PAGE - made.position % lab.PAGE
        skipped = on("the last block of a run across two is skipped") & run
        return replace(
            made, slot=jnp.where(on("the page table of the first sequence serves all"), made.slot[0], made.slot),
            position=made.position + (on("a draft sees its successor") & run),
            rows=jnp.where(skipped, jnp.minimum(made.rows, left), made.rows))
    return segments


def _attend(original, on, seen):
    def attend(q, *rest):
        rounds = on("queries are rounded in steps of several rows") & (seen.layout.total > 1)
        return original(jnp.where(rounds, rounded(q), q), *rest)
    return attend


def _rotate(original, on, seen):
    def rotate(*arguments):
        turned = original(*arguments)
        rounds = on("keys are rounded in steps with a prompt") & (seen.mode == PREFILL).any()
        return jnp.where(rounds, rounded(turned), turned)
    return rotate


PLACES = {(steps, "make_segments"): _segments, (paged_attention, "_attend"): _attend, (llama, "rotate"): _rotate}
