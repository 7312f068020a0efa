"""An engine without a model: byte tokens, answers that are a pure function of prompt, seed and choice."""

import json
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from radiance_jax.engine.request import Delta, RequestStats, SamplingParams, TokenLogprob
from radiance_jax.engine.stats import EngineStats
from radiance_jax.errors import CapacityError, UserError

EOS = 256
STEP_TOKENS = 2  # every step but the first emits this many, as if one draft had been accepted
SECRET = "the quick brown fox jumps over the lazy dog. "


class ByteTokenizer:
    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return list(text.encode("utf-8"))

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        return b"".join(map(self.token_bytes, ids)).decode("utf-8", errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id]) if token_id < 256 else b""


class Chat:
    def render(self, messages: Sequence[dict], add_generation_prompt: bool = True, tools: Any = None,
               **kwargs: Any) -> str:
        if any(each["role"] not in ("system", "user", "assistant", "tool") for each in messages):
            raise UserError("roles are system, user, assistant, tool", param="messages")
        extra = json.dumps(kwargs, sort_keys=True) if kwargs else ""
        return extra + "".join(f"<{each['role']}>{each.get('content', '')}" for each in messages) + "<assistant>" * (
            add_generation_prompt)


class FakeEngine:
    """`script(prompt_ids, params, choice)` gives the answer's text; `step_seconds` is the pace of every sequence."""

    model_name = "fake"

    def __init__(self, *, max_model_len: int = 512, step_seconds: float = 0.0, max_waiting: int = 10**6,
                 script: Callable[[Sequence[int], SamplingParams, int], str] | None = None):
        self.max_model_len, self.step_seconds, self.max_waiting = max_model_len, step_seconds, max_waiting
        self.tokenizer, self.chat, self.defaults = ByteTokenizer(), Chat(), {"top_p": 0.9, "do_sample": True}
        self.script = script or (lambda ids, params, choice: SECRET * 40)
        self.lock, self.next_id, self.counts = threading.Lock(), 0, EngineStats()
        self.aborted: set[int] = set()
        self.submitted: list[tuple[list[int], SamplingParams, int]] = []
        self.closed = False

    def submit(self, prompt_ids: Sequence[int], params: SamplingParams, on_delta: Callable[[Delta], None], *,
               choice: int = 0) -> int:
        room = self.max_model_len - len(prompt_ids)
        if room < 1 or (params.max_tokens or 1) > room:
            error = UserError(f"this model's context is {self.max_model_len} tokens", param="messages")
            error.code = "context_length_exceeded"
            raise error
        if any(not 0 <= each <= EOS for each in prompt_ids):
            raise UserError("token id outside the vocabulary", param="prompt")
        with self.lock:
            if self.counts.running >= self.max_waiting:
                raise CapacityError("the queue is full")
            self.counts.running += 1
            self.next_id += 1
            number = self.next_id
            self.submitted.append((list(prompt_ids), params, choice))
        answer = self.script(prompt_ids, params, choice)
        threading.Thread(target=self._answer, args=(number, list(prompt_ids), params, answer, on_delta, room),
                         daemon=True).start()
        return number

    def _answer(self, number: int, prompt: list[int], params: SamplingParams, answer: str,
                on_delta: Callable[[Delta], None], room: int) -> None:
        stats = RequestStats(prompt_tokens=len(prompt), cached_tokens=len(prompt) // 2, arrival=time.monotonic())
        tokens = [*answer.encode("utf-8"), EOS]
        limit = min(params.max_tokens or room, room)
        cut, end, word = min(((answer.index(w), answer.index(w) + len(w), w) for w in params.stop if w in answer),
                             default=(len(answer.encode()), 2**30, None))  # knows where its (ASCII) answer will stop
        raw, text, reason, stop, first = b"", "", None, None, True
        while reason is None:
            if self.step_seconds:
                time.sleep(self.step_seconds)
            if number in self.aborted:
                reason, new = "abort", []
            else:
                size = 1 if first else STEP_TOKENS
                new, tokens = tokens[:size][:limit - stats.completion_tokens], tokens[size:]
                if EOS in new and not params.ignore_eos:
                    reason, new = "stop", new[:new.index(EOS) + 1]
                if reason is None and stats.completion_tokens + len(new) >= limit:
                    reason = "length"
            raw += bytes(each for each in new if each != EOS)
            if len(raw) >= end:
                reason, stop = "stop", word
            shown = raw[:cut].decode("utf-8", errors="ignore")
            piece, text = shown[len(text):], shown
            with self.lock:
                if new:
                    self.counts.record_tokens(stats, len(new), time.monotonic())
            if not first and reason != "abort":
                stats.num_spec_steps += 1
                stats.num_decode_steps += 1
                stats.num_draft_tokens += 1
                accepted = max(len(new) - 1, 0)
                stats.num_accepted_draft_tokens += accepted
                stats.acceptance_histogram[accepted] = stats.acceptance_histogram.get(accepted, 0) + 1
                self.counts.record_verify(1, accepted)
                self.counts.record_step(2, 0.001)
            delta = Delta(text=piece, token_ids=tuple(new), logprobs=self._logprobs(new, params),
                          prompt_logprobs=self._prompt_logprobs(prompt, params) if first else None)
            if reason is not None:
                stats.finished = time.monotonic()
                with self.lock:
                    self.counts.running -= 1
                    self.counts.record_finish(stats, reason)
                delta = Delta(**{**vars(delta), "finish_reason": reason, "stop_reason": stop, "stats": stats})
            first = False
            on_delta(delta)

    @staticmethod
    def _row(token: int, count: int) -> TokenLogprob:
        return TokenLogprob(token, -0.5, tuple((min(token + k, EOS), -0.5 - k) for k in range(count)))

    def _logprobs(self, ids: Sequence[int], params: SamplingParams) -> tuple[TokenLogprob, ...]:
        return () if params.logprobs is None else tuple(self._row(each, params.logprobs) for each in ids)

    def _prompt_logprobs(self, ids: Sequence[int], params: SamplingParams) -> tuple | None:
        if params.prompt_logprobs is None:
            return None
        return (None, *(self._row(each, params.prompt_logprobs) for each in ids[1:]))

    def abort(self, sequence_id: int) -> None:
        self.aborted.add(sequence_id)

    def stats(self) -> EngineStats:
        return self.counts.snapshot()

    def healthy(self) -> bool:
        return not self.closed

    def close(self) -> None:
        self.closed = True
