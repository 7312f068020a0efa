"""How many steps a limit in minutes holds, and when time is up."""

import time
from dataclasses import dataclass

MARGIN = 0.97  # of the time left is planned: the last steps are those with the lowest rate
ENDING = 3.0  # seconds for the last checkpoint and the export, beside a look at the held-out answers


@dataclass(frozen=True, kw_only=True)
class Pace:
    """`deadline`: of the run, by time.monotonic; None: there is none. Seconds of a step and of a look, measured."""

    deadline: float | None
    step_seconds: float
    look_seconds: float

    @property
    def reserve(self) -> float:
        return ENDING + 2 * self.look_seconds

    def steps(self, look_every: int) -> int:
        """Steps that the time left holds, looks included."""
        assert self.deadline is not None
        left = (self.deadline - self.reserve - time.monotonic()) * MARGIN
        return max(int(left / (self.step_seconds + self.look_seconds / look_every)), 1)

    @property
    def time_is_up(self) -> bool:
        return self.deadline is not None and time.monotonic() > self.deadline - self.reserve
