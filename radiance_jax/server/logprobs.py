"""Log-probabilities on the wire, in the two forms of OpenAI's API."""

from collections.abc import Iterable, Sequence
from typing import Any

from radiance_jax.engine.request import TokenLogprob

LOWEST = -9999.0  # what JSON can carry of minus infinity


def finite(logprob: float) -> float:
    return max(float(logprob), LOWEST) if logprob == logprob else LOWEST


class Pieces:
    """Token ids to their own text and bytes, remembered. A token may be part of a character."""

    def __init__(self, tokenizer: Any):
        self.tokenizer = tokenizer
        self.known: dict[int, tuple[str, bytes]] = {}

    def __getitem__(self, token_id: int) -> tuple[str, bytes]:
        if token_id not in self.known:
            raw = self.tokenizer.token_bytes(token_id)
            self.known[token_id] = (raw.decode("utf-8", errors="replace"), raw)
        return self.known[token_id]

    def entry(self, token_id: int, logprob: float) -> dict[str, Any]:
        text, raw = self[token_id]
        return {"token": text, "logprob": finite(logprob), "bytes": list(raw)}


def chat_logprobs(pieces: Pieces, tokens: Iterable[TokenLogprob]) -> dict[str, Any]:
    """`{"content": [{token, logprob, bytes, top_logprobs: [...]}]}`."""
    return {"content": [
        pieces.entry(token.token_id, token.logprob) | {"top_logprobs": [pieces.entry(*pair) for pair in token.top]}
        for token in tokens], "refusal": None}


def completion_logprobs(pieces: Pieces, tokens: Sequence[TokenLogprob | None], ids: Sequence[int],
                        offset: int) -> dict[str, Any]:
    """Parallel lists; `offset` is where the first token's text starts.

    A prompt's first token has no logprob: its entry is None. The chosen token is always among the
    alternatives, which may thus be one more than were asked for.
    """
    out: dict[str, Any] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    for token, token_id in zip(tokens, ids, strict=True):
        text = pieces[token_id][0]
        out["tokens"].append(text)
        out["text_offset"].append(offset)
        offset += len(text)
        out["token_logprobs"].append(None if token is None else finite(token.logprob))
        out["top_logprobs"].append(None if token is None else _alternatives(pieces, token))
    return out


def _alternatives(pieces: Pieces, token: TokenLogprob) -> dict[str, float]:
    found: dict[str, float] = {}
    for token_id, logprob in (*token.top, (token.token_id, token.logprob)):
        found.setdefault(pieces[token_id][0], finite(logprob))
    return found
