"""From timed answers to the figures of `bench spec`. Pure functions; every definition that `figures.py` does not have is here.

A *cell* is a set of prompts at one temperature and one number of answers live, with every mode beside every other.
"""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from radiance_jax.bench import figures
from radiance_jax.bench.config import FAST, OFF
from radiance_jax.bench.figures import Answer, Pass
from radiance_jax.bench.spec_config import BOTH, DRAFTER, FIXED, LOOKUP
from radiance_jax.engine.stats import EngineStats


@dataclass(frozen=True, kw_only=True)
class Counted:
    """What an engine counted in some time. By place of a draft: how many were `reached` (verified, and all before them right)
    and `accepted`; by proposer: (drafts, accepted); by rows computed: (steps, seconds)."""

    reached: tuple[int, ...] = ()
    accepted: tuple[int, ...] = ()
    by_proposer: dict[str, tuple[int, int]]
    steps: dict[int, tuple[int, float]]

    @classmethod
    def between(cls, before: EngineStats, after: EngineStats) -> "Counted":
        def less(a: Sequence[int], b: Sequence[int]) -> tuple[int, ...]:
            return tuple(x - (b[i] if i < len(b) else 0) for i, x in enumerate(a))

        def apart(a: dict, b: dict) -> dict:
            found = {key: (x[0] - b.get(key, (0, 0))[0], x[1] - b.get(key, (0, 0))[1]) for key, x in a.items()}
            return {key: pair for key, pair in found.items() if pair[0]}

        return cls(reached=less(after.reached_per_position, before.reached_per_position),
                   accepted=less(after.accepted_per_position, before.accepted_per_position),
                   by_proposer=apart(after.by_proposer, before.by_proposer), steps=apart(after.step_seconds, before.step_seconds))

    @classmethod
    def total(cls, parts: Iterable["Counted"]) -> "Counted":
        parts = list(parts)

        def sums(rows: list[tuple[int, ...]]) -> tuple[int, ...]:
            return tuple(sum(row[i] for row in rows if i < len(row)) for i in range(max(map(len, rows), default=0)))

        def pairs(maps: list[dict]) -> dict:
            keys = dict.fromkeys(key for each in maps for key in each)
            return {key: tuple(sum(each[key][i] for each in maps if key in each) for i in (0, 1)) for key in keys}

        return cls(reached=sums([each.reached for each in parts]), accepted=sums([each.accepted for each in parts]),
                   by_proposer=pairs([each.by_proposer for each in parts]), steps=pairs([each.steps for each in parts]))


@dataclass(frozen=True, kw_only=True)
class Turn:
    """One mode's pass over some prompts of a set."""

    set: str
    temperature: float
    live: int
    mode: str
    done: Pass
    counted: Counted


def positions(counted: Counted) -> dict[str, Any]:
    """Acceptance by place of the draft, from 1. `conditional`: accepted / reached. `cumulative`: the product of those up to the
    place, so the chance that a draft as deep as that is accepted whole, had all of it been verified."""
    accepted = [*counted.accepted, *[0] * len(counted.reached)][:len(counted.reached)]
    rates = [a / r if r else None for a, r in zip(accepted, counted.reached, strict=True)]
    whole, product = [], 1.0
    for rate in rates:
        product = product * rate if rate is not None else float("nan")
        whole.append(None if product != product else product)
    return {"reached": list(counted.reached), "accepted": accepted, "conditional": rates, "cumulative": whole}


