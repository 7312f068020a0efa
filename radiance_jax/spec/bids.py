"""What the decoding sequences bring to the bargain over depths: one by one for whoever writes a policy, and as arrays, so that a
policy decides for hundreds of them in the time of a few.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import overload

import numpy as np

from radiance_jax.spec.evidence import Depths


@dataclass(frozen=True, kw_only=True)
class Bid:
    """What one decoding sequence brings.

    `chance[l]`: how likely it meets a proposal of level l (the rest: none). `gains[l][j]`: how likely drafts 0 to j of such
    a proposal are all right; its length is the most drafts that may be verified. `fixed`: drafts as deep as it may,
    whatever that costs. `last`: its depths of the step before, None if it is new.
    """

    chance: tuple[float, ...]
    gains: tuple[tuple[float, ...], ...]
    fixed: bool = False
    last: Depths | None = None

    @property
    def caps(self) -> Depths:
        return tuple(map(len, self.gains))

    def last_or_none(self) -> Depths:
        """The depths of the step before, as far as they are still allowed."""
        if self.fixed:
            return self.caps
        return tuple(map(min, self.last or (0,) * len(self.gains), self.caps))


class Bids(Sequence[Bid]):
    """The bids of N sequences over L levels and K places. `chance` f64 [N, L]; `gains` f64 [N, L, K], 0 from `caps` int [N, L]
    on; `fixed` bool [N]; `last`: each one's."""

    def __init__(self, *, chance: np.ndarray, gains: np.ndarray, caps: np.ndarray, fixed: np.ndarray,
                 last: Sequence[Depths | None]):
        self.chance, self.gains, self.caps, self.fixed, self.last = chance, gains, caps, fixed, last

    @classmethod
    def of(cls, bids: Sequence[Bid]) -> "Bids":
        """Themselves, if they are arrays already."""
        if isinstance(bids, Bids):
            return bids
        caps = np.array([bid.caps for bid in bids], int)
        gains = np.zeros((*caps.shape, caps.max(initial=0)))
        for i, bid in enumerate(bids):
            for level, values in enumerate(bid.gains):
                gains[i, level, :len(values)] = values
        return cls(chance=np.array([bid.chance for bid in bids], float), gains=gains, caps=caps,
                   fixed=np.array([bid.fixed for bid in bids], bool), last=[bid.last for bid in bids])

    @cached_property
    def deepest(self) -> np.ndarray:
        """int [N]: the most drafts each may have, whatever is found."""
        return self.caps.max(1)

    @cached_property
    def mean_gains(self) -> np.ndarray:
        """f64 [N, K]: how likely each place is reached and right, over the levels that may come."""
        return (self.chance[:, :, None] * self.gains).sum(1)

    def last_depths(self) -> np.ndarray:
        """int [N, L]: the depths of the step before, as far as they are still allowed; `fixed`: all."""
        none = (0,) * self.caps.shape[1]
        return np.where(self.fixed[:, None], self.caps, np.minimum([last or none for last in self.last], self.caps))

    def tokens(self, plan: Sequence[Depths]) -> float:
        """That a step with these depths is expected to commit."""
        taken = np.arange(self.gains.shape[2]) < np.asarray(plan)[:, :, None]
        return len(self) + float((self.chance[:, :, None] * self.gains)[taken].sum())

    def __len__(self) -> int:
        return len(self.chance)

    @overload
    def __getitem__(self, at: int) -> Bid: ...
    @overload
    def __getitem__(self, at: slice) -> list[Bid]: ...

    def __getitem__(self, at):
        if isinstance(at, slice):
            return self._each[at]
        gains = zip(self.gains[at].tolist(), self.caps[at].tolist(), strict=True)
        return Bid(chance=tuple(self.chance[at].tolist()), gains=tuple(tuple(values[:cap]) for values, cap in gains),
                   fixed=bool(self.fixed[at]), last=self.last[at])

    def __iter__(self) -> Iterator[Bid]:
        return iter(self._each)

    @cached_property
    def _each(self) -> list[Bid]:
        return [self[at] for at in range(len(self))]
