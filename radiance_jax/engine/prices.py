"""The prices of steps at start-up: found on disk from the last time, or measured.

They depend on everything that makes a step dear, so the file's name is a digest of machine, model, programs and version.
"""

import hashlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import jax

from radiance_jax import __version__
from radiance_jax.engine.state import Capacity
from radiance_jax.models.rows import Heights, rows_computed
from radiance_jax.spec.cost import CostTable, profile, program_charge, tiled_charge

SECONDS = 3.0  # of measuring, at most (the two cheapest steps are measured in any case)
LOOKS, TOLERANCE = 3, 1.25  # steps of each kind by which kept prices are tried, and how far off they may be


class Stepper(Protocol):
    def time_decode(self, drafts: list[int], with_drafter: bool = False) -> float:
        """Seconds of a step in which slot i verifies so many drafts; with the pass of a drafter that runs apart or without."""


def tables(capacity: Capacity, heights: Heights | None, head_tile: int, sizes: tuple[int, ...]) -> tuple[CostTable, CostTable]:
    """Empty tables of steps without and with a neural drafter: told apart by tiles of layers and head, or by the programs of
    `sizes` rows."""
    charge = program_charge(sizes) if heights is None else tiled_charge(
        capacity.rows, lambda rows: (rows_computed(rows, heights), -(-rows // head_tile)))
    return (cost := CostTable(charge)), CostTable(charge, cost)


def measure(table: CostTable, device: Stepper, capacity: Capacity, with_drafter: bool = False) -> None:
    """Times steps of decoding sequences with drafts, as many rows as they can have; `with_drafter` as in `time_decode`."""
    most = capacity.slots * (1 + capacity.depth)
    if not _room(capacity):
        return  # the engine learns as it goes

    def run(rows: int) -> float | None:
        count = min(rows, most)
        if table.charge[count] != rows:
            return None
        full, rest = divmod(count, 1 + capacity.depth)
        return device.time_decode([capacity.depth] * full + [rest - 1] * (rest > 0), with_drafter)

    top = table.charge[min(most, len(table.charge) - 1)]
    profile(table, run, top, SECONDS, time.monotonic)


def _room(capacity: Capacity) -> bool:
    """Whether a context holds a text that repeats itself, which `time_decode` needs to have drafts."""
    return bool(capacity.depth) and 3 * (capacity.depth + 1) + 3 <= capacity.length


def hold(table: CostTable, device: Stepper, capacity: Capacity) -> bool:
    """Whether a step with all drafts of a lone sequence still costs as many bare ones as the table says. A machine that is slower
    as a whole moves no decision, but prices kept from an hour in which other programs ran may be out of proportion."""
    rows, kept = min(1 + capacity.depth, len(table.charge) - 1), table.measured()
    bare, deep = table.charge[1], table.charge[rows]
    if not _room(capacity) or bare == deep or bare not in kept or deep not in kept:
        return True
    now = [min(device.time_decode([drafts]) for _ in range(LOOKS)) for drafts in (0, rows - 1)]
    change = now[1] / now[0] * kept[bare] / kept[deep]
    return 1 / TOLERANCE <= change <= TOLERANCE


def place(folder: Path, mesh: Any, parts: dict[str, Any]) -> Path:
    """Where the prices of this configuration are kept."""
    device = mesh.devices.flat[0]
    parts = parts | {"device": device.device_kind, "devices": mesh.size, "cores": len(os.sched_getaffinity(0)),
                     "versions": [__version__, jax.__version__]}
    digest = hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()
    return folder / "prices" / f"{digest[:16]}.json"


def beside(path: Path) -> Path:
    """Where those of steps in which a neural drafter runs are kept."""
    return path.with_suffix(".drafter.json")


def save(path: Path, cost: CostTable, drafting_cost: CostTable) -> None:
    """What was measured of both. Raises `OSError`."""
    for table, where in ((cost, path), (drafting_cost, beside(path))):
        if table.measured():
            table.save(where)


def line(table: CostTable, found: bool, seconds: float, name: Callable[[float], str] = lambda s: f"{s * 1e3:.3g}") -> str:
    """For the start-up log."""
    shown = ", ".join(f"{rows}: {name(cost)}" for rows, cost in table.measured().items())
    return f"prices: ms by rows {{{shown}}}, " + ("kept from before" if found else f"measured in {seconds:.1f} s")