def cell(turns: Sequence[Turn], seed: int) -> dict[str, Any]:
    """The figures of one cell: by mode, and every mode against the fastest that does not draft."""
    first, names = turns[0], list(dict.fromkeys(turn.mode for turn in turns))
    passes = {name: [turn.done for turn in turns if turn.mode == name] for name in names}
    answers = {name: [answer for each in done for answer in each.answers] for name, done in passes.items()}
    by_mode = {}
    for name in names:
        counted = Counted.total(turn.counted for turn in turns if turn.mode == name)
        by_mode[name] = figures.speeds(passes[name]) | figures.acceptance([each.stats for each in answers[name]]) | {
            "tokens_per_verify_ci95": _verify_interval(answers[name], seed), "positions": positions(counted),
            "by_proposer": {who: {"drafts": pair[0], "accepted": pair[1]} for who, pair in counted.by_proposer.items()}}
    offs = [name for name in names if not drafts(name)]
    fastest = max(offs, key=lambda name: by_mode[name]["decode_tokens_per_s"])
    return {
        "set": first.set, "temperature": first.temperature, "live": first.live,
        "prompts": list(dict.fromkeys(each.prompt for each in answers[names[0]])), "modes": by_mode, "fastest_off": fastest,
        "against_fastest_off": {name: found for name in names if name != fastest
                                if (found := _against(answers[fastest], answers[name], by_mode[name], seed)) is not None},
        "decode_seconds": {name: {key: list(pair) for key, pair in _seconds(answers[name]).items()} for name in names}}


def drafts(mode: str) -> bool:
    return not mode.startswith(OFF)  # "off-fast" too


def _seconds(answers: Sequence[Answer]) -> dict[str, tuple[int, float]]:
    """By prompt: tokens after the first, over all rounds, and the seconds they took."""
    found: dict[str, tuple[int, float]] = {}
    for each in answers:
        tokens, seconds = found.get(each.prompt, (0, 0.0))
        found[each.prompt] = (tokens + len(each.ids) - 1, seconds + each.decode_seconds)
    return found


def _against(base: Sequence[Answer], other: Sequence[Answer], mode: dict[str, Any], seed: int) -> dict[str, Any] | None:
    """Prompts whose answer ended at once have no speed. Where answers differ in length (an engine that is not bit-exact), the
    other's seconds are scaled to the base's tokens."""
    ours, theirs = _seconds(base), _seconds(other)
    pairs = [(ours[key][1], theirs[key][1] * ours[key][0] / theirs[key][0]) for key in ours
             if key in theirs and ours[key][0] and theirs[key][0] and ours[key][1] > 0 and theirs[key][1] > 0]
    if not pairs:
        return None
    found = figures.speedup(*zip(*pairs, strict=True), seed=seed)
    length = mode["tokens_per_verify"]
    return found | {"cycle_cost": length / found["ratio"] if length else None}


def _verify_interval(answers: Sequence[Answer], seed: int) -> list[float] | None:
    """95 % over prompts, of tokens per verify."""
    pairs = np.array([(each.stats.completion_tokens - 1, each.stats.num_decode_steps) for each in answers
                      if each.stats.num_decode_steps], float)
    if not len(pairs):
        return None
    return list(figures.bootstrap(pairs, lambda x: x[..., 0].sum(-1) / x[..., 1].sum(-1), seed=seed))


def cells(turns: Sequence[Turn], seed: int) -> list[dict[str, Any]]:
    """All cells; of each temperature and number of live answers the worst first: the one that the mode served gains least in."""
    groups: dict[tuple, list[Turn]] = {}
    for turn in turns:
        groups.setdefault((turn.live, turn.temperature, turn.set), []).append(turn)
    made = [cell(group, seed) for group in groups.values()]
    return sorted(made, key=lambda one: (one["live"], one["temperature"], gain(one) if gain(one) is not None else 9e9))


def served(one: dict[str, Any]) -> str | None:
    """The mode of a cell that users get: both, else whichever drafts as deep as it pays."""
    return next((name for name in (BOTH, DRAFTER, LOOKUP) if name in one["modes"]),
                next((name for name in one["modes"] if drafts(name)), None))


def gain(one: dict[str, Any]) -> float | None:
    """The speed-up of the mode served."""
    found = one["against_fastest_off"].get(served(one) or "")
    return None if found is None else found["ratio"]


