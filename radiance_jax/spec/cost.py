"""What a step costs: measured seconds by rows, never a formula.

Steps of different row counts may be charged alike: on a CPU rows go through the layers in tiles, on a GPU through programs
of a few sizes. `charge[n]` names the row count under which a step of n live rows is filed. Of the last `WINDOW` steps of a
charge the median counts, so that one disturbed step moves nothing.

A machine gets slower or faster as a whole (other programs, longer contexts), and the charges that are not met just now
would keep the prices of another hour. So a charge remembers what the others cost when it was met last, and its price moves
with those that were met since. Steps of another kind on the same machine (those in which a drafter runs) have a table of their
own, but one ledger: what is met in one table moves the prices of the other.
"""

import json
import os
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import numpy as np

WINDOW = 31
KEPT = 5  # of a charge on disk: few, so that steps of today soon outweigh them
FORMAT = 1


def tiled_charge(most: int, tiles: Callable[[int], Hashable]) -> tuple[int, ...]:
    """`charge` where rows are computed in tiles: steps whose `tiles(rows)` are equal cost the same, and are filed under
    the most rows of them. Up to `most` rows."""
    charge = list(range(most + 1))
    for rows in reversed(range(1, most)):
        if tiles(rows) == tiles(rows + 1):
            charge[rows] = charge[rows + 1]
    return tuple(charge)


def program_charge(sizes: Sequence[int]) -> tuple[int, ...]:
    """`charge` where a step runs in the least program of `sizes` (ascending) that holds it."""
    return tuple(next(size for size in sizes if size >= rows) for rows in range(max(sizes) + 1))


Mark = tuple[int, int]  # the number of a table, and a charge


@dataclass
class Ledger:
    """What all tables of a machine know of each charge: its median, what all cost when it was met last, and when that was, in
    steps observed."""

    tables: int = 0
    steps: int = 0
    medians: dict[Mark, float] = field(default_factory=dict)
    then: dict[Mark, dict[Mark, float]] = field(default_factory=dict)
    met: dict[Mark, int] = field(default_factory=dict)

    def enter(self, mark: Mark, seconds: float) -> None:
        self.steps += 1
        self.medians[mark] = seconds
        self.then[mark], self.met[mark] = dict(self.medians), self.steps

    def now(self, mark: Mark) -> float:
        """The price of a charge: its median, moved with those met since (by the median of how much dearer they became)."""
        then, met = self.then[mark], self.met[mark]
        since = [self.medians[other] / then[other] for other, when in self.met.items() if when > met and other in then]
        return self.medians[mark] * (median(since) if since else 1.0)


class CostTable:
    """`observe` files a step, `curve` prices all row counts at once."""

    def __init__(self, charge: Sequence[int], beside: "CostTable | None" = None):
        """`beside`: the table of another kind of steps on the same machine."""
        self.charge = tuple(charge)
        self._ledger = Ledger() if beside is None else beside._ledger
        self._number = self._ledger.tables
        self._ledger.tables += 1
        self._seen: dict[int, deque[float]] = {}
        self._curve, self._priced = np.zeros(0), -1  # and after how many steps
        self._filed = np.zeros(0, int)  # the charge of each row count that `_curve` prices

    def observe(self, rows: int, seconds: float) -> None:
        """One step of `rows` rows that all decode took so long."""
        if rows <= 0 or not seconds > 0:
            return
        key = self.charge[min(rows, len(self.charge) - 1)]
        seen = self._seen.setdefault(key, deque(maxlen=WINDOW))
        seen.append(seconds)
        self._ledger.enter((self._number, key), median(seen))

    def measured(self) -> dict[int, float]:
        """Seconds by charge, of the charges that were seen."""
        return {key: self._ledger.now((self._number, key)) for key in sorted(self._seen)}

    def knows(self, rows: int) -> bool:
        """Whether a step of so many rows was ever measured."""
        return self.charge[min(rows, len(self.charge) - 1)] in self._seen

    def curve(self, rows: int) -> np.ndarray:
        """Seconds of steps of 0 to at least `rows` rows.

        A charge not seen yet lies on the line between its neighbours, beyond the last one in proportion to rows; more rows
        never cost less. With nothing seen a row costs a second: dear enough that nobody drafts on it.
        """
        if self._priced != self._ledger.steps or len(self._curve) <= rows:
            self._curve, self._priced = self._price(max(rows + 1, len(self.charge))), self._ledger.steps
        return self._curve

    def _price(self, length: int) -> np.ndarray:
        if len(self._filed) != length:
            n = np.arange(length)
            self._filed = np.where(n < len(self.charge), np.resize(self.charge, length), n)
        filed = self._filed
        if not self._seen:
            return np.maximum(filed, 1).astype(float)
        prices = self.measured()
        known, seconds = list(prices), np.maximum.accumulate(list(prices.values()))
        return np.interp(filed, known, seconds) * np.maximum(filed / known[-1], 1.0)

    # ---- on disk ----

    def save(self, path: Path) -> None:
        """Whole or not at all: another process may be reading or writing it."""
        moved = {key: price / self._ledger.medians[self._number, key] for key, price in self.measured().items()}
        seconds = {str(key): [float(f"{x * moved[key]:.4g}") for x in list(self._seen[key])[-KEPT:]] for key in moved}
        text = json.dumps({"format": FORMAT, "seconds": seconds})
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_suffix(f".{os.getpid()}.new")
        beside.write_text(text + "\n", encoding="utf-8")
        beside.replace(path)

    def load(self, path: Path) -> bool:
        """Takes over what is there. False: nothing, or nothing that can be read; then measure."""
        try:
            raw = json.loads(path.read_text(encoding="utf-8"))
            if raw["format"] != FORMAT:
                return False
            seconds = {int(key): [float(x) for x in seen] for key, seen in raw["seconds"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return False
        for key, seen in seconds.items():
            if 0 < key < len(self.charge) and self.charge[key] == key:
                for each in seen:
                    self.observe(key, each)
        for mark in self._ledger.then:  # they are all of one hour
            self._ledger.then[mark], self._ledger.met[mark] = dict(self._ledger.medians), self._ledger.steps
        return bool(self._seen)


def profile(table: CostTable, run: Callable[[int], float | None], most: int, limit: float,
            clock: Callable[[], float], rounds: int = 5) -> None:
    """Fills an empty table: `run(rows)` times a step of so many decoding rows (None: there can be none), fewest rows
    first, round after round until `limit` seconds are over. The two cheapest are measured whatever they take."""
    charges = sorted({key for key in table.charge[1:most + 1]})
    start = clock()
    for round in range(rounds):
        for number, rows in enumerate(charges):
            if clock() - start > limit and (round or number > 1):
                return
            seconds = run(rows)
            if seconds is not None:
                table.observe(rows, seconds)
