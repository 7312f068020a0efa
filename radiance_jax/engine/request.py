"""What goes into the engine and what comes out: plain values, no jax.

A response is a pure function of (prompt ids, `SamplingParams`, seed); everything here is
either one of those three or an observation about how the answer was made.
"""

from dataclasses import dataclass, field
from typing import Literal

from radiance_jax.errors import UserError

MAX_TOP_LOGPROBS = 20
MAX_STOP_TOKENS = 8  # device-side stop ids per sequence, the model's own EOS ids included
MAX_LOGIT_BIAS = 512
MIN_TEMPERATURE = 1e-5

FinishReason = Literal["stop", "length", "abort", "error"]


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How one answer is drawn. Every field is checked on construction.

    `logprobs` is the number of alternatives wanted beside each chosen token (0 to 20; None: no
    logprobs at all). Logprobs are raw: the log-softmax of the model's own logits, in f32, before any
    field below touches them. `max_draft_tokens` caps drafting for this request (0: none; None: the
    engine's own depth), `draft_window` says whether it drafts as deep as that always ("fixed") or as deep as
    it pays ("adaptive"; None: as the engine does); they change speed, never the answer.
    """

    max_tokens: int | None = None
    min_tokens: int = 0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    max_draft_tokens: int | None = None
    draft_window: Literal["fixed", "adaptive"] | None = None

    @property
    def adjusts(self) -> bool:
        """Whether logits are changed before the draw: penalties, a minimum length, a bias."""
        return bool(self.presence_penalty or self.frequency_penalty or self.repetition_penalty != 1.0 or self.logit_bias
                    or self.min_tokens)

    def __post_init__(self) -> None:
        def check(name: str, holds: bool, must: str) -> None:
            if not holds:
                raise UserError(f"{name} must be {must}; got {getattr(self, name)!r}", param=name)

        def real(name: str, low: float, high: float, must: str) -> None:
            value = getattr(self, name)
            ok = isinstance(value, (int, float)) and not isinstance(value, bool)
            check(name, ok and low <= value <= high, must)  # so compared, NaN and whole numbers of any length are refused

        def whole(name: str, low: int, high: int, must: str, optional: bool = False) -> None:
            value = getattr(self, name)
            if optional and value is None:
                return
            check(name, isinstance(value, int) and not isinstance(value, bool) and low <= value <= high, must)

        whole("max_tokens", 1, 2**30, "a whole number, at least 1", optional=True)
        whole("min_tokens", 0, 2**30, "a whole number, at least 0")
        if self.max_tokens is not None:
            check("min_tokens", self.min_tokens <= self.max_tokens, "at most max_tokens")
        real("temperature", 0.0, 100.0, "a number from 0 to 100")
        if self.temperature < MIN_TEMPERATURE:  # f32 logits over it would overflow; the draw is the likeliest token anyway
            object.__setattr__(self, "temperature", 0.0)
        whole("top_k", -1, 2**30, "a whole number, -1 or 0 for all tokens")
        real("top_p", 0.0, 1.0, "a number above 0, at most 1")
        check("top_p", self.top_p > 0, "a number above 0, at most 1")
        real("min_p", 0.0, 1.0, "a number from 0 to 1")
        real("presence_penalty", -2.0, 2.0, "a number from -2 to 2")
        real("frequency_penalty", -2.0, 2.0, "a number from -2 to 2")
        real("repetition_penalty", 1e-3, 1e3, "a number from 0.001 to 1000")
        whole("seed", -(2**63), 2**64 - 1, "a whole number of at most 64 bits", optional=True)
        whole("logprobs", 0, MAX_TOP_LOGPROBS, f"a whole number from 0 to {MAX_TOP_LOGPROBS}", optional=True)
        whole("prompt_logprobs", 0, MAX_TOP_LOGPROBS, f"a whole number from 0 to {MAX_TOP_LOGPROBS}", optional=True)
        whole("max_draft_tokens", 0, 2**30, "a whole number, at least 0", optional=True)
        check("draft_window", self.draft_window in (None, "fixed", "adaptive"), "fixed or adaptive")
        check("stop", isinstance(self.stop, tuple) and all(isinstance(s, str) and s for s in self.stop),
              "a tuple of non-empty strings")
        check("stop_token_ids", isinstance(self.stop_token_ids, tuple) and len(self.stop_token_ids) <= MAX_STOP_TOKENS,
              f"at most {MAX_STOP_TOKENS} token ids")
        check("logit_bias", isinstance(self.logit_bias, tuple) and len(self.logit_bias) <= MAX_LOGIT_BIAS
              and all(-100 <= b <= 100 for _, b in self.logit_bias),
              f"at most {MAX_LOGIT_BIAS} (token id, bias from -100 to 100) pairs")


@dataclass(frozen=True)
class TokenLogprob:
    """A token's raw log-probability and the likeliest alternatives at its position, best first."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass
class RequestStats:
    """How one answer was made. Times are `time.monotonic()` seconds.

    Identity kept by the engine: `num_decode_steps + num_accepted_draft_tokens`, plus the token that each prefill emits
    (one more for each preemption behind it), is `completion_tokens` unless the answer was cut inside an accepted run.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    num_spec_steps: int = 0  # verify steps that carried at least one draft
    num_decode_steps: int = 0  # all steps that decoded this sequence
    num_draft_tokens: int = 0
    num_accepted_draft_tokens: int = 0
    acceptance_histogram: dict[int, int] = field(default_factory=dict)  # accepted drafts -> verify steps
    num_deferred_proposals: int = 0  # steps whose proposal was left alone because verifying it would not have paid
    preemptions: int = 0
    arrival: float = 0.0
    first_token: float | None = None
    last_token: float | None = None
    finished: float | None = None

    def speculative(self) -> dict:
        """The `metrics.speculative_decoding` object of an answer (the names vLLM users know)."""
        steps, drafts, accepted = self.num_spec_steps, self.num_draft_tokens, self.num_accepted_draft_tokens
        width = max(self.acceptance_histogram, default=0) + 1
        return {
            "mean_acceptance_length": 1 + accepted / steps if steps else 1.0,
            "draft_acceptance_rate": accepted / drafts if drafts else 0.0,
            "acceptance_histogram": [self.acceptance_histogram.get(k, 0) for k in range(width)],
            "num_spec_steps": steps,
            "num_accepted_draft_tokens": accepted,
            "num_draft_tokens": drafts,
            "num_spec_tokens": accepted + steps,
            "num_deferred_proposals": self.num_deferred_proposals,
        }


@dataclass(frozen=True, kw_only=True)
class Delta:
    """News of one sequence: the tokens of one step, their text, and how it ended if it did.

    `text` may lag behind `token_ids` while a character or a possible stop string is incomplete; the
    concatenation over all deltas is the whole text. `stats` comes with the last delta.
    """

    text: str = ""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    error: str | None = None
    stats: RequestStats | None = None
