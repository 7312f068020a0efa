"""The text of one answer as its tokens come: detokeniser and stop strings together."""

from collections.abc import Sequence

from radiance_jax.text.detokenize import IncrementalDetokenizer
from radiance_jax.text.stop import StopChecker
from radiance_jax.text.tokenizer import Tokenizer


class TextStream:
    """Turns runs of accepted tokens into text, and cuts a run at the token that completes a stop string.

    Stop strings are not looked for in the text of the first `min_tokens` tokens.
    """

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str] = (), *, min_tokens: int = 0,
                 skip_special_tokens: bool = True):
        self._detokenizer = IncrementalDetokenizer(tokenizer, skip_special_tokens)
        self._stops = StopChecker(stops)
        self._exempt = min_tokens

    @property
    def stop_string(self) -> str | None:
        """The stop string that ended the answer, or None."""
        return self._stops.found

    def push(self, token_ids: Sequence[int]) -> tuple[str, int, str | None]:
        """(new text, number of tokens kept, stop string or None).

        All tokens are kept unless one completes a stop string; that one is kept, those after it are not. Text may
        lag behind the tokens. Once a stop string was found, nothing is kept.
        """
        if self.stop_string is not None:
            return "", 0, self.stop_string
        if not self._stops.looks:
            self._exempt = max(self._exempt - len(token_ids), 0)
            return self._detokenizer.push(token_ids), len(token_ids), None
        parts: list[str] = []
        for index, token in enumerate(token_ids):
            text = self._detokenizer.push((token,))
            if self._exempt > 0:
                self._exempt -= 1
                parts.append(text)
                continue
            text, stop = self._stops.push(text)
            parts.append(text)
            if stop is not None:
                return "".join(parts), index + 1, stop
        return "".join(parts), len(token_ids), None

    def finish(self) -> str:
        """The text still held back; nothing after a stop string. The held text may itself complete one."""
        if self.stop_string is not None:
            return ""
        tail = self._detokenizer.finish()
        if self._exempt > 0:
            return tail
        text, stop = self._stops.push(tail)
        return text if stop is not None else text + self._stops.flush()
