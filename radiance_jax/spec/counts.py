"""What the drafting policy did, for metrics."""

from dataclasses import dataclass, field


@dataclass
class Counts:
    """`deferred`: proposals found and left alone. `chosen`: depth allowed -> sequence steps. `reached[j]`: drafts at place j
    that were verified and whose predecessors were right. `constant[d]`: tokens and priced seconds had every step, from the
    same anchors, drafted d deep; `own`: as it was drafted. `probes`: steps at the second best depths.
    """

    deferred: int = 0
    chosen: dict[int, int] = field(default_factory=dict)
    reached: list[int] = field(default_factory=list)
    own: list[float] = field(default_factory=lambda: [0.0, 0.0])
    constant: list[list[float]] = field(default_factory=list)
    probes: int = 0

    def rate(self) -> float:
        """Tokens a priced second of decoding, as drafted; 0 before anything was."""
        return self.own[0] / self.own[1] if self.own[1] else 0.0

    def constant_rates(self) -> dict[int, float]:
        return {depth: tokens / seconds for depth, (tokens, seconds) in enumerate(self.constant) if seconds}

    def regret(self) -> float:
        """By how much the best constant depth would have been faster, as a share; 0 if it would not."""
        best = max(self.constant_rates().values(), default=0.0)
        return max(best / self.rate() - 1, 0.0) if self.rate() else 0.0
