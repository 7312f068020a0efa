"""Faults in how a drafter is fed and asked. None can change an output; each lowers acceptance, and names the test of
`test_neural.py` that then fails. As in `faults/` all are compiled into one program and chosen by a traced number."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import jax
import jax.numpy as jnp
import numpy as np

from radiance_jax.bench import forced
from radiance_jax.engine import drafting, steps
from radiance_jax.engine.hooks import Hooks
from radiance_jax.engine.state import PREFILL
from tests.exactness import lab

FAULTS: dict[str, str] = {
    "rows of refused drafts are observed": "test_refused_drafts_leave_no_trace",
    "the newest row is observed a step late": "test_all_is_accepted_where_the_drafter_is_right",
    "the rows of a prompt are not observed": "test_a_slots_next_owner_sees_nothing_of_the_last",
    "only a prompt's first chunk is observed": "test_a_prompt_in_chunks_is_observed_whole",
    "rows are observed for the slot beside": "test_all_is_accepted_where_the_drafter_is_right",
    "context lies one position on": "test_all_is_accepted_where_the_drafter_is_right",
    "a sequence that comes back is not observed again": "test_a_preempted_sequence_is_observed_again",
    "the anchor is the token before": "test_the_drafter_draws_with_the_targets_noise",
    "noise of the place before": "test_the_drafter_draws_with_the_targets_noise",
    "noise from the seed of the neighbour": "test_the_drafter_draws_with_the_targets_noise",
}
NUMBER = {name: number for number, name in enumerate(FAULTS, 1)}


def hooks(depth: int) -> Hooks:
    """Those of the laboratory, and all faults."""
    table = forced.table(lab.SCRIPTS, lab.ENTRIES, depth)
    return Hooks(knobs=table | {"fault": np.int32(0)}, propose=forced.propose, tracing=tracing)


@contextmanager
def tracing(knobs: dict[str, Any]) -> Iterator[None]:
    seen = SimpleNamespace()

    def on(name: str) -> jax.Array:
        return knobs["fault"] == NUMBER[name]

    places = {(steps, "_propose"): _step_begins, (drafting, "propose"): _propose, (drafting, "observe"): _observe,
              (drafting, "gumbel_at"): _gumbel_at}
    with ExitStack() as stack:
        for (module, name), make in places.items():
            stack.enter_context(patch.object(module, name, make(getattr(module, name), on, seen)))
        yield


@contextmanager
def inject(name: str, where: "lab.Lab") -> Iterator[None]:
    where.turn(fault=np.int32(NUMBER[name]))
    try:
        yield
    finally:
        where.turn(fault=np.int32(0))


def _step_begins(original, on, seen):
    def propose(params, draft, state, mode, *rest):
        seen.mode, seen.state = mode, state
        return original(params, draft, state, mode, *rest)
    return propose


def _propose(original, on, seen):
    def propose(knows, draft_params, cache, params, state, wants):
        before = on("the anchor is the token before")
        return original(knows, draft_params, cache, params, _shifted(state, before), wants)
    return propose


def _shifted(state, before):
    """In every anchor's place the token before it."""
    slot = jnp.arange(state.length.shape[0])
    at = jnp.maximum(state.length - 1, 0)
    token = jnp.where(before, state.tokens[slot, jnp.maximum(at - 1, 0)], state.tokens[slot, at])
    return replace(state, tokens=state.tokens.at[slot, at].set(token))


def _observe(original, on, seen):
    def observe(knows, draft_params, cache, taps, slot, position, keep, length, total):
        live = jnp.arange(position.shape[0]) < total
        all_rows = on("rows of refused drafts are observed")
        prompt = (seen.mode == PREFILL)[slot]
        again = seen.state.length[slot] > seen.state.prompt[slot]
        lost = (on("the newest row is observed a step late") & (position == length[slot] - 1)) \
            | (on("the rows of a prompt are not observed") & prompt) \
            | (on("only a prompt's first chunk is observed") & prompt & (seen.state.computed[slot] > 0)) \
            | (on("a sequence that comes back is not observed again") & prompt & again)
        keep = jnp.where(all_rows, live, keep) & ~lost
        length = length + jnp.where(all_rows, knows.depth, 0)
        slot = jnp.where(on("rows are observed for the slot beside"), (slot + 1) % lab.SLOTS, slot)
        position = position + on("context lies one position on")
        return original(knows, draft_params, cache, taps, slot, position, keep, length, total)
    return observe


def _gumbel_at(original, on, seen):
    def gumbel_at(seed, choice, output_index, ids):
        beside = on("noise from the seed of the neighbour").astype(jnp.uint32)
        return original((seed[0] + beside, seed[1]), choice, output_index - on("noise of the place before"), ids)
    return gumbel_at
