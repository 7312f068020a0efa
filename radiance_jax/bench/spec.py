"""`python -m radiance_jax.bench spec [MODEL] [flags]`: what a model's drafting does, as one JSON and one page with pictures.

Spec-Bench's six tasks, HumanEval, GSM8K test and MT-Bench, at temperature 0 and 1; modes without drafts, with lookup, with
the drafter and with both take turns on every prompt, in one run. Every answer of a bit-exact engine must have the same ids and
logprob bits in all modes: otherwise the exit status is 1. `docs/report.md` says how to read it.
"""

import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from radiance_jax.bench import record, spec_sets
from radiance_jax.bench.config import FAST, numbers, words
from radiance_jax.bench.door import FAILED, door
from radiance_jax.bench.prompt_sets import Prompt
from radiance_jax.bench.record import log
from radiance_jax.bench.spec_config import SpecConfig
from radiance_jax.bench.speed import turn
from radiance_jax.flags import read_config
from radiance_jax.host_devices import ensure_host_devices

PROG = "python -m radiance_jax.bench spec"
WRITE_EVERY = 10.0  # seconds


@door
def main(argv: Sequence[str]) -> int:
    """A table on stdout, progress on stderr, everything in `--out` and `--html`. Status 1: bit-exact was promised, not kept."""
    started = time.monotonic()
    config, remarks = read_config(SpecConfig, argv, prog=PROG, environ=os.environ,
                                  description="What drafting does to a model's answers: acceptance and speed by task.")
    for line in (config.describe(), *remarks):
        log(line)
    for path in (config.out, config.html):
        record.check_writable(path)
    if config.html is not None:
        from radiance_jax.bench.spec_pictures import require
        require()
    result = measure(config, argv, spec_sets.load(words("sets", config.sets), config.data, config.limit), started)
    from radiance_jax.bench.spec_table import show
    show(result)
    if config.html is not None:
        from radiance_jax.bench.spec_page import write
        write(config.html, result)
        log(f"page: {config.html}")
    for each in result["differences"] if result["bit_exact"] else ():
        log(f"error: bit-exact was not kept: prompt {each['prompt']} of {each['set']} at temperature {each['temperature']:g}: "
            f"{each['what']} in {each['in']} unlike {each['unlike']}, from token {each['first_at']} on")
    return FAILED if result["bit_exact"] and result["differences"] else 0


@dataclass(frozen=True)
class Unit:
    """Prompts of a set that all modes answer in turn, so many at a time."""

    round: int
    live: int
    temperature: float
    prompts: tuple[Prompt, ...]

    @property
    def set(self) -> str:
        return self.prompts[0].set


def units(config: SpecConfig, prompts: Sequence[Prompt]) -> list[Unit]:
    """In the order in which they are measured: every set's first prompt at every temperature, then every set's second, so that
    an early end leaves all sets alike. Several live answer a whole set at once."""
    sets = {name: [each for each in prompts if each.set == name] for name in dict.fromkeys(each.set for each in prompts)}
    found: list[tuple[tuple[int, ...], Unit]] = []
    for at_live, live in enumerate(numbers("sequences", config.sequences)):
        for at_heat, temperature in enumerate(config.temperature_list()):
            for at_set, members in enumerate(sets.values()):
                for round in range(config.rounds):
                    groups = [tuple(members)] if live > 1 else [(each,) for each in members]
                    found += [((round * len(groups) + number, at_live, at_heat, at_set), Unit(round, live, temperature, group))
                              for number, group in enumerate(groups)]
    return [unit for _, unit in sorted(found, key=lambda pair: pair[0])]


