"""Shorter blocks under load (`--draft-short-from N`): of a long draft few survive, and with many sequences rows are dear."""

ROWS = 4  # of a short block: the anchor and 3 drafts


class Short:
    """Whether the short block is in force: from `start` decoding sequences on, until fewer than start - 2 are left (for a
    small start: until at most max(1, start - 2))."""

    def __init__(self, start: int):
        self.start, self.on = start, False

    def update(self, decoding: int) -> bool:
        stop = self.start - 3 if self.start > 3 else max(1, self.start - 2)
        self.on = decoding >= self.start or (self.on and decoding > stop)
        return self.on
