"""Faults that lose bits, each as seen or feared in some engine, and the test that catches it.

A *device* fault is compiled into one program beside all the others and chosen by a traced number, so that no fault
costs a compile; what is patched is patched only while that program is traced. A *host* fault is a patch at run time.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import jax
import jax.numpy as jnp
import numpy as np

from radiance_jax import collectives
from radiance_jax.bench import forced
from radiance_jax.collectives import exact
from radiance_jax.engine import device, results, sampling, scheduler, steps
from radiance_jax.engine.hooks import Hooks
from radiance_jax.engine.state import DECODE, PREFILL
from radiance_jax.models import llama
from radiance_jax.pallas import paged_attention as attention
from radiance_jax.text.output import TextStream
from tests.exactness import (lab, test_batches, test_closure, test_drafters, test_endings, test_mesh, test_preemption,
                             test_prompts, test_sampling)

# name -> the test that catches it
DEVICE: dict[str, Callable] = {
    # rows of a step
    "a draft row reads the token of its predecessor": test_drafters.test_refusing_at_each_place_of_a_run,
    "the position of a draft is off by one": test_drafters.test_a_drafter_that_is_always_right,
    "rope turns by the row's place in the step": test_drafters.test_a_drafter_that_is_always_right,
    "the key of a draft is written one place on": test_drafters.test_a_drafter_that_is_always_right,
    "a refused draft's key stays": test_drafters.test_a_drafter_that_is_always_wrong,
    "the last accepted draft's key is lost": test_drafters.test_a_drafter_that_is_always_right,
    "the first row of a later chunk is lost": test_prompts.test_chunks_of_a_prompt,
    # attention
    "a draft sees its successor": test_drafters.test_a_drafter_that_is_always_wrong,
    "the last block of a run across two is skipped": test_prompts.test_verify_rows_across_the_edge_of_a_page,
    "the page table of the first sequence serves all": test_batches.test_a_crowd_without_drafts,
    "queries are rounded in steps of several rows": test_batches.test_a_crowd_without_drafts,
    # arithmetic that looks at the batch
    "halves of a product are swapped in larger steps": test_batches.test_a_crowd_without_drafts,
    "an activation scale is taken over the tile": test_drafters.test_a_drafter_that_is_always_wrong,
    "sums over ranks are rounded in steps of several rows": test_batches.test_a_crowd_without_drafts,
    "keys are rounded in steps with a prompt": test_closure.test_reading_equals_decoding,
    # which draw, and whether it is kept
    "the bonus row draws nothing": test_drafters.test_a_drafter_that_is_always_right,
    "the bonus token is the draw of the row before": test_drafters.test_a_drafter_that_is_always_right,
    "a draft is emitted unverified": test_drafters.test_a_drafter_that_is_always_wrong,
    "one draft too many is accepted": test_drafters.test_refusing_at_each_place_of_a_run,
    "the longest accepted run of the batch serves all": test_batches.test_two_that_draft_side_by_side,
    "a stop token inside a run is ignored": test_endings.test_a_stop_token_at_each_place,
    "the length cap is overrun inside a run": test_endings.test_the_length_cap_at_each_place,
    # noise
    "noise by row of the tile": test_sampling.test_noise_belongs_to_the_place_in_the_answer,
    "noise is drawn anew for every draft": test_sampling.test_noise_belongs_to_the_place_in_the_answer,
    "noise does not know the choice": test_sampling.test_choices_draw_answers_of_their_own,
    "noise from the seed of the neighbour": test_sampling.test_noise_does_not_come_from_a_mates_seed,
    # the pipeline
    "temperature of the tile": test_batches.test_a_crowd_without_drafts,
    "top-k of the tile": test_batches.test_a_crowd_without_drafts,
    "penalties count a draft twice": test_sampling.test_penalties_count_the_drafts_before_a_row_once,
    "penalties ignore the drafts before a row": test_sampling.test_penalties_count_the_drafts_before_a_row_once,
    "a penalty forgets the prompt behind a draft": test_sampling.test_penalties_count_the_drafts_before_a_row_once,
    "the minimum length is counted in steps": test_endings.test_a_minimum_of_tokens_inside_a_run,
    "the bias of another slot": test_sampling.test_each_has_the_bias_it_asked_for,
    # what is reported
    "the top 20 of the row before": test_drafters.test_refusing_at_each_place_of_a_run,
    "a logprob after temperature": test_closure.test_reading_equals_decoding,
    "a logprob after penalties and bias": test_closure.test_reading_equals_decoding,
}
HOST: dict[str, Callable] = {
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
SUMS: dict[str, Callable] = {
    "ranks sum in an order of their own": test_mesh.test_every_form_of_a_sum_is_the_sum_in_rank_order,
    "the two-shot form sums the other way round": test_mesh.test_every_form_of_a_sum_is_the_sum_in_rank_order,
}
NUMBER = {name: number for number, name in enumerate(DEVICE, 1)}


def hooks() -> Hooks:
    """Those of the laboratory, and all device faults."""
    table = forced.table(lab.SCRIPTS, lab.ENTRIES, lab.DEPTH)
    return Hooks(knobs=table | {"fault": np.int32(0)}, propose=forced.propose, tracing=tracing)


@contextmanager
def tracing(knobs: dict[str, Any]) -> Iterator[None]:
    seen = SimpleNamespace()

    def on(name: str) -> jax.Array:
        return knobs["fault"] == NUMBER[name]

    places = {(steps, "_propose"): _propose, (steps, "_layout"): _layout, (steps, "Rows"): _rows,
              (steps, "make_segments"): _segments, (steps, "_draw_rows"): _draw_rows, (steps, "accept"): _accept,
              (attention, "_attend"): _attend,
              (llama, "product"): _product, (llama, "rms_norm"): _norm, (llama, "rotate"): _rotate,
              (collectives, "all_reduce"): _all_reduce, (sampling, "adjust"): _adjust, (sampling, "sample"): _sample,
              (sampling, "raw_logprobs"): _raw_logprobs}
    with ExitStack() as stack:
        for (module, name), make in places.items():
            stack.enter_context(patch.object(module, name, make(getattr(module, name), on, seen)))
        yield


# ---- device faults: each takes what it replaces, the switch, and what was seen of the step so far ----


def _rounded(x: jax.Array) -> jax.Array:
    return x.astype(jnp.bfloat16).astype(x.dtype)


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
        return original(jnp.where(rounds, _rounded(q), q), *rest)
    return attend


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


def _rotate(original, on, seen):
    def rotate(*arguments):
        turned = original(*arguments)
        rounds = on("keys are rounded in steps with a prompt") & (seen.mode == PREFILL).any()
        return jnp.where(rounds, _rounded(turned), turned)
    return rotate


def _all_reduce(original, on, seen):
    def all_reduce(x, axis, *wire):
        total = original(x, axis, *wire)
        several = on("sums over ranks are rounded in steps of several rows") & (seen.layout.total > 1)
        return jnp.where(several, _rounded(total), total)
    return all_reduce


def _draw_rows(original, on, seen):
    def draw_rows(params, config, state, layout, position, needs, *rest):
        s = seen
        seed = state.draw.seed
        anew = (s.mode == DECODE) & on("noise is drawn anew for every draft")
        more = jnp.where(anew, layout.count - 1, 0).astype(jnp.uint32)[:, None]
        seed = jnp.where(on("noise from the seed of the neighbour"), jnp.roll(seed, 1, axis=0), seed) + more
        state_ = replace(state, draw=replace(state.draw, seed=seed))
        needs = needs & ~(on("the bonus row draws nothing") & s.is_draft & s.is_last)
        drawn, logprob, ids, tops = original(params, config, state_, layout, position, needs, *rest)
        unread = state.tokens[layout.slot, position + 1]
        drawn = jnp.where(on("a draft is emitted unverified") & s.decodes & ~s.is_last, unread, drawn)
        stale = on("the bonus token is the draw of the row before") & s.is_draft & s.is_last
        drawn = jnp.where(stale, drawn[s.row - 1], drawn)
        before = (on("the top 20 of the row before") & s.is_draft)[:, None]
        return drawn, logprob, jnp.where(before, ids[s.row - 1], ids), jnp.where(before, tops[s.row - 1], tops)
    return draw_rows


def _accept(original, on, seen):
    def accept(chain, drafts, drafted, draws, stops, length, limit):
        given = original(chain, drafts, drafted, draws, stops, length, limit)
        endless = original(chain, drafts, drafted, draws, jnp.full_like(stops, -1), length, limit)
        ignored = on("a stop token inside a run is ignored") & (given.accepted > 0)
        made = jax.tree.map(lambda a, b: jnp.where(ignored, a, b), endless, given)
        room = draws & (made.ended == 0) & (length + made.emitted < limit)
        more = on("one draft too many is accepted") & room & (drafted > made.accepted)
        longest = jnp.minimum(made.accepted.max(), drafted)
        shared = on("the longest accepted run of the batch serves all") & room & (longest > made.accepted)
        over = on("the length cap is overrun inside a run") & (made.ended == 2) & (drafted > 0)
        over = over & (made.accepted >= drafted)
        emitted = jnp.where(shared, jnp.minimum(longest + 1, limit - length), made.emitted + more + over)
        full = (length + emitted >= limit) & draws & (made.ended == 0)
        return replace(made, emitted=emitted, ended=jnp.where(full, 2, made.ended))
    return accept


def _adjust(original, on, seen):
    def adjust(logits, draw, counts, prompt, bias, slot, output_index, ancestors):
        behind = ancestors >= 0
        twice = jnp.where(on("penalties count a draft twice"), ancestors, -1)
        ancestors = jnp.where(on("penalties ignore the drafts before a row"), -1, ancestors)
        steps_only = jnp.where(on("the minimum length is counted in steps"), behind.sum(1), 0)
        bias = jnp.where(on("the bias of another slot"), jnp.roll(bias, 1, axis=0), bias)
        forgets = on("a penalty forgets the prompt behind a draft") & behind.any(1)
        rows = jnp.arange(logits.shape[0])  # what is by slot becomes by row, so that one row can forget
        seen.adjusted = original(
            logits, draw, counts[slot], prompt[slot] & ~forgets[:, None], bias[slot], rows, output_index - steps_only,
            jnp.concatenate([ancestors, twice], axis=1))
        return seen.adjusted
    return adjust


def _sample(original, on, seen):
    def sample(logits, draw, output_index, *how):
        seen.draw, seen.logits = draw, logits
        rows = jnp.arange(logits.shape[0])
        hot = jnp.where(draw.temperature > 0, draw.temperature.max(), 0)
        drawn = replace(
            draw, temperature=jnp.where(on("temperature of the tile"), hot, draw.temperature),
            top_k=jnp.where(on("top-k of the tile"), draw.top_k.max(), draw.top_k),
            choice=jnp.where(on("noise does not know the choice"), 0, draw.choice))
        return original(logits, drawn, jnp.where(on("noise by row of the tile"), rows, output_index), *how)
    return sample


def _raw_logprobs(original, on, seen):
    def raw_logprobs(raw, label):
        heat = jnp.where(seen.draw.temperature > 0, seen.draw.temperature, 1)[:, None]
        raw = jnp.where(on("a logprob after penalties and bias"), seen.logits, raw)
        return original(jnp.where(on("a logprob after temperature"), raw / heat, raw), label)
    return raw_logprobs


# ---- host faults: a patch each ----


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


def _own_order(original):
    """Each rank begins with its own part."""
    def ordered(parts):
        rank = jax.lax.axis_index("tp")
        return original(jnp.roll(parts, -rank, axis=0))
    return ordered


def _backwards(original):
    def two_shot(x, axis):
        with patch.object(exact, "ordered_sum", lambda parts: original_sum(parts[::-1])):
            return original(x, axis)
    original_sum = exact.ordered_sum
    return two_shot


SUM_PATCHES = {
    "ranks sum in an order of their own": Patch(exact, "ordered_sum", _own_order),
    "the two-shot form sums the other way round": Patch(collectives, "two_shot", _backwards),
}


@contextmanager
def inject(name: str, faulty: "lab.Lab | None" = None) -> Iterator[None]:
    """Within, the engine has that fault."""
    if name in DEVICE:
        faulty.turn(fault=np.int32(NUMBER[name]))
        try:
            yield
        finally:
            faulty.turn(fault=np.int32(0))
        return
    with ExitStack() as stack:
        for each in (SUM_PATCHES[name],) if name in SUMS else PATCHES[name]():
            stack.enter_context(patch.object(each.owner, each.name, each.make(getattr(each.owner, each.name))))
        yield