def summary(all_cells: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """By temperature and number of live answers, each mode over all sets: the mean of tokens per verify, the geometric mean of
    speed-ups, its least set; acceptance by place over everything verified."""
    out = []
    for live, temperature in dict.fromkeys((one["live"], one["temperature"]) for one in all_cells):
        mine = [one for one in all_cells if (one["live"], one["temperature"]) == (live, temperature)]
        for name in dict.fromkeys(name for one in mine for name in one["modes"]):
            lengths = [m["tokens_per_verify"] for one in mine if (m := one["modes"].get(name)) and m["tokens_per_verify"]]
            ratios = {one["set"]: one["against_fastest_off"][name]["ratio"] for one in mine if name in one["against_fastest_off"]}
            pooled = Counted.total(Counted(reached=tuple(m["positions"]["reached"]), accepted=tuple(m["positions"]["accepted"]),
                                           by_proposer={}, steps={}) for one in mine if (m := one["modes"].get(name)))
            out.append({
                "live": live, "temperature": temperature, "mode": name, "sets": len(mine),
                "tokens_per_verify": statistics.fmean(lengths) if lengths else None,
                "speedup": float(np.exp(np.mean(np.log(list(ratios.values()))))) if ratios else None,
                "worst_set": min(ratios, key=ratios.__getitem__) if ratios else None,
                "worst_speedup": min(ratios.values()) if ratios else None, "positions": positions(pooled)})
    return out


def steps(turns: Sequence[Turn]) -> dict[str, dict[str, dict[str, float]]]:
    """By mode and rows computed: steps, and their mean milliseconds (prompts' steps too)."""
    out = {}
    for name in dict.fromkeys(turn.mode for turn in turns):
        total = Counted.total(turn.counted for turn in turns if turn.mode == name)
        out[name] = {str(rows): {"steps": count, "ms": seconds / count * 1e3}
                     for rows, (count, seconds) in sorted(total.steps.items())}
    return out


def compared(turns: Sequence[Turn]) -> tuple[int, list[dict[str, Any]]]:
    """How many answers were held against the first one to the same prompt, and those whose ids or logprob bits differ: of all
    modes but `off-fast`, whatever was live."""
    count, found = 0, []
    for name, temperature in dict.fromkeys((turn.set, turn.temperature) for turn in turns):
        answers = [(f"{turn.mode}, {turn.live} live, round {turn.done.round + 1}", answer) for turn in turns
                   if (turn.set, turn.temperature) == (name, temperature) and not turn.mode.startswith(FAST)
                   for answer in turn.done.answers]
        count += len(answers) - len({answer.prompt for _, answer in answers})
        found += [{"set": name, "temperature": temperature, **each} for each in figures.differences(answers)]
    return count, found


def headline(result: dict[str, Any]) -> str:
    """One sentence, the worst set first."""
    made = result["cells"]
    if not made:
        return "Nothing was measured in the time given."
    live, temperature = made[0]["live"], made[0]["temperature"]
    mine = [one for one in made if (one["live"], one["temperature"]) == (live, temperature) and gain(one) is not None]
    if not mine:
        return "No answer was long enough to have a speed."
    worst, best, mode = mine[0], mine[-1], served(mine[0])
    total = next(each for each in result["summary"]
                 if (each["live"], each["temperature"], each["mode"]) == (live, temperature, mode))
    how = {BOTH: "the drafter and prompt lookup", DRAFTER: "the drafter", LOOKUP: "prompt lookup"}[mode.removesuffix(FIXED)]
    among = "one answer at a time" if live == 1 else f"{live} answers at a time"
    text = (f"Worst on {worst['set']}, {_times(gain(worst))} the speed of the fastest mode without drafting; best on "
            f"{best['set']}, {_times(gain(best))}; {_times(total['speedup'])} over {total['sets']} sets, with "
            f"{total['tokens_per_verify']:.2f} tokens a verify step: {how} at temperature {temperature:g}, {among}, "
            f"on {result['machine']['device']}.")
    compared_, differ = result["answers_compared"], len(result["differences"])
    if not compared_:
        return text
    first = "those without drafts" if any(OFF in one["modes"] for one in made) else "the first to their prompt"
    if result["bit_exact"]:
        return text + (f" All {compared_} answers compared have the ids and logprob bits of {first}." if not differ
                       else f" {differ} of {compared_} answers DIFFER from {first}: the promise is broken.")
    return text + (f" Bit-exactness is off here: roundings make {differ} of {compared_} answers differ from the first to their "
                   "prompt.")


def _times(ratio: float | None) -> str:
    return "no speed" if ratio is None else f"{ratio:.2f} times"
