"""From timed answers to figures. Pure functions; every figure's definition is here.

Times are seconds. Every answer has a fixed number of tokens, so that ratios of times are ratios of speeds.
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from radiance_jax.engine.request import RequestStats

RESAMPLES = 10_000


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One answer: its ids, the bits of their logprobs (as `float.hex`) and how it was made."""

    prompt: str
    ids: tuple[int, ...]
    bits: tuple[str, ...]
    stats: RequestStats

    @property
    def decode_seconds(self) -> float:
        return self.stats.finished - self.stats.first_token


@dataclass(frozen=True, kw_only=True)
class Pass:
    """Answers made together: `seconds` from the first request's arrival to the last one's end."""

    round: int
    answers: tuple[Answer, ...]

    @property
    def seconds(self) -> float:
        return max(each.stats.finished for each in self.answers) - min(each.stats.arrival for each in self.answers)


def covered(spans: Sequence[tuple[float, float]]) -> float:
    """Length of the union of intervals.

    In:  (0, 2), (1, 3), (5, 6)    Out: 4
    """
    total, reached = 0.0, -np.inf
    for start, end in sorted(spans):
        total += max(end - max(start, reached), 0.0)
        reached = max(reached, end)
    return float(total)


def speeds(passes: Sequence[Pass]) -> dict[str, float]:
    """Tokens a second three ways, and the wait for the first token.

    overall: all tokens over all time, prompts included. decode: tokens after each answer's first, over the time in which
    at least one answer was past its first token (with one answer at a time, the speed of its stream; with several, all
    streams together, and the prompts of newcomers are in the time). stream: what one reader sees.
    """
    answers = [answer for each in passes for answer in each.answers]
    after_first = sum(len(answer.ids) - 1 for answer in answers)
    decoding = sum(covered([(a.stats.first_token, a.stats.finished) for a in each.answers]) for each in passes)
    return {
        "decode_tokens_per_s": after_first / max(decoding, 1e-9),
        "stream_tokens_per_s": after_first / max(sum(answer.decode_seconds for answer in answers), 1e-9),
        "overall_tokens_per_s": sum(len(answer.ids) for answer in answers) / max(sum(p.seconds for p in passes), 1e-9),
        "ttft_median_s": statistics.median(answer.stats.first_token - answer.stats.arrival for answer in answers),
        "answers": len(answers),
        "tokens": sum(len(answer.ids) for answer in answers),
        "seconds": sum(each.seconds for each in passes),
    }


def acceptance(answers: Sequence[RequestStats]) -> dict[str, Any]:
    """Acceptance, each definition under its name; all are ratios of sums.

    tokens_per_verify: tokens without the prefill's, over all decode steps (one verify step each, drafts or none).
    accepted_per_draft_plus_1: 1 + accepted draft tokens / steps that carried drafts (what vLLM calls mean acceptance
    length). Identity: committed + requests = completion_tokens + cut, where committed counts 1 + accepted of every decode
    step, and `cut` the tokens that ran over max_tokens in an answer's last step (at most one an answer).
    """
    def total(name: str) -> int:
        return sum(getattr(each, name) for each in answers)

    completion, steps, spec = total("completion_tokens"), total("num_decode_steps"), total("num_spec_steps")
    drafts, accepted = total("num_draft_tokens"), total("num_accepted_draft_tokens")
    histogram: dict[int, int] = {}
    for each in answers:
        for length, count in each.acceptance_histogram.items():
            histogram[length] = histogram.get(length, 0) + count
    committed = sum((1 + length) * count for length, count in histogram.items()) + steps - spec
    return {
        "tokens_per_verify": (completion - len(answers)) / steps if steps else None,
        "accepted_per_draft_plus_1": 1 + accepted / spec if spec else None,
        "accepted_share_of_drafted_tokens": accepted / drafts if drafts else None,
        "verify_steps": steps, "verify_steps_with_drafts": spec, "draft_tokens": drafts, "accepted_draft_tokens": accepted,
        "acceptance_histogram": [histogram.get(length, 0) for length in range(max(histogram, default=0) + 1)],
        "identity": {"committed": committed, "requests": len(answers), "completion_tokens": completion,
                     "cut": committed + len(answers) - completion},
    }


