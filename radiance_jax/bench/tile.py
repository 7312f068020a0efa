"""`python -m radiance_jax.bench tile [MODEL] [flags]`: what one step costs, by row tile and live rows (CPU).

A bit-exact engine computes its rows in tiles of a few fixed heights. This measures a decode step with so many sequences
live, one row each, as served and with tiles of one height, beside engines that are not bit-exact, whose programs fit the
rows. Steps are sent and read one at a time, so the host's part is in the time. All engines are loaded at once and take turns.
"""

import os
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from radiance_jax.bench import record
from radiance_jax.bench.config import TileConfig, engine_values, numbers, words
from radiance_jax.bench.door import door
from radiance_jax.bench.record import log
from radiance_jax.bench.speed import turn
from radiance_jax.config import EngineConfig
from radiance_jax.flags import read_config
from radiance_jax.host_devices import ensure_host_devices

PROG = "python -m radiance_jax.bench tile"
PAGE = 128  # the KV walk's block on CPUs; the context should not cross into another while steps are timed


@dataclass(kw_only=True)
class Subject:
    """An engine's device and the seconds seen: of decode steps by live rows, of prefill steps as (tokens, seconds).
    `tile`: of one height (None: as served, or no tiles)."""

    name: str
    dtype: str
    tile: int | None
    exact: bool
    built: Any
    decode: dict[int, list[float]] = field(default_factory=dict)
    prefill: list[tuple[int, float]] = field(default_factory=list)


@door
def main(argv: Sequence[str]) -> int:
    """A table on stdout, progress on stderr, everything in `--out`."""
    config, remarks = read_config(TileConfig, argv, prog=PROG, environ=os.environ,
                                  description="Time of a step by row tile and live rows.")
    for line in (config.describe(), *remarks):
        log(line)
    record.check_writable(config.out)
    ensure_host_devices(config.mesh_size)
    result = measure(config, argv)
    show(result)
    if config.out is not None:
        record.write(config.out, result)
    return 0


def variants(config: TileConfig) -> list[tuple[str, EngineConfig]]:
    """The engines by name: bit-exact ones by dtype and tile, then the others by dtype."""
    base = EngineConfig(**engine_values(config) | {
        "num_speculative_tokens": 0, "spec_ngram": None,
        "max_num_seqs": max(numbers("rows", config.rows)),
        "max_model_len": config.max_model_len or config.context + config.steps + 2})
    exact = [(f"{dtype}, as served" if tile is None else f"{dtype}, tile {tile}",
              replace(base, dtype=dtype, bit_exact="on", row_tile=tile))
             for dtype in words("tile_dtypes", config.tile_dtypes) for tile in config.heights()]
    return exact + [(f"{dtype}, not bit-exact", replace(base, dtype=dtype, bit_exact="off", row_tile=None))
                    for dtype in words("fast_dtypes", config.fast_dtypes)]


def measure(config: TileConfig, argv: Sequence[str]) -> dict[str, Any]:
    from radiance_jax.engine.build import build
    from radiance_jax.engine.choices import choose

    result = record.environment(PROG, argv, config)
    subjects = []
    for name, options in variants(config):
        log(f"-- {name} --")
        chosen = choose(options, result["machine"]["platform"])
        subjects.append(Subject(name=name, dtype=chosen.dtype, tile=options.row_tile, exact=chosen.exact,
                                built=build(options, log)))
    live, watch = numbers("rows", config.rows), record.Neighbours()
    try:
        for round in range(config.rounds):
            log(f"round {round + 1} of {config.rounds}")
            for rows in live:
                for subject in turn(subjects, round):
                    visit(subject, rows, config.context, config.steps)
    finally:
        for subject in subjects:
            subject.built.guard.close()
    result["machine"]["cores_busy_with_others"] = watch.cores()
    result["steps"] = [figures_of(each) for each in subjects]
    compare(result["steps"])
    return result


