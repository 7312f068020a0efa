"""Device faults of the rows of a step: what a row reads, where it stands, where its key goes."""

from collections.abc import Callable

import jax.numpy as jnp

from radiance_jax.engine import steps
from radiance_jax.engine.state import DECODE, PREFILL
from tests.exactness import lab, test_drafters, test_prompts

FAULTS: dict[str, Callable] = {
    "a draft row reads the token of its predecessor": test_drafters.test_refusing_at_each_place_of_a_run,
    "the position of a draft is off by one": test_drafters.test_a_drafter_that_is_always_right,
    "rope turns by the row's place in the step": test_drafters.test_a_drafter_that_is_always_right,
    "the key of a draft is written one place on": test_drafters.test_a_drafter_that_is_always_right,
    "a refused draft's key stays": test_drafters.test_a_drafter_that_is_always_wrong,
    "the last accepted draft's key is lost": test_drafters.test_a_drafter_that_is_always_right,
    "the first row of a later chunk is lost": test_prompts.test_chunks_of_a_prompt,
}


def _propose(original, on, seen):
    def propose(params, draft, state, mode, *rest):
        seen.mode, made = mode, original(params, draft, state, mode, *rest)
        _, seen.drafts, seen.drafted, _ = made
        return made
    return propose


def _layout(original, on, seen):
    def layout(count, position, rows):
        made = seen.layout = original(count, position, rows)
        seen.row = jnp.arange(rows)
        seen.inside = seen.row - made.start[made.slot]  # place in the rows of its sequence
        seen.decodes = (seen.mode == DECODE)[made.slot] & made.live
        seen.is_draft = seen.decodes & (seen.inside > 0)
        seen.is_last = seen.inside == made.count[made.slot] - 1
        seen.many = made.count[made.slot] > 1
        return made
    return layout


def _rows(original, on, seen):
    def rows(token, position, page, offset):
        s = seen
        token = jnp.where(on("a draft row reads the token of its predecessor") & s.is_draft, token[s.row - 1], token)
        first = (s.mode == PREFILL)[s.layout.slot] & (s.inside == 0) & (position > 0)
        lost = (on("a refused draft's key stays") & s.decodes & s.many & (s.inside == 0)) \
            | (on("the last accepted draft's key is lost") & s.is_draft & s.is_last) \
            | (on("the first row of a later chunk is lost") & first)
        page = jnp.where(lost, 0, page)
        further = on("the key of a draft is written one place on") & s.is_draft
        offset = jnp.where(further, (offset + 1) % lab.PAGE, offset)
        position = jnp.where(on("the position of a draft is off by one") & s.is_draft, position + 1, position)
        position = jnp.where(on("rope turns by the row's place in the step") & s.decodes, s.row, position)
        return original(token, position, page, offset)
    return rows


PLACES = {(steps, "_propose"): _propose, (steps, "_layout"): _layout, (steps, "Rows"): _rows}
