"""Finding stop strings in text that comes in pieces."""

from collections.abc import Sequence


class StopChecker:
    """`push` pieces of text, get the text that no stop string can touch any more, and the stop string if one came.

    The match is the one that is complete first (of several complete at the same character, the longest), so it does
    not depend on how the text is cut into pieces. Text before it is given out; it and what follows never are.
    """

    def __init__(self, stops: Sequence[str]):
        self._stops = tuple(dict.fromkeys(stops))
        self._held = ""  # the longest end of the text so far that may begin a stop string
        self.found: str | None = None

    @property
    def looks(self) -> bool:
        """Whether there is anything to look for."""
        return bool(self._stops)

    def push(self, piece: str) -> tuple[str, str | None]:
        """(text given out, stop string completed by this piece or None). After a match nothing more comes."""
        if self.found is not None:
            return "", self.found
        if not piece or not self._stops:
            return piece, None
        text = self._held + piece
        matches = [(at + len(stop), at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if matches:
            _, at, self.found = min(matches)
            self._held = ""
            return text[:at], self.found
        keep = len(text) - max(_overlap(text, stop) for stop in self._stops)
        self._held = text[keep:]
        return text[:keep], None

    def flush(self) -> str:
        """The text held back, when no more comes."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that is a proper beginning of `stop`.

    In:  text "one tw", stop "two"   Out: 2
    """
    return next((n for n in range(min(len(stop) - 1, len(text)), 0, -1) if stop.startswith(text[-n:])), 0)
