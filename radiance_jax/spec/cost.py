"""What a step costs: measured seconds by rows, never a formula.

Steps of different row counts may be charged alike: on a CPU rows go through the layers in tiles, on a GPU through programs
of a few sizes. `charge[n]` names the row count under which a step of n live rows is filed. Of the last `WINDOW` steps of a
charge the median counts, so that one disturbed step moves nothing.

A machine gets slower or faster as a whole (other programs, longer contexts), and the charges that are not met just now
would keep the prices of another hour. So a charge remembers what the others cost when it was met last, and its price moves
with those that were met since.
"""

import json
import os
from collections import deque
from collections.abc import Callable, Hashable, Sequence
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


class CostTable:
    """`observe` files a step, `curve` prices all row counts at once."""

    def __init__(self, charge: Sequence[int]):
        self.charge = tuple(charge)
        self._seen: dict[int, deque[float]] = {}
        self._medians: dict[int, float] = {}
        self._then: dict[int, dict[int, float]] = {}  # charge -> what all cost when it was met last
        self._met: dict[int, int] = {}  # charge -> when that was, in steps observed
        self._curve: np.ndarray | None = None
        self._filed = np.zeros(0, int)  # the charge of each row count that `_curve` prices

    def observe(self, rows: int, seconds: float) -> None:
        """One step of `rows` rows that all decode took so long."""
        if rows <= 0 or not seconds > 0:
            return
        key = self.charge[min(rows, len(self.charge) - 1)]
        seen = self._seen.setdefault(key, deque(maxlen=WINDOW))
        seen.append(seconds)
        self._medians[key], self._curve = median(seen), None
        self._then[key], self._met[key] = dict(self._medians), max(self._met.values(), default=0) + 1

    def measured(self) -> dict[int, float]:
        """Seconds by charge, of the charges that were seen."""
        return {key: self._medians[key] * self._pace(key) for key in sorted(self._medians)}

    def _pace(self, key: int) -> float:
        """How much dearer the charges met since this one have become meanwhile (their median)."""
        then, met = self._then[key], self._met[key]
        since = [self._medians[other] / then[other] for other, when in self._met.items() if when > met and other in then]
        return median(since) if since else 1.0

    def knows(self, rows: int) -> bool:
        """Whether a step of so many rows was ever measured."""
        return self.charge[min(rows, len(self.charge) - 1)] in self._medians

    def curve(self, rows: int) -> np.ndarray:
        """Seconds of steps of 0 to at least `rows` rows.

        A charge not seen yet lies on the line between its neighbours, beyond the last one in proportion to rows; more rows
        never cost less. With nothing seen a row costs a second: dear enough that nobody drafts on it.
        """
        if self._curve is None or len(self._curve) <= rows:
            self._curve = self._price(max(rows + 1, len(self.charge)))
        return self._curve

    def _price(self, length: int) -> np.ndarray:
        if len(self._filed) != length:
            n = np.arange(length)
            self._filed = np.where(n < len(self.charge), np.resize(self.charge, length), n)
        filed = self._filed
        if not self._medians:
            return np.maximum(filed, 1).astype(float)
        prices = self.measured()
        known, seconds = list(prices), np.maximum.accumulate(list(prices.values()))
        return np.interp(filed, known, seconds) * np.maximum(filed / known[-1], 1.0)

    # ---- on disk ----

    def save(self, path: Path) -> None:
        """Whole or not at all: another process may be reading or writing it."""
        seconds = {str(key): [float(f"{x * self._pace(key):.4g}") for x in list(seen)[-KEPT:]]
                   for key, seen in sorted(self._seen.items())}
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
        for key in self._then:
            self._then[key] = dict(self._medians)
        return bool(self._medians)


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
