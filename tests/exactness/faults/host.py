"""Host faults: a patch each, at run time."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from radiance_jax.engine import device, results, scheduler
from radiance_jax.text.output import TextStream
from tests.exactness import test_batches, test_closure, test_drafters, test_endings, test_preemption, test_prompts

FAULTS: dict[str, Callable] = {
    "a page is shared by two sequences": test_batches.test_a_crowd_without_drafts,
    "a page table entry is overwritten when the pool runs low": test_preemption.test_a_pool_that_runs_dry,
    "a run is cut one token behind its stop string": test_endings.test_a_stop_string_at_each_place,
    "a stop string across two steps is missed": test_endings.test_a_stop_string_at_each_place,
    "an end inside a run is reported as the length cap": test_endings.test_a_stop_token_at_each_place,
    "usage counts refused drafts": test_drafters.test_a_drafter_that_is_always_wrong,
    "the logprob of a run's first token serves the run": test_drafters.test_a_drafter_that_is_always_right,
    "a prompt logprob is off by one row": test_closure.test_reading_equals_decoding,
    "prompt logprobs begin anew with each chunk": test_prompts.test_chunks_of_a_prompt,
    "a preempted answer counts as prompt": test_preemption.test_a_preemption_before_each_step,
    "a preempted answer comes back with another seed": test_preemption.test_a_preemption_between_verify_steps,
    "seeds move with the age of the engine": test_batches.test_the_same_request_again,
    "a sequence that ends takes its neighbour's first page along": test_batches.test_more_requests_than_slots,
}


@dataclass(frozen=True)
class Patch:
    """What to replace, and by what, given the original."""

    owner: Any
    name: str
    make: Callable[[Any], Any]


def _shared_page(original):
    def take(pool, count):
        pages = original(pool, count)
        return pages and [*pages[:-1], 1] if pages and len(pages) > 1 else pages
    return take


def _overwritten(original):
    """The first entry of somebody's table becomes its last."""
    def plan(self):
        made = original(self)
        for sequence in self.running:
            if sequence.steps_in_flight and len(sequence.pages) > 2 and self.pool.free < 6:
                made.pages.append((sequence.slot, 0, sequence.pages[-1]))
                break
        return made
    return plan


def _late_cut(original):
    def push(stream, tokens):
        text, kept, stop = original(stream, tokens)
        return text, min(kept + 1, len(tokens)) if stop is not None else kept, stop
    return push


def _forgetful(original):
    def push(stream, tokens):
        stream._stops._held = ""
        return original(stream, tokens)
    return push


def _refused_counted(original):
    def count(reader, sequence, drafts, accepted, *rest):
        original(reader, sequence, drafts, accepted, *rest)
        sequence.stats.completion_tokens += drafts - accepted
    return count


def _read(change: Callable[[Any], Any]):
    def make(original):
        def read(self, pending):
            found, ids, tops = original(self, pending)
            return replace(found, **change(found)), ids, tops
        return read
    return make


def _first_logprob(found) -> dict[str, Any]:
    logprobs = found.logprobs.copy()
    for first, emitted, *_ in found.slots:
        logprobs[first:first + emitted] = logprobs[first]
    return {"logprobs": logprobs}


def _length_for_stop(found) -> dict[str, Any]:
    slots = found.slots.copy()
    slots[:, 2] = np.where((slots[:, 1] > 1) & (slots[:, 2] == results.STOPPED), results.FULL, slots[:, 2])
    return {"slots": slots}


def _prompt_row(original):
    def prompt_logprobs(reader, entry, first, logprob):
        return original(reader, entry, first, lambda row, token, count: logprob(max(row - 1, 0), token, count))
    return prompt_logprobs


def _anew(original):
    def prompt_logprobs(reader, entry, first, logprob):
        if entry.first > 0 and entry.sequence.prompt_logprobs:
            entry.sequence.prompt_logprobs = [None]
        return original(reader, entry, first, logprob)
    return prompt_logprobs


def _admission(change: Callable[[Any], dict[str, Any]]):
    """Other values into the slot than the sequence's own."""
    def make(original):
        def pack(capacity, **values):
            return original(capacity, **values | change(SimpleNamespace(**values)))
        return pack
    return make


class _Ages:
    """How many sequences were admitted so far."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, values) -> dict[str, Any]:
        self.count += 1
        return {"seed": values.seed + self.count}


def _neighbours_pages(original):
    def give(self, sequence):
        slot = sequence.slot
        original(self, sequence)
        if slot is not None and self.running:
            self._lost = self.running[0].slot
    return give


def _lost_table(original):
    def plan(self):
        made = original(self)
        lost = getattr(self, "_lost", None)
        if lost is not None and any(entry.slot == lost for entry in made.entries):
            made.pages.append((lost, 0, 0))
            self._lost = None
        return made
    return plan


PATCHES: dict[str, Callable[[], tuple[Patch, ...]]] = {
    "a page is shared by two sequences": lambda: (
        Patch(device, "pack_admission", _admission(lambda v: {"pages": [1, *v.pages[1:]]})),),
    "a page table entry is overwritten when the pool runs low": lambda: (
        Patch(scheduler.Scheduler, "plan", _overwritten),),
    "a run is cut one token behind its stop string": lambda: (Patch(TextStream, "push", _late_cut),),
    "a stop string across two steps is missed": lambda: (Patch(TextStream, "push", _forgetful),),
    "an end inside a run is reported as the length cap": lambda: (
        Patch(device.Device, "read", _read(_length_for_stop)),),
    "usage counts refused drafts": lambda: (Patch(results.Reader, "_count_verify", _refused_counted),),
    "the logprob of a run's first token serves the run": lambda: (Patch(device.Device, "read", _read(_first_logprob)),),
    "a prompt logprob is off by one row": lambda: (Patch(results.Reader, "_prompt_logprobs", _prompt_row),),
    "prompt logprobs begin anew with each chunk": lambda: (Patch(results.Reader, "_prompt_logprobs", _anew),),
    "a preempted answer counts as prompt": lambda: (
        Patch(device, "pack_admission", _admission(lambda v: {"prompt": len(v.tokens)})),),
    "a preempted answer comes back with another seed": lambda: (
        Patch(device, "pack_admission", _admission(lambda v: {"seed": v.seed + (len(v.tokens) > v.prompt)})),),
    "seeds move with the age of the engine": lambda: (Patch(device, "pack_admission", _admission(_Ages())),),
    "a sequence that ends takes its neighbour's first page along": lambda: (
        Patch(scheduler.Scheduler, "release", _neighbours_pages), Patch(scheduler.Scheduler, "plan", _lost_table)),
}
