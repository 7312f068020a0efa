"""From acceptance under each reading to a diagnosis, by a rule that is written down. No jax here.

A reading is *clearly better* than the declared one if, in drafts accepted at an anchor, averaged over prompts,

    gain >= max(LEAST_GAIN, LEAST_SHARE * declared)   and   gain >= ERRORS * its standard error over prompts

The first keeps out what is not worth a change, the second what chance may do: with eight prompts or more, four standard errors
are exceeded by chance less than once in 400 comparisons, and some 30 readings are compared. Prompts put otherwise have other
answers, some of them easier to draft: such a reading is compared where no copy would have done, and must gain twice as much.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from radiance_jax.bench import doctor_readings as readings
from radiance_jax.bench.doctor_readings import Reading

LEAST_GAIN, LEAST_SHARE, ERRORS = 0.1, 0.1, 4.0
LOW = 1.5  # tokens a verify step, under which acceptance is low
NOTHING = 0.05  # drafts accepted at an anchor, under which there is nothing to speak of


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A reading and what it gets accepted: by prompt, over all anchors and over those in new text (NaN: none); over the
    engine's walk, drafts a step and tokens a verify step."""

    reading: Reading
    by_prompt: tuple[float, ...]
    in_new_text: tuple[float, ...]
    walk: float
    tokens_per_verify: float

    @property
    def mean(self) -> float:
        return float(np.mean(self.by_prompt))


@dataclass(frozen=True, kw_only=True)
class Compared:
    """A neighbour beside the declared reading: gain in drafts an anchor, its standard error, and whether it is clearly better."""

    measured: Measured
    gain: float
    error: float
    better: bool


def compare(base: Measured, others: Sequence[Measured]) -> list[Compared]:
    """By gain, the largest first."""
    return sorted((_beside(base, other) for other in others), key=lambda each: -each.gain)


def _beside(base: Measured, other: Measured) -> Compared:
    put_otherwise = other.reading.texts != base.reading.texts
    ours, theirs = (np.array(each.in_new_text if put_otherwise else each.by_prompt) for each in (base, other))
    apart = (theirs - ours)[np.isfinite(theirs - ours)]
    gain = float(apart.mean()) if len(apart) else 0.0
    error = float(apart.std(ddof=1) / math.sqrt(len(apart))) if len(apart) > 1 else math.inf
    least = max(LEAST_GAIN, LEAST_SHARE * base.mean) * (2 if put_otherwise else 1)
    return Compared(measured=other, gain=gain, error=error, better=gain >= least and gain >= ERRORS * error)


def diagnose(base: Measured, compared: Sequence[Compared], tried: int, of: int) -> dict[str, Any]:
    """`fault`: the kind of the likeliest one, None where no reading is clearly better; `text`: what to tell the user."""
    better = [each for each in compared if each.better]
    some = "" if tried == of else f" ({of - tried} of {of} readings were not tried: the time was up.)"
    if better:
        best = better[0]
        also = [each.measured.reading.kind for each in better[1:]]
        text = (f"{CURES[best.measured.reading.kind].format(what=best.measured.reading.what)} So read it gets "
                f"{best.measured.mean:.2f} drafts accepted at an anchor, as declared {base.mean:.2f} "
                f"(gain {best.gain:.2f}, standard error {best.error:.2f}).")
        if also:
            text += f" Better too, but less: {', '.join(dict.fromkeys(also))}."
        return {"fault": best.measured.reading.kind, "reading": best.measured.reading.what, "text": text + some}
    text = "No other reading is clearly better: the file says how the drafter is to be read."
    if base.mean < NOTHING:
        text += (" Next to nothing is accepted: the drafter is untrained, was trained for another target (a fine-tuned or "
                 "quantised relative counts as another), or its tensors are damaged.")
    elif base.tokens_per_verify < LOW:
        text += (f" Acceptance is low all the same ({base.tokens_per_verify:.2f} tokens a verify step): it was trained too "
                 "little, on answers that this target did not write, or on other prompts than these.")
    return {"fault": None, "reading": None, "text": text + some}


CURES = {
    readings.TAPS: "Taps: it was trained on the states {what}. target_layer_ids counts outputs of layers, "
                   "aux_hidden_state_layer_ids inputs, one more: the wrong one of the two was taken.",
    readings.ORDER: "Taps: it was trained on the same layers {what}; correct target_layer_ids.",
    readings.SLOTS: "Slots: in its training {what}; set sample_from_anchor.",
    readings.CONTEXT: "Context: it drafts better {what}. Where that is with it, its training let it see the state that it is to "
                      "predict, which is not there at serving: train it again without.",
    readings.POSITION: "Positions: it drafts better with {what}; its trainer counts positions otherwise.",
    readings.MASK: "Mask token: it was trained with {what}; correct mask_token_id.",
    readings.WINDOW: "Window: it was trained with {what}; correct sliding_window or layer_types.",
    readings.ROPE: "Rotary embedding: it was trained with {what}; correct rope_theta or rope_parameters.",
    readings.CAUSAL: "Causality in the block: {what} in its training; set is_causal.",
    readings.SCALE: "Embedding: it was trained with {what}; set input_embedding_scale.",
    readings.TEMPLATE: "Chat template: it was trained on answers to other prompts ({what}); the template in the container, or "
                       "its system message, is not the one of its training data.",
}
