"""From a step's numbers to news for the listeners: tokens, text, logprobs, and how a sequence ended."""

import logging
import time

import numpy as np

from radiance_jax.engine.request import Delta, TokenLogprob
from radiance_jax.engine.scheduler import Entry
from radiance_jax.engine.sequence import Sequence
from radiance_jax.engine.state import PREFILL, PROPOSERS, Results
from radiance_jax.engine.stats import EngineStats

log = logging.getLogger("radiance_jax.engine")

STOPPED, FULL = 1, 2
EMITTED, DRAFTS, ACCEPTED, PROPOSER = 1, 3, 4, 6  # columns of `Results.slots`


class Reader:
    """Applies the results of a step to its sequences: `apply` puts the news of one together, `deliver` tells its listener."""

    def __init__(self, stats: EngineStats):
        self.stats = stats

    def apply(self, entry: Entry, results: Results, top_ids: np.ndarray | None, tops: np.ndarray | None) -> Delta | None:
        """The sequence with the step's tokens, and its news if there are any."""
        sequence = entry.sequence
        first, emitted, ended, drafts, accepted, length, proposer = results.slot_rows[entry.slot]
        assert not emitted or length == len(sequence.tokens) + emitted, "host and device disagree on a length"

        def logprob(row: int, token: int, count: int) -> TokenLogprob:
            best = () if top_ids is None else tuple(zip(top_ids[row, :count].tolist(), tops[row, :count].tolist(), strict=True))
            return TokenLogprob(token, float(results.logprobs[row]), best)

        if entry.mode == PREFILL:
            self._prompt_logprobs(entry, first, logprob)
        if not emitted:
            return None
        tokens = results.tokens[first:first + emitted].tolist()
        if entry.mode != PREFILL:
            self._count_verify(sequence, drafts, min(accepted, emitted), PROPOSERS[proposer])
        silent = 1 if ended == STOPPED else 0  # the token that ends the answer is in the ids, not in the text
        text, kept, stop = sequence.stream.push(tokens[: emitted - silent])
        reason, stop_reason = None, None
        if stop is not None:
            tokens, reason, stop_reason = tokens[:kept], "stop", stop
        elif ended == STOPPED:
            reason = "stop"
            stop_reason = tokens[-1] if tokens[-1] in sequence.params.stop_token_ids else None
        elif ended == FULL:
            reason = "length"
        if reason and stop is None:
            text += sequence.stream.finish()
            if sequence.stream.stop_string is not None:  # the last characters, held back until now, completed it
                reason, stop_reason = "stop", sequence.stream.stop_string
        sequence.tokens += tokens
        wanted = sequence.params.logprobs
        scores = () if wanted is None else tuple(logprob(first + i, token, wanted) for i, token in enumerate(tokens))
        return Delta(
            text=text, token_ids=tuple(tokens), logprobs=scores, prompt_logprobs=self._prompt_news(sequence),
            finish_reason=reason, stop_reason=stop_reason, stats=sequence.stats if reason else None)

    def end(self, sequence: Sequence, reason: str, error: str | None = None) -> None:
        """Closes a sequence from outside (abort, error). One that is aborted gets the text of all tokens it was told."""
        if not sequence.finished:
            text = sequence.stream.finish() if reason == "abort" else ""
            self.deliver(sequence, Delta(text=text, finish_reason=reason, error=error, stats=sequence.stats))

    def deliver(self, sequence: Sequence, delta: Delta) -> bool:
        """Whether the sequence has ended. Nothing may be counted in its statistics behind its last news."""
        now, stats = time.monotonic(), sequence.stats
        if delta.token_ids:
            self.stats.record_tokens(stats, len(delta.token_ids), now)
        if delta.finish_reason:
            self._finish(sequence, delta.finish_reason, now)
        try:
            sequence.on_delta(delta)
        except Exception:  # nobody hears this answer any more; the others must not suffer for it
            log.exception("the listener of answer %d raised; the answer ends here", sequence.id)
            self.stats.listener_errors += 1
            if not sequence.finished:
                self._finish(sequence, "error", now)
        return sequence.finished

    def _finish(self, sequence: Sequence, reason: str, now: float) -> None:
        sequence.finished, sequence.stats.finished = True, now
        self.stats.record_finish(sequence.stats, reason)

    def _count_verify(self, sequence: Sequence, drafts: int, accepted: int, proposer: str) -> None:
        stats = sequence.stats
        stats.num_decode_steps += 1
        if drafts:
            stats.num_spec_steps += 1
            stats.num_draft_tokens += drafts
            stats.num_accepted_draft_tokens += accepted
            stats.acceptance_histogram[accepted] = stats.acceptance_histogram.get(accepted, 0) + 1
            self.stats.record_verify(drafts, accepted, proposer)

    def _prompt_logprobs(self, entry: Entry, first: int, logprob) -> None:
        """The row at position p scores the prompt's token p + 1; the first token has no score."""
        sequence, count = entry.sequence, entry.sequence.params.prompt_logprobs
        if count is None or sequence.prompt_logprobs_sent:
            return
        if sequence.prompt_logprobs is None or entry.first == 0:
            sequence.prompt_logprobs = [None]
        row = first - (entry.chunk - 1) if entry.last else first
        for i in range(entry.chunk):
            position = entry.first + i
            if position + 1 < len(sequence.prompt):
                sequence.prompt_logprobs.append(logprob(row + i, sequence.prompt[position + 1], count))

    def _prompt_news(self, sequence: Sequence):
        if sequence.prompt_logprobs is None or sequence.prompt_logprobs_sent:
            return None
        sequence.prompt_logprobs_sent = True
        return tuple(sequence.prompt_logprobs)