def visit(subject: Subject, rows: int, context: int, steps: int) -> None:
    """Prefills `rows` sequences, then times `steps` decode steps of all of them."""
    from radiance_jax.engine.scheduler import Entry, Plan
    from radiance_jax.engine.state import DECODE, PREFILL

    device, capacity = subject.built.device, subject.built.capacity

    def timed(plan: Plan) -> float:
        start = time.perf_counter()
        device.read(device.send(plan))
        return time.perf_counter() - start

    sequences = [sequence_of(slot, context, steps + 2, capacity) for slot in range(rows)]
    todo = []
    for sequence in sequences:
        device.admit(sequence)
        todo += [(sequence, first) for first in range(context)]
    for start in range(0, len(todo), capacity.rows):
        part, entries = todo[start:start + capacity.rows], []
        for sequence in dict.fromkeys(each for each, _ in part):
            places = [first for each, first in part if each is sequence]
            entries.append(Entry(sequence, sequence.slot, PREFILL, chunk=len(places), first=places[0],
                                 last=places[-1] + 1 == context))
        seconds = timed(Plan(entries=entries))
        if len(part) == capacity.rows:  # a full step
            subject.prefill.append((len(part), seconds))
    plan = Plan(entries=[Entry(sequence, sequence.slot, DECODE) for sequence in sequences])
    timed(plan)
    subject.decode.setdefault(rows, []).extend(timed(plan) for _ in range(steps))


def sequence_of(slot: int, context: int, more: int, capacity: Any) -> Any:
    """A greedy sequence that sits in `slot`, with pages of its own (page 0 belongs to nobody)."""
    from radiance_jax.engine.request import RequestStats, SamplingParams
    from radiance_jax.engine.sequence import Sequence as Sequence_

    tokens = [(7 * slot + 13 * i) % 97 + 3 for i in range(context)]
    each = -(-(context + more) // capacity.page_size)
    return Sequence_(
        id=slot, prompt=tuple(tokens), params=SamplingParams(temperature=0.0, max_tokens=more, ignore_eos=True), choice=0,
        seed=0, stops=(), limit=context + more, stream=None, on_delta=lambda delta: None, stats=RequestStats(), tokens=tokens,
        slot=slot, pages=[1 + slot * each + i for i in range(each)])


def figures_of(subject: Subject) -> dict[str, Any]:
    """Milliseconds of a decode step by live rows (median, and the least seen), and prefill speed over full steps."""
    tokens, seconds = (sum(each) for each in zip(*subject.prefill, strict=True)) if subject.prefill else (0, 0.0)
    return {
        "engine": subject.name, "dtype": subject.dtype, "row_tile": subject.tile, "bit_exact": subject.exact,
        "heights": [height for height, _ in subject.built.tiles or ()],
        "decode_ms": {str(rows): statistics.median(each) * 1e3 for rows, each in subject.decode.items()},
        "decode_least_ms": {str(rows): min(each) * 1e3 for rows, each in subject.decode.items()},
        "prefill_tokens_per_s": tokens / seconds if seconds else None,
        "prefill_rows_per_step": subject.built.capacity.rows,
        "compiles_after_warmup": subject.built.guard.count,
    }


def compare(steps: Sequence[dict[str, Any]]) -> None:
    """Adds to each engine: its step over the fastest step, at the same live rows, of those not bit-exact; and its step
    over their fastest step of one row, which is what a tile costs against a row."""
    fast = [each["decode_ms"] for each in steps if not each["bit_exact"]]
    for each in steps:
        mine = each["decode_ms"]
        each["over_fastest_off"] = {rows: mine[rows] / min(other[rows] for other in fast) for rows in mine}
        least = min((other["1"] for other in fast if "1" in other), default=None)
        each["over_one_row"] = {rows: mine[rows] / least for rows in mine} if least else None


def show(result: dict[str, Any]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    live = [str(rows) for rows in numbers("rows", result["configuration"]["rows"])]
    made = Table(title="A decode step by live rows: ms, and (times the fastest off's at the same rows)", box=box.SIMPLE_HEAD,
                 title_justify="left")
    made.add_column("engine", no_wrap=True)
    for name in (*live, "one tile / one row", "prefill tok/s"):
        made.add_column(name, justify="right")
    for each in result["steps"]:
        cost = each["over_one_row"]
        made.add_row(each["engine"], *(f"{each['decode_ms'][rows]:.1f} ({each['over_fastest_off'][rows]:.2f})" for rows in live),
                     f"{cost['1']:.2f}" if cost and "1" in live else "", f"{each['prefill_tokens_per_s'] or 0:.0f}")
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 140
    console.print(made)
    busy = result["machine"]["cores_busy_with_others"]
    if busy is not None:
        console.print(f"cores busy with other programs: {busy:.2f} of {result['machine']['cores']}")


if __name__ == "__main__":
    sys.exit(main())
