"""How well a drafter does on answers that it was not trained on: walks as the engine takes them.

A walk begins with the first token of an answer as its anchor. What the answer goes on with of the drafts is accepted, the
target's own next token comes on top, and that is the next anchor, to the end of the answer. Drafts are taken at
temperature 0; where an answer was drawn at another temperature the engine, which drafts with the target's noise, does better.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np


@dataclass(kw_only=True)
class Walks:
    """Counts over walks. `reached` and `accepted` [N]: of draft k, how often it was verified behind right ones, and right."""

    rounds: int = 0
    tokens: int = 0
    reached: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    accepted: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))

    @classmethod
    def of(cls, matches: np.ndarray, answer_start: int, length: int, drafts: int) -> Self:
        """One answer: `matches` [T], at each place how many of the drafts behind it the answer goes on with."""
        walks = cls(reached=np.zeros(drafts, np.int64), accepted=np.zeros(drafts, np.int64))
        place = answer_start
        while place < length - 1:
            left, right = length - 1 - place, int(matches[place])
            made = min(right + 1, left)
            walks.rounds, walks.tokens = walks.rounds + 1, walks.tokens + made
            walks.reached[:min(right + 1, left, drafts)] += 1
            walks.accepted[:right] += 1
            place += made
        return walks

    def __add__(self, other: Self) -> Self:
        size = max(len(self.reached), len(other.reached))
        wide = lambda x: np.pad(x, (0, size - len(x)))  # noqa: E731
        return type(self)(rounds=self.rounds + other.rounds, tokens=self.tokens + other.tokens,
                          reached=wide(self.reached) + wide(other.reached), accepted=wide(self.accepted) + wide(other.accepted))

    @property
    def tokens_per_verify(self) -> float:
        """Mean of tokens that a verification commits, the target's own included."""
        return self.tokens / max(self.rounds, 1)

    def report(self) -> dict[str, Any]:
        """Plain values. `acceptance`: of draft k, given that those before it were accepted; `survival`: that it is at all."""
        rate = self.accepted / np.maximum(self.reached, 1)
        return {"tokens_per_verify": round(self.tokens_per_verify, 4), "verifications": self.rounds, "tokens": self.tokens,
                "acceptance": [round(float(x), 4) for x in rate], "survival": [round(float(x), 4) for x in np.cumprod(rate)]}


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """Walks over all answers, and apart by where their prompts are from and by whether they were drawn at temperature 0."""

    every: Walks
    by: dict[str, Walks]

    @classmethod
    def of(cls, walked: Iterable[tuple[Walks, str, float]]) -> Self:
        every, by = Walks(), {}
        for walks, source, temperature in walked:
            every += walks
            for name in (source, "temperature 0" if temperature == 0 else "temperature above 0"):
                by[name] = by.get(name, Walks()) + walks
        return cls(every=every, by=by)

    def report(self) -> dict[str, Any]:
        return self.every.report() | {"by": {name: {"tokens_per_verify": round(walks.tokens_per_verify, 4),
                                                    "verifications": walks.rounds} for name, walks in sorted(self.by.items())}}


def expected_length(reached: np.ndarray, accepted: np.ndarray) -> float:
    """Tokens of a verification, its own included, by acceptance at each draft: 1 + sum_k prod_{i <= k} accepted_i / reached_i."""
    return 1 + float(np.cumprod(accepted / np.maximum(reached, 1)).sum())
