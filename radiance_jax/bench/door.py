"""How every benchmark is entered: its arguments in, an exit status out."""

import sys
from collections.abc import Callable, Sequence
from functools import wraps

from radiance_jax.bench.record import log
from radiance_jax.errors import RadianceError, UserError

WRONG_CONFIGURATION, FAILED, INTERRUPTED = 2, 1, 130


def door(run: Callable[[Sequence[str]], int]) -> Callable[..., int]:
    """`run(argv)` as a `main`: the command line's own arguments where none are given, and what users can mend or end as one line
    and a status."""

    @wraps(run)
    def main(argv: Sequence[str] | None = None) -> int:
        try:
            return run(sys.argv[1:] if argv is None else argv)
        except RadianceError as error:
            log(f"error: {error}")
            return WRONG_CONFIGURATION if isinstance(error, UserError) else FAILED
        except KeyboardInterrupt:
            return INTERRUPTED

    return main
