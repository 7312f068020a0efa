"""What the drafting policy did, for metrics."""

from dataclasses import dataclass, field

import numpy as np


@dataclass
class Counts:
    """`deferred`: proposals found and left alone. `chosen`: depth allowed -> sequence steps. `reached[j]`: drafts at place j
    that were verified and whose predecessors were right. `own`: tokens and priced seconds as it was drafted. Had every step, from
    the same anchors, drafted d deep: `right[n]` of them would have kept n drafts if d allowed it, and `seconds[d]` is what all
    would have cost. `probes`: steps at the second best depths.
    """

    deferred: int = 0
    chosen: dict[int, int] = field(default_factory=dict)
    reached: list[int] = field(default_factory=list)
    own: list[float] = field(default_factory=lambda: [0.0, 0.0])
    right: list[int] = field(default_factory=list)
    seconds: np.ndarray = field(default_factory=lambda: np.zeros(0))
    probes: int = 0

    def rate(self) -> float:
        """Tokens a priced second of decoding, as drafted; 0 before anything was."""
        return self.own[0] / self.own[1] if self.own[1] else 0.0

    def constant_rates(self) -> dict[int, float]:
        return {depth: sum(count * (1 + min(depth, right)) for right, count in enumerate(self.right)) / seconds
                for depth, seconds in enumerate(self.seconds.tolist()) if seconds}

    def regret(self) -> float:
        """By how much the best constant depth would have been faster, as a share; 0 if it would not."""
        best = max(self.constant_rates().values(), default=0.0)
        return max(best / self.rate() - 1, 0.0) if self.rate() else 0.0
