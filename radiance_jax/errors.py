"""The errors a user can cause, in one style: what must hold, what came, what to do."""

import difflib
from collections.abc import Iterable

LONGEST_NAME = 100  # characters


class RadianceError(Exception):
    """Base of every error this package raises on purpose."""


class UserError(RadianceError, ValueError):
    """A wrong argument, file or flag. `param` names the field at fault where there is one."""

    def __init__(self, message: str, *, param: str | None = None):
        super().__init__(message)
        self.param = param


class ModelError(UserError):
    """A model file or folder that cannot be served as it is."""


class CapacityError(RadianceError):
    """The engine cannot take more work now; trying again later may succeed."""


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint for a misspelt name: `" (did you mean 'x'?)"`, or nothing."""
    if len(name) > LONGEST_NAME:  # a request may bring megabytes, which take seconds to compare
        return ""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f" (did you mean {close[0]!r}?)" if close else ""
