"""What the engine counts: plain numbers, written by the engine's thread, read as a snapshot by anyone."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field, fields

from radiance_jax.engine.request import RequestStats

TTFT_BOUNDS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
               80.0, 160.0)
INTER_TOKEN_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5,
                      5.0)
E2E_BOUNDS = (0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0,
              480.0, 960.0)


class Histogram:
    """Counts per bucket (value <= bound; one more for the rest) and the sum of all values."""

    def __init__(self, bounds: Sequence[float]):
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times

    def copy(self) -> "Histogram":
        twin = Histogram(self.bounds)
        twin.counts, twin.sum = list(self.counts), self.sum
        return twin

    @property
    def count(self) -> int:
        return sum(self.counts)


@dataclass(kw_only=True)
class EngineStats:
    """Gauges `running`, `waiting`, `kv_usage` (0 to 1), and those marked as such; everything else only grows."""

    running: int = 0
    waiting: int = 0
    kv_usage: float = 0.0

    prompt_tokens: int = 0
    cached_tokens: int = 0  # prompt tokens whose KV was already there
    generation_tokens: int = 0
    finished: dict[str, int] = field(default_factory=dict)  # finish reason -> requests
    preemptions: int = 0

    num_drafts: int = 0  # verify steps of a sequence that carried a draft
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    accepted_per_position: list[int] = field(default_factory=list)
    by_proposer: dict[str, tuple[int, int]] = field(default_factory=dict)  # who drafted -> (draft tokens, accepted)
    reached_per_position: list[int] = field(default_factory=list)  # verified, all drafts before it right
    depth: dict[int, int] = field(default_factory=dict)  # drafts carried -> verify steps
    chosen_depth: dict[int, int] = field(default_factory=dict)  # most drafts the policy allowed -> decode steps of a sequence
    deferred_proposals: int = 0  # found, and left alone because verifying them would not have paid
    draft_probes: int = 0  # steps that drafted otherwise than would pay, to keep prices fresh
    draft_regret: float = 0.0  # gauge: how much faster the best constant depth would have been, as a share
    draft_rate: float = 0.0  # gauge: tokens a priced second, as drafted
    constant_depth_rate: dict[int, float] = field(default_factory=dict)  # gauge: the same, had every step drafted so deep

    steps: int = 0
    step_seconds: dict[int, tuple[int, float]] = field(default_factory=dict)  # rows computed -> (steps, seconds)
    compiles_after_warmup: int = 0
    host_gap_seconds: float = 0.0  # time the device waited for the host
    listener_errors: int = 0  # answers ended because whoever listened raised
    leaked_pages: int = 0  # pages found in use with no sequence left, and taken back

    ttft: Histogram = field(default_factory=lambda: Histogram(TTFT_BOUNDS))
    inter_token: Histogram = field(default_factory=lambda: Histogram(INTER_TOKEN_BOUNDS))
    e2e: Histogram = field(default_factory=lambda: Histogram(E2E_BOUNDS))

    def record_verify(self, depth: int, accepted: int, proposer: str = "lookup") -> None:
        """One sequence's verify step: `depth` drafts tried, the first `accepted` kept."""
        drafts, kept = self.by_proposer.get(proposer, (0, 0))
        self.by_proposer[proposer] = (drafts + depth, kept + accepted)
        self.num_drafts += 1
        self.num_draft_tokens += depth
        self.num_accepted_tokens += accepted
        self.depth[depth] = self.depth.get(depth, 0) + 1
        missing = depth - len(self.accepted_per_position)
        if missing > 0:
            self.accepted_per_position.extend([0] * missing)
        for position in range(accepted):
            self.accepted_per_position[position] += 1

    def record_step(self, rows: int, seconds: float) -> None:
        count, total = self.step_seconds.get(rows, (0, 0.0))
        self.step_seconds[rows] = (count + 1, total + seconds)
        self.steps += 1

    def record_tokens(self, request: RequestStats, count: int, now: float) -> None:
        """`count` tokens of one request, delivered together at `now`. A gap lies between two deliveries, and is one
        observation however many tokens the second brought: it is what a reader of the stream waits."""
        request.completion_tokens += count
        self.generation_tokens += count
        if request.first_token is None:
            request.first_token = now
            self.prompt_tokens += request.prompt_tokens
            self.ttft.observe(now - request.arrival)
        else:
            self.inter_token.observe(now - request.last_token)
        request.last_token = now

    def record_finish(self, request: RequestStats, reason: str) -> None:
        """The end of a request; its whole latency counts if it had a token."""
        self.finished[reason] = self.finished.get(reason, 0) + 1
        if request.first_token is not None and request.finished is not None:
            self.e2e.observe(request.finished - request.arrival)

    def snapshot(self) -> "EngineStats":
        """A copy that later steps do not change. Each container is copied in one uninterrupted operation."""
        copies = {}
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, (dict, list)):
                value = type(value)(value)
            elif isinstance(value, Histogram):
                value = value.copy()
            copies[item.name] = value
        return EngineStats(**copies)
