"""`/v1/completions`: the wire form of its choices, with `echo`."""

from collections.abc import Sequence
from typing import Any

from radiance_jax.engine.request import Delta, TokenLogprob
from radiance_jax.server.answer import Answer
from radiance_jax.server.logprobs import Pieces, completion_logprobs
from radiance_jax.server.prompts import Prompt


class CompletionShape:
    prefix, kind, chunk_kind = "cmpl", "text_completion", "text_completion"

    def __init__(self, pieces: Pieces, prompts: Sequence[Prompt], n: int, *, logprobs: bool, echo: bool,
                 prompt_only: bool, token_ids: bool = False):
        """`prompt_only`: `echo` with `max_tokens` 0; the one token that was drawn is not shown."""
        self.pieces, self.prompts, self.n, self.token_ids = pieces, prompts, n, token_ids
        self.logprobs, self.echo, self.prompt_only = logprobs, echo, prompt_only
        self.offsets: dict[int, int] = {}  # answer -> length of the token texts told so far
        self.echoed: set[int] = set()

    def _prompt_text(self, prompt: Prompt) -> str:
        if prompt.text is not None:
            return prompt.text
        return self.pieces.tokenizer.decode(list(prompt.ids), skip_special_tokens=False)

    def _lists(self, index: int, tokens: Sequence[TokenLogprob],
               before: Sequence[TokenLogprob | None]) -> dict[str, Any] | None:
        """Logprobs of `tokens`, after those of the prompt when `before` holds them."""
        if not self.logprobs:
            return None
        if self.prompt_only:
            tokens = ()
        ids = (*self.prompts[index // self.n].ids[:len(before)], *(token.token_id for token in tokens))
        out = completion_logprobs(self.pieces, (*before, *tokens), ids, self.offsets.get(index, 0))
        if ids:
            self.offsets[index] = out["text_offset"][-1] + len(out["tokens"][-1])
        return out

    def choice(self, index: int, answer: Answer) -> dict[str, Any]:
        text = "" if self.prompt_only else answer.text
        if self.echo:
            text = self._prompt_text(self.prompts[index // self.n]) + text
        before = answer.prompt_logprobs or () if self.echo else ()
        choice = {"index": index, "text": text, "logprobs": self._lists(index, answer.logprobs, before),
                  "finish_reason": self._reason(answer.finish_reason),
                  "stop_reason": None if self.prompt_only else answer.stop_reason}
        return choice | self._ids(answer.token_ids)

    def _ids(self, token_ids: Sequence[int]) -> dict[str, Any]:
        """Those of the answer, never of an echoed prompt."""
        return {"token_ids": () if self.prompt_only else token_ids} if self.token_ids else {}

    def _reason(self, ended: str | None) -> str | None:
        """A prompt alone ends by `length`, whatever its one token was; one that was cut off (`abort`) did not come to that."""
        return "length" if self.prompt_only and ended == "stop" else ended

    def opening(self, index: int) -> None:
        return None

    def chunk(self, index: int, delta: Delta) -> dict[str, Any] | None:
        text, before = "" if self.prompt_only else delta.text, ()
        if self.echo and index not in self.echoed:
            self.echoed.add(index)
            text, before = self._prompt_text(self.prompts[index // self.n]) + text, delta.prompt_logprobs or ()
        told, ids = self.logprobs and (delta.logprobs or before), self.token_ids and delta.token_ids
        if not (text or told or ids or delta.finish_reason):
            return None
        choice = {"index": index, "text": text,
                  "logprobs": self._lists(index, delta.logprobs, before) if told else None,
                  "finish_reason": self._reason(delta.finish_reason),
                  "stop_reason": None if self.prompt_only else delta.stop_reason}
        return choice | self._ids(delta.token_ids)