def bootstrap(values: np.ndarray, statistic: Callable[[np.ndarray], np.ndarray], *, seed: int = 0,
              resamples: int = RESAMPLES) -> tuple[float, float]:
    """The 95 % percentile interval of a statistic over prompts.

    values: [n, ...]; `statistic` takes [resamples, n, ...] and gives [resamples].
    """
    picks = np.random.default_rng(seed).integers(0, len(values), (resamples, len(values)))
    low, high = np.percentile(statistic(values[picks]), (2.5, 97.5))
    return float(low), float(high)


def speedup(base: Sequence[float], other: Sequence[float], *, seed: int = 0) -> dict[str, Any]:
    """How much faster `other` decodes than `base`: seconds a prompt, the same prompts in the same order.

    `ratio` is that of the summed seconds (so of the decode speeds), `geometric_mean` the mean over prompts of each
    prompt's own ratio; both with an interval from resampling prompts.
    """
    pairs = np.stack([np.asarray(base, float), np.asarray(other, float)], axis=-1)
    assert len(pairs) and (pairs > 0).all(), "a decode time must be above zero"

    def of_sums(x: np.ndarray) -> np.ndarray:
        return x[..., 0].sum(-1) / x[..., 1].sum(-1)

    def of_each(x: np.ndarray) -> np.ndarray:
        return np.exp(np.log(x[..., 0] / x[..., 1]).mean(-1))

    return {
        "ratio": float(of_sums(pairs)), "ratio_ci95": list(bootstrap(pairs, of_sums, seed=seed)),
        "geometric_mean": float(of_each(pairs)), "geometric_mean_ci95": list(bootstrap(pairs, of_each, seed=seed)),
        "slowest_prompt": float((pairs[:, 0] / pairs[:, 1]).min()), "fastest_prompt": float((pairs[:, 0] / pairs[:, 1]).max()),
        "prompts": len(pairs),
    }


def of_rounds(ratios: Sequence[float], *, seed: int = 0) -> dict[str, Any]:
    """Ratios of overall speed, one of each round: their geometric mean and its interval from resampling rounds (three or more
    are needed for one that means anything). With several answers live this is the interval to quote: a round is one pair."""
    logs = np.log(np.asarray(ratios, float))
    low, high = bootstrap(logs, lambda x: x.mean(-1), seed=seed)
    return {"overall_by_round": list(ratios), "overall_ratio": float(np.exp(logs.mean())),
            "overall_ratio_ci95": [float(np.exp(low)), float(np.exp(high))]}


def seconds_by_prompt(passes: Sequence[Pass]) -> dict[str, list[float]]:
    """Decode seconds of every prompt, one for each round."""
    seconds: dict[str, list[float]] = {}
    for each in sorted(passes, key=lambda one: one.round):
        for answer in each.answers:
            seconds.setdefault(answer.prompt, []).append(answer.decode_seconds)
    return seconds


def agreement(ours: Sequence[Answer], theirs: Sequence[Answer]) -> dict[str, Any]:
    """How far the ids of two modes are the same; answers are matched by prompt, the first of each."""
    first = {answer.prompt: answer for answer in reversed(theirs)}
    pairs = [(a.ids, first[a.prompt].ids) for a in {a.prompt: a for a in reversed(ours)}.values() if a.prompt in first]
    same = [next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), len(a)) for a, b in pairs]
    return {"prompts": len(pairs), "equal": sum(a == b for a, b in pairs),
            "mean_tokens_before_the_first_difference": statistics.fmean(same) if same else None}


def differences(answers: Sequence[tuple[str, Answer]]) -> list[dict[str, Any]]:
    """(where, answer) pairs that should be the same for each prompt -> those that are not as the prompt's first is."""
    reference: dict[str, tuple[str, Answer]] = {}
    found = []
    for where, answer in answers:
        first_where, first = reference.setdefault(answer.prompt, (where, answer))
        if answer.ids != first.ids:
            found.append({"prompt": answer.prompt, "what": "ids", "in": where, "unlike": first_where,
                          "first_at": _first_difference(answer.ids, first.ids)})
        elif answer.bits != first.bits:
            found.append({"prompt": answer.prompt, "what": "logprob bits", "in": where, "unlike": first_where,
                          "first_at": _first_difference(answer.bits, first.bits)})
    return found


def _first_difference(a: Sequence[Any], b: Sequence[Any]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
