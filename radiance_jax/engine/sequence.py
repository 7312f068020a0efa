"""One sequence in flight: what the host knows of it, one step old."""

from collections.abc import Callable
from dataclasses import dataclass, field

from radiance_jax.engine.request import Delta, RequestStats, SamplingParams, TokenLogprob
from radiance_jax.text.output import TextStream


@dataclass(eq=False)
class Sequence:
    """`tokens` are the committed tokens whose step has been read. Steps in flight may add up to `pending` more, and
    will add at least `certain` (unless it ends). `planned` counts tokens whose prefill has been sent."""

    id: int
    prompt: tuple[int, ...]
    params: SamplingParams
    choice: int
    seed: int
    stops: tuple[int, ...]
    limit: int
    stream: TextStream
    on_delta: Callable[[Delta], None]
    stats: RequestStats
    tokens: list[int] = field(default_factory=list)
    slot: int | None = None
    pages: list[int] = field(default_factory=list)
    target: int = 0  # tokens to prefill since the last admission
    planned: int = 0
    pending: int = 0
    certain: int = 0
    steps_in_flight: int = 0
    finished: bool = False
    prompt_logprobs: list[TokenLogprob | None] | None = None
    prompt_logprobs_sent: bool = False

    @property
    def prefilling(self) -> bool:
        return self.planned < self.target

    @property
    def wants_top(self) -> bool:
        return bool(self.params.logprobs) or bool(self.params.prompt_logprobs)

    def room(self) -> int:
        """Tokens it may still gain, if the steps in flight add as few as they can."""
        return self.limit - len(self.tokens) - self.certain
