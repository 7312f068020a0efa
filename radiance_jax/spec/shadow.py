"""The host's own lookup, one step behind: what was proposed at every place of an answer, and whether it was right.

The device looks proposals up and the host never needs them to plan; but from the tokens it reads the host can tell what
lookup *would* have proposed at each place, verified or not, and a few tokens later what would have been accepted. So the
record learns as much at depth 0 as at any depth, and nothing has to be tried out for it.

The rule is that of `lookup.py`, kept up token by token: for each n-gram the index holds the place where it ended last.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from radiance_jax.spec.evidence import EDGES, NOTHING, level


@dataclass(slots=True)
class Open:
    """A proposal that tokens to come will judge: `count` tokens from `source` on, of which `right` were drawn so far.
    `anchor`: a step began there."""

    level: int
    source: int
    count: int
    right: int = 0
    anchor: bool = False


class Shadow:
    """`level` and `count` describe the proposal behind the last token seen: NOTHING and 0 where there is none. `judged`
    collects, of the proposals at which a step began (`anchor`), how many drafts were right once that is known."""

    def __init__(self, *, longest: int, shortest: int, window: int):
        self.tokens: list[int] = []
        self.level, self.count = NOTHING, 0
        self._sizes = range(longest, shortest - 1, -1)
        self._window = window
        self._ends: dict[tuple[int, ...], int] = {}
        self._open: list[Open] = []
        self.judged: list[int] = []

    def read(self, tokens: Sequence[int]) -> None:
        """Tokens that are given, not drawn: a prompt's. Nothing is judged by them."""
        for token in tokens:
            self.tokens.append(token)
            self._index()

    def push(self, token: int, tell: Callable[[int, int, bool], None]) -> None:
        """One token that was drawn. `tell(level, place, right)` hears what it says of each proposal before it."""
        at = len(self.tokens)
        self.tokens.append(token)
        still = []
        for each in self._open:
            right = self.tokens[each.source + each.right] == token
            tell(each.level, each.right, right)
            each.right += right
            if right and each.right < each.count:
                still.append(each)
            elif each.anchor:
                self.judged.append(each.right)
        self._open = still
        end = self._index()
        self.level, self.count = NOTHING, 0
        if end is not None:
            self.level, self.count = level(self._agreement(end)), min(at - end, self._window)
            if self.count:
                self._open.append(Open(self.level, end + 1, self.count))

    def proposal(self) -> list[int]:
        """The drafts that lookup proposes behind the last token."""
        if not self.count:
            return []
        latest = self._open[-1]
        return self.tokens[latest.source:latest.source + latest.count]

    def anchor(self) -> None:
        """A step begins behind the last token: what becomes of the proposal there is to be collected."""
        if self.count:
            self._open[-1].anchor = True
        else:
            self.judged.append(0)

    def _index(self) -> int | None:
        """Files the suffixes that end here. Returns where the longest of them that stood here before ended last."""
        n, found = len(self.tokens), None
        for size in self._sizes:
            if size <= n:
                gram = tuple(self.tokens[n - size:])
                if found is None:
                    found = self._ends.get(gram)
                self._ends[gram] = n - 1
        return found

    def _agreement(self, end: int) -> int:
        """Tokens up to `end` that equal those up to the last one, as far as levels care."""
        tokens, last = self.tokens, len(self.tokens) - 1
        count = 0
        while count < EDGES[-1] and count <= end and tokens[end - count] == tokens[last - count]:
            count += 1
        return count
