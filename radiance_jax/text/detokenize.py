"""Token ids to text as they come, giving exactly the text of decoding them all at once."""

import codecs
from collections.abc import Iterable

from radiance_jax.text.tokenizer import Tokenizer

_MAX_HELD = 16  # tokens held back for a character that does not come; longer than any UTF-8 sequence


class IncrementalDetokenizer:
    """`push` ids, get the text that is certain by now; `finish` gives the rest.

    The concatenation equals `tokenizer.decode(all ids)`, and no U+FFFD is given that a later token would resolve.
    Amortised O(1) a token: a byte-level tokenizer's bytes go through an incremental UTF-8 decoder; for others the
    text of a short window is compared with and without the new tokens, since a decoder may look back (a leading
    space, a run of byte tokens), but never past the last text given out.
    """

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool = True):
        self._tokenizer = tokenizer
        self._skip = tokenizer.special_ids if skip_special_tokens else frozenset()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._shown: list[int] = []  # the tokens of the last text given out: the context the decoder may look at
        self._shown_text = ""
        self._held: list[int] = []

    def push(self, ids: Iterable[int]) -> str:
        """The text that became certain with `ids`."""
        return "".join([self._push(token) for token in ids if token not in self._skip])

    def finish(self) -> str:
        """The text held back; call once, after the last id."""
        if self._tokenizer.byte_level:
            return self._decoder.decode(b"", final=True)
        return self._show() if self._held else ""

    def _push(self, token: int) -> str:
        if self._tokenizer.byte_level:
            return self._decoder.decode(self._tokenizer.token_bytes(token))
        if not self._tokenizer.token_bytes(token):  # no text of its own, and no context for a decoder to look at
            return ""
        self._held.append(token)
        # A run of byte tokens is decoded as a whole: valid UTF-8, or one U+FFFD for each byte of the entire run.
        if self._tokenizer.is_byte_token(token):
            return ""
        return self._show(unless_partial=len(self._held) < _MAX_HELD)

    def _show(self, unless_partial: bool = False) -> str:
        text = self._tokenizer.decode(self._shown + self._held, skip_special_tokens=False)
        if unless_partial and text.endswith("\ufffd"):
            return ""
        new = text[len(self._shown_text):]
        self._shown, self._held = self._held, []
        self._shown_text = self._tokenizer.decode(self._shown, skip_special_tokens=False)
        return new
