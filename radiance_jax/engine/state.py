"""Everything that lives on the device between steps, described once; and the packing of what the host sends.

Token history, lengths and positions live here, so that the host can send a step before it has read the last one.
One int32 array goes in per step and one comes out.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import numpy as np

from radiance_jax.engine.request import MAX_LOGIT_BIAS, SamplingParams
from radiance_jax.engine.sampling import Draw
from radiance_jax.mesh import ArraySpec, replicated

STOPS = 16  # stop ids per sequence on the device: the request's and the model's own
IDLE, PREFILL, DECODE = 0, 1, 2
LOOKUP, NEURAL = 0, 1  # who made a slot's drafts
PROPOSERS = ("lookup", "neural")


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class State:
    """S slots. `tokens` [S, T'] is the history with room for drafts behind it; `length` counts committed tokens,
    `computed` those whose keys and values are in the cache, `prompt` those of the original prompt, `limit` how many
    there may be. `table` [S, M] maps pages of positions to pages of the pool."""

    tokens: Any
    length: Any
    computed: Any
    prompt: Any
    limit: Any
    done: Any
    wants_top: Any
    wants_prompt: Any
    table: Any
    draw: Draw
    counts: Any
    seen: Any
    bias: Any


@dataclass(frozen=True, kw_only=True)
class Capacity:
    """Sizes fixed at start-up. None of them changes a bit of an answer."""

    slots: int  # S
    length: int  # T, the longest sequence served
    rows: int  # R, rows of the largest step
    budget: int | None = None  # rows the scheduler may fill, at most R (None: R)
    pages: int  # P, page 0 is the bin of dead rows
    page_size: int
    depth: int  # K, the deepest draft
    tops: int = 20

    @property
    def table_width(self) -> int:
        return -(-self.length // self.page_size)

    @property
    def updates(self) -> int:
        """Page-table entries one step may set: what two steps of drafts can add to every slot."""
        return self.slots * (2 + 2 * (1 + self.depth) // self.page_size)


def state_specs(capacity: Capacity, padded_vocab: int) -> State:
    s, v = capacity.slots, padded_vocab

    def one(dtype) -> ArraySpec:
        return replicated((s,), dtype)

    draw = Draw(
        temperature=one(np.float32), top_k=one(np.int32), top_p=one(np.float32), min_p=one(np.float32),
        presence=one(np.float32), frequency=one(np.float32), repetition=one(np.float32), min_tokens=one(np.int32),
        seed=replicated((s, 2), np.uint32), choice=one(np.int32), stops=replicated((s, STOPS), np.int32), adjusts=one(np.bool_))
    return State(
        tokens=replicated((s, capacity.length + capacity.depth + 1), np.int32), length=one(np.int32),
        computed=one(np.int32), prompt=one(np.int32), limit=one(np.int32), done=one(np.bool_), wants_top=one(np.bool_),
        wants_prompt=one(np.bool_), table=replicated((s, capacity.table_width), np.int32), draw=draw,
        counts=replicated((s, v), np.int32), seen=replicated((s, v), np.bool_), bias=replicated((s, v), np.float32))


# ---- admission: one int32 vector ------------------------------------------------------------------------------

_INTS = ("slot", "length", "computed", "prompt", "limit", "wants_top", "wants_prompt", "top_k", "min_tokens", "seed_low",
         "seed_high", "choice", "adjusts")
_FLOATS = ("temperature", "top_p", "min_p", "presence", "frequency", "repetition")


def admission_size(capacity: Capacity) -> int:
    return len(_INTS) + len(_FLOATS) + STOPS + 2 * MAX_LOGIT_BIAS + capacity.table_width + capacity.length


def pack_admission(capacity: Capacity, *, slot: int, pages: Sequence[int], tokens: Sequence[int], prompt: int, limit: int,
                   params: SamplingParams, seed: int, choice: int, stops: Sequence[int], computed: int = 0) -> np.ndarray:
    """A sequence's whole request for a slot. `tokens` are all its committed tokens (after a preemption more than
    the prompt), of which `computed` have their keys and values in the cache."""
    ints = dict(
        slot=slot, length=len(tokens), computed=computed, prompt=prompt, limit=limit,
        wants_top=bool(params.logprobs) or bool(params.prompt_logprobs), wants_prompt=params.prompt_logprobs is not None,
        top_k=max(params.top_k, 0), min_tokens=params.min_tokens, seed_low=seed & 0xFFFFFFFF,
        seed_high=(seed >> 32) & 0xFFFFFFFF, choice=choice, adjusts=params.adjusts)
    floats = dict(temperature=params.temperature, top_p=params.top_p, min_p=params.min_p, presence=params.presence_penalty,
                  frequency=params.frequency_penalty, repetition=params.repetition_penalty)
    packed = np.full(admission_size(capacity), -1, np.int32)
    head = [int(ints[name]) & 0xFFFFFFFF for name in _INTS]
    head += [struct.unpack("<I", struct.pack("<f", floats[name]))[0] for name in _FLOATS]
    packed[: len(head)] = np.array(head, np.uint32).view(np.int32)
    at = len(head)
    packed[at:at + len(stops)] = stops
    at += STOPS
    if params.logit_bias:
        ids, values = zip(*params.logit_bias, strict=True)
        packed[at:at + len(ids)] = ids
        packed[at + MAX_LOGIT_BIAS:at + MAX_LOGIT_BIAS + len(ids)] = np.array(values, np.float32).view(np.int32)
    at += 2 * MAX_LOGIT_BIAS
    packed[at:at + capacity.table_width] = 0
    packed[at:at + len(pages)] = pages
    at += capacity.table_width
    packed[at:at + len(tokens)] = tokens
    return packed


def unpack_admission(capacity: Capacity, packed: jax.Array) -> dict[str, jax.Array]:
    """The reverse, inside the admission program."""
    fields: dict[str, jax.Array] = {name: packed[i] for i, name in enumerate(_INTS)}
    at = len(_INTS)
    for i, name in enumerate(_FLOATS):
        fields[name] = jax.lax.bitcast_convert_type(packed[at + i], np.float32)
    at += len(_FLOATS)
    fields["stops"] = packed[at:at + STOPS]
    at += STOPS
    fields["bias_ids"] = packed[at:at + MAX_LOGIT_BIAS]
    fields["bias_values"] = jax.lax.bitcast_convert_type(packed[at + MAX_LOGIT_BIAS:at + 2 * MAX_LOGIT_BIAS], np.float32)
    at += 2 * MAX_LOGIT_BIAS
    fields["table"], fields["tokens"] = packed[at:at + capacity.table_width], packed[at + capacity.table_width:]
    return fields


# ---- a step's plan: int32 [S + U, 3] --------------------------------------------------------------------------


def pack_plan(capacity: Capacity, slots: Sequence[tuple[int, int, int, int]],
              pages: Sequence[tuple[int, int, int]]) -> np.ndarray:
    """`slots`: (slot, mode, chunk, packed depths) of the sequences that take part; `pages`: (slot, index, page) of the page
    table entries to set first."""
    packed = np.full((capacity.slots + capacity.updates, 3), -1, np.int32)
    packed[: capacity.slots] = 0
    if slots:
        taking = np.array(slots, np.int32)  # at once: there may be hundreds
        packed[taking[:, 0]] = taking[:, 1:]
    assert len(pages) <= capacity.updates, "more page-table updates than a step carries"
    if pages:
        packed[capacity.slots:capacity.slots + len(pages)] = pages
    return packed


# ---- a step's results: int32 [R, 2] rows and [S, 7] slots in one vector -----------------------------------------


@dataclass(frozen=True)
class Results:
    """What the host reads of a step: per slot (first drawn row, emitted, ended, drafts, accepted, length, who drafted),
    per row the drawn token and its raw logprob."""

    slots: np.ndarray
    tokens: np.ndarray
    logprobs: np.ndarray

    @cached_property
    def slot_rows(self) -> list[list[int]]:
        """`slots` as plain numbers: with hundreds of slots, taking them out one by one would cost as much as the step."""
        return self.slots.tolist()


SLOT_FIELDS = 7


def unpack_results(capacity: Capacity, packed: np.ndarray) -> Results:
    split = capacity.slots * SLOT_FIELDS
    rows = packed[split:].reshape(2, -1)
    return Results(packed[:split].reshape(capacity.slots, SLOT_FIELDS), rows[0], rows[1].view(np.float32))
