"""What is the same for chat and completions: gathering deltas, usage, metrics, chunks."""

import json
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from radiance_jax.engine.request import Delta, RequestStats, TokenLogprob
from radiance_jax.server.errors import HttpError

DONE = b"data: [DONE]\n\n"


@dataclass
class Answer:
    """All deltas of one answer, added up."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    stats: RequestStats | None = None

    def add(self, delta: Delta) -> None:
        """Raises `HttpError` where the engine failed."""
        self.text += delta.text
        self.token_ids += delta.token_ids
        self.logprobs += delta.logprobs
        if delta.prompt_logprobs is not None:
            self.prompt_logprobs = delta.prompt_logprobs
        if delta.finish_reason is not None:
            self.finish_reason, self.stop_reason, self.stats = delta.finish_reason, delta.stop_reason, delta.stats
        if delta.finish_reason == "error":
            raise HttpError(500, delta.error or "the engine failed on this request")


def header(prefix: str, kind: str, model: str) -> dict[str, Any]:
    return {"id": f"{prefix}-{uuid.uuid4().hex}", "object": kind, "created": int(time.time()), "model": model}


def usage(prompts: Sequence[Sequence[int]], answers: Sequence[Answer], prompt_only: bool = False) -> dict[str, Any]:
    """Prompts count once each, however many answers they have. `prompt_only`: what was drawn was told to nobody."""
    n = len(answers) // len(prompts)
    prompt = sum(map(len, prompts))
    written = 0 if prompt_only else sum(
        len(each.token_ids) if each.stats is None else each.stats.completion_tokens for each in answers)
    cached = sum(each.stats.cached_tokens for each in answers[::n] if each.stats is not None)
    return {"prompt_tokens": prompt, "completion_tokens": written, "total_tokens": prompt + written,
            "prompt_tokens_details": {"cached_tokens": cached}}


def metrics(answers: Sequence[Answer]) -> dict[str, Any]:
    """`speculative_decoding` over all answers of the request."""
    total = RequestStats()
    for stats in (each.stats for each in answers if each.stats is not None):
        total.num_spec_steps += stats.num_spec_steps
        total.num_draft_tokens += stats.num_draft_tokens
        total.num_deferred_proposals += stats.num_deferred_proposals
        total.num_accepted_draft_tokens += stats.num_accepted_draft_tokens
        for accepted, steps in stats.acceptance_histogram.items():
            total.acceptance_histogram[accepted] = total.acceptance_histogram.get(accepted, 0) + steps
    return {"speculative_decoding": total.speculative()}


def to_json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode("utf-8", "replace")


def event(value: Any) -> bytes:
    return b"data: " + to_json(value) + b"\n\n"


@dataclass(frozen=True)
class Endings:
    """What a stream sends after its last choice."""

    include_usage: bool
    include_metrics: bool
    prompt_only: bool = False

    def chunk(self, head: dict[str, Any], choice: dict[str, Any]) -> bytes:
        """One choice's news. With usage asked for, every chunk carries the key, as OpenAI's do."""
        return event(head | {"choices": [choice]} | ({"usage": None} if self.include_usage else {}))

    def last(self, head: dict[str, Any], prompts: Sequence[Sequence[int]], answers: Sequence[Answer]) -> bytes:
        """The usage chunk, if any, and the end mark."""
        if not self.include_usage:
            return DONE
        extra = {"metrics": metrics(answers)} if self.include_metrics else {}
        return event(head | {"choices": [], "usage": usage(prompts, answers, self.prompt_only)} | extra) + DONE
