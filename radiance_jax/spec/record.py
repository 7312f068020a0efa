"""What is known of acceptance: how often a draft was the token drawn, by level of evidence and place in the draft.

The rate at place j is *conditional*: it counts the drafts whose predecessors were all right (one that was never reached
proves nothing). Counts fade, so that a sequence that begins to copy, or stops, is soon believed; and they lean on a prior,
so that one observation is not a certainty:

    rate = (hits + WEIGHT * prior) / (seen + WEIGHT)        hits, seen: faded by KEEP with each observation

A sequence's prior is the shared record of all sequences (kept by drafter, block length and context band), whose own prior
is the table below.
"""

from collections.abc import Sequence

import numpy as np

from radiance_jax.spec.evidence import LEVELS, LOOKUP_LEVELS, NOTHING

OWN_KEEP, OWN_WEIGHT = 0.95, 4.0  # a sequence: the last 20 observations, against a prior worth 4
SHARED_KEEP, SHARED_WEIGHT = 0.998, 8.0  # everyone: the last 500, against a prior worth 8
# Before anything was seen, by level. Low for lookup, which is judged whether it is verified or not: too low is learnt for
# nothing, too high is paid for. A neural drafter is judged only by verifying it, so it starts with a fair guess.
FIRST = (0.3, 0.5, 0.8, 0.6)  # the rate of the first draft
LATER = (0.6, 0.7, 0.9, 0.75)  # that of a draft whose predecessors were right
BANDS = (1024, 4096, 16384)  # tokens of context at which another shared record begins


def band(length: int) -> int:
    """In: 100, 1024, 99999    Out: 0, 1, 3"""
    return sum(length >= edge for edge in BANDS)


def prior(level: int, place: int) -> float:
    return FIRST[level] if place == 0 else LATER[level]


class Acceptance:
    """Faded counts [LEVELS][places]; places beyond the last one count with the last."""

    def __init__(self, places: int, keep: float, weight: float, behind: "Acceptance | None" = None):
        """`behind`: where the prior comes from, and who hears of everything (None: the table of this file)."""
        self.places, self._keep, self._weight, self.behind = places, keep, weight, behind
        self._seen = [[0.0] * places for _ in range(LEVELS)]
        self._hits = [[0.0] * places for _ in range(LEVELS)]
        self._known: dict[int, list[float]] = {}  # rates by level, where nobody is behind

    def add(self, level: int, place: int, right: bool) -> None:
        """The draft at `place` was reached, and was the token drawn or was not; told to the shared record too."""
        at = min(place, self.places - 1)
        seen, hits = self._seen[level], self._hits[level]
        seen[at] = seen[at] * self._keep + 1
        hits[at] = hits[at] * self._keep + right
        self._known.pop(level, None)
        if self.behind is not None:
            self.behind.add(level, place, right)

    def add_verdict(self, level: int, drafted: int, accepted: int) -> None:
        """All of one verified proposal."""
        for place in range(min(accepted + 1, drafted)):
            self.add(level, place, place < accepted)

    def rate(self, level: int, place: int) -> float:
        return self.rates(level, place + 1)[place]

    def rates(self, level: int, count: int) -> list[float]:
        """Of the first `count` places."""
        known = self._known.get(level, [])
        if len(known) >= count > 0:
            return known[:count]
        before = [prior(level, place) for place in range(count)] if self.behind is None else self.behind.rates(level, count)
        hits, seen, weight = self._hits[level], self._seen[level], self._weight
        rates = [(h + weight * p) / (s + weight) for h, s, p in zip(hits, seen, before, strict=False)]
        rates += [(hits[-1] + weight * p) / (seen[-1] + weight) for p in before[len(rates):]]
        if self.behind is None:
            self._known[level] = rates
        return rates


def rates_of(records: Sequence[Acceptance], levels: Sequence[int], count: int) -> np.ndarray:
    """f64 [N, levels, count]: `rates` of many records at once, which have the same number of places and the same weight."""
    shape, full = (len(records), len(levels), records[0].places), records[0].places == count
    seen = np.array([record._seen[level] for record in records for level in levels]).reshape(shape)
    hits = np.array([record._hits[level] for record in records for level in levels]).reshape(shape)
    weight = records[0]._weight
    priors: dict[int, np.ndarray] = {}
    for shared in {id(record.behind): record.behind for record in records}.values():
        priors[id(shared)] = np.array([[prior(level, place) for place in range(count)] if shared is None else
                                       shared.rates(level, count) for level in levels])
    before = next(iter(priors.values())) if len(priors) == 1 else np.array([priors[id(record.behind)] for record in records])
    if not full:
        places = np.minimum(np.arange(count), shape[2] - 1)
        seen, hits = seen[:, :, places], hits[:, :, places]
    return (hits + weight * before) / (seen + weight)


FLOW_PRIOR = (  # from nothing, or a level of lookup, to the same: text goes on as it was
    (0.90, 0.08, 0.01, 0.01),
    (0.55, 0.30, 0.12, 0.03),
    (0.40, 0.10, 0.38, 0.12),
    (0.15, 0.05, 0.06, 0.74))


class Flow:
    """How likely the next step meets each level of lookup, after the level of this one. Counted and faded as rates are."""

    def __init__(self, keep: float, weight: float, behind: "Flow | None" = None):
        self._keep, self._weight, self._behind = keep, weight, behind
        self._count = [[0.0] * (LOOKUP_LEVELS + 1) for _ in range(LOOKUP_LEVELS + 1)]
        self._known: dict[int, tuple[float, ...]] = {}  # where nobody is behind

    def add(self, before: int, after: int) -> None:
        """Levels of two steps on end (NOTHING: no proposal)."""
        row = [x * self._keep for x in self._count[before - NOTHING]]
        row[after - NOTHING] += 1
        self._count[before - NOTHING] = row
        self._known.pop(before, None)
        if self._behind is not None:
            self._behind.add(before, after)

    def after(self, before: int) -> Sequence[float]:
        """Chances of nothing and of each level of lookup; their sum is 1."""
        if before in self._known:
            return self._known[before]
        expected = FLOW_PRIOR[before - NOTHING] if self._behind is None else self._behind.after(before)
        row, weight = self._count[before - NOTHING], self._weight
        total = sum(row) + weight
        chances = tuple([(x + weight * p) / total for x, p in zip(row, expected, strict=True)])
        if self._behind is None:
            self._known[before] = chances
        return chances


def chances_of(flows: Sequence[Flow], before: Sequence[int]) -> np.ndarray:
    """f64 [N, 1 + levels]: `after` of many flows that share the one behind them, at once; `before`: the level of each."""
    rows = np.array([flow._count[level - NOTHING] for flow, level in zip(flows, before, strict=True)])
    weight, shared = flows[0]._weight, flows[0]._behind
    expected = {level: FLOW_PRIOR[level - NOTHING] if shared is None else shared.after(level) for level in set(before)}
    chances = rows + weight * np.array([expected[level] for level in before])
    return chances / (rows.sum(1, keepdims=True) + weight)
