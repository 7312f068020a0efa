"""The pool of key/value pages. Page 0 is the bin where dead rows write; it is never handed out."""

from collections import deque


class PagePool:
    def __init__(self, pages: int):
        """`pages` in all, page 0 included."""
        self.total = pages - 1
        self._free = deque(range(1, pages))

    @property
    def free(self) -> int:
        return len(self._free)

    @property
    def used(self) -> int:
        return self.total - len(self._free)

    def take(self, count: int) -> list[int] | None:
        """`count` pages, or None and nothing taken if there are not as many."""
        if count > len(self._free):
            return None
        return [self._free.popleft() for _ in range(count)]

    def give(self, pages: list[int]) -> None:
        self._free.extend(pages)
        assert len(self._free) <= self.total, "pages given back twice"