def measure(config: SpecConfig, argv: Sequence[str], prompts: Sequence[Prompt], started: float) -> dict[str, Any]:
    """Loads, warms up, measures; the whole record. `started`: when the command began, by the monotonic clock."""
    ensure_host_devices(config.mesh_size)
    from radiance_jax.bench import spec_modes  # after the environment is set
    from radiance_jax.bench.engines import prepare
    from radiance_jax.container import draft_facts
    from radiance_jax.container.drafter import drafter_of
    result = record.environment(PROG, argv, config)
    prompts, engine = prepare(config, prompts)
    drafter = None if config.drafter == "off" else drafter_of(spec_modes.model_of(config))
    result["drafter"] = None if drafter is None else draft_facts.of_checkpoint(drafter)
    names, todo = spec_modes.wanted(config, drafter), units(config, prompts)
    turns: list[Any] = []
    with spec_modes.modes(names, config, engine, drafter, min(prompts, key=lambda each: len(each.ids)), log) as made:
        result["model"] = made[0].engine.model_name
        result["bit_exact"] = any(mode.exact for mode in made if not mode.name.startswith(FAST))
        result["engines"] = {mode.name: mode.facts for mode in made}
        result["prompts"] = {name: {each.id: len(each.ids) for each in prompts if each.set == name}
                             for name in dict.fromkeys(each.set for each in prompts)}
        watch, written = record.Neighbours(), time.monotonic()
        for found in _rounds(config, made, todo, started, result):
            turns += found
            if config.out is not None and time.monotonic() - written > WRITE_EVERY:
                record.write(config.out, figures_of(result, turns, config.seed))
                written = time.monotonic()
        result["machine"]["cores_busy_with_others"] = watch.cores()
        for mode in made:
            result["engines"][mode.name]["compiles_after_warmup"] = mode.engine.stats().compiles_after_warmup
    figures_of(result, turns, config.seed)
    if config.out is not None:
        record.write(config.out, result)
    return result


def figures_of(result: dict[str, Any], turns: Sequence[Any], seed: int) -> dict[str, Any]:
    """The record with all figures of what was measured so far in it."""
    from radiance_jax.bench import spec_figures as figures

    result["cells"] = figures.cells(turns, seed)
    result["summary"] = figures.summary(result["cells"])
    result["steps"] = figures.steps(turns)
    result["answers_compared"], result["differences"] = figures.compared(turns)
    result["headline"] = figures.headline(result)
    return result


def _rounds(config: SpecConfig, made: Sequence[Any], todo: Sequence[Unit], started: float,
            result: dict[str, Any]) -> Iterator[list[Any]]:
    """The turns of one unit after the other; ends early where the next would not fit the time. A unit's modes take turns in an
    order that changes from one to the next. `result["measured"]` says how far it came."""
    from radiance_jax.bench.measure import serve
    from radiance_jax.bench.spec_figures import Counted, Turn

    end = None if config.limit_minutes is None else started + 60 * config.limit_minutes
    lasted: dict[int, list[float]] = {}
    result["measured"] = {"units": 0, "of": len(todo), "ended": "early", "start_seconds": time.monotonic() - started}
    said = result["measured"]
    for number, unit in enumerate(todo):
        begun, before = time.monotonic(), lasted.get(unit.live)
        expected = sum(before) / len(before) if before else 0.0
        if end is not None and begun + expected > end:
            said["ended"] = f"by --limit-minutes {config.limit_minutes:g}"
            break
        log(f"{number + 1} of {len(todo)}: {unit.set}, temperature {unit.temperature:g}, {unit.live} live"
            + (f", {unit.prompts[0].id}" if unit.live == 1 else ""))
        found = []
        for mode in turn(made, number):
            with mode.entered():
                counts = mode.engine.stats()
                done = serve(mode.engine, unit.prompts, mode.params(unit.temperature, config.max_tokens), live=unit.live,
                             round=unit.round)
                mode.settle()
                found.append(Turn(set=unit.set, temperature=unit.temperature, live=unit.live, mode=mode.name, done=done,
                                  counted=Counted.between(counts, mode.engine.stats())))
        lasted.setdefault(unit.live, []).append(time.monotonic() - begun)
        said |= {"units": number + 1, "seconds": time.monotonic() - started}
        yield sorted(found, key=lambda each: [mode.name for mode in made].index(each.mode))
    else:
        said["ended"] = "with everything measured"


if __name__ == "__main__":
    sys.exit(main())
