"""Device faults from logits to a draw and its report: penalties, temperature, noise, logprobs."""

from collections.abc import Callable
from dataclasses import replace

import jax.numpy as jnp

from radiance_jax.engine import sampling
from tests.exactness import test_batches, test_closure, test_endings, test_sampling

FAULTS: dict[str, Callable] = {
    "noise by row of the tile": test_sampling.test_noise_belongs_to_the_place_in_the_answer,
    "noise does not know the choice": test_sampling.test_choices_draw_answers_of_their_own,
    "temperature of the tile": test_batches.test_a_crowd_without_drafts,
    "top-k of the tile": test_batches.test_a_crowd_without_drafts,
    "penalties count a draft twice": test_sampling.test_penalties_count_the_drafts_before_a_row_once,
    "penalties ignore the drafts before a row": test_sampling.test_penalties_count_the_drafts_before_a_row_once,
    "a penalty forgets the prompt behind a draft": test_sampling.test_penalties_count_the_drafts_before_a_row_once,
    "the minimum length is counted in steps": test_endings.test_a_minimum_of_tokens_inside_a_run,
    "the bias of another slot": test_sampling.test_each_has_the_bias_it_asked_for,
    "a logprob after temperature": test_closure.test_reading_equals_decoding,
    "a logprob after penalties and bias": test_closure.test_reading_equals_decoding,
}


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


PLACES = {(sampling, "adjust"): _adjust, (sampling, "sample"): _sample, (sampling, "raw_logprobs"): _raw_logprobs}
