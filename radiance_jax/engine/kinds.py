"""Which programs a step takes, chosen by the host from the requests in it: how many rows, how many draws, which stages.

On a GPU a branch that only the device can decide makes the host wait for it. So there is one program per *kind* of draws; what
a kind leaves out is an exact identity for every request in it, hence the kind changes no bit.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from radiance_jax.engine.request import SamplingParams
from radiance_jax.engine.scheduler import Plan
from radiance_jax.engine.state import PREFILL

GREEDY = "greedy"  # all at temperature 0, nothing adjusted, no alternatives wanted
PLAIN = "plain"  # some above temperature 0
FULL = "full"  # anything: top-k, top-p, min-p, penalties, bias, minimum length, alternatives
KINDS = (GREEDY, PLAIN, FULL)
FEW_DRAWS = 64  # a step of more rows has a program for so many draws beside the one for all its rows

# Rows of the kernels' programs; then four times as many, and so on. Each costs seconds of start-up, and up to 64 rows read the
# weights as fast as one does.
BUCKETS = (8, 32, 64, 128, 512)


@dataclass(frozen=True, kw_only=True)
class Need:
    """At most `rows` rows in a step, `draws` of which draw, by stages of `kind`."""

    rows: int
    draws: int
    kind: str


def kind_of(each: Iterable[SamplingParams]) -> str:
    kind = GREEDY
    for params in each:
        if (params.adjusts or params.logprobs or params.prompt_logprobs
                or params.temperature and (params.top_k > 0 or params.top_p < 1 or params.min_p > 0)):
            return FULL
        if params.temperature:
            kind = PLAIN
    return kind


def need_of(plan: Plan) -> Need:
    draws = sum(entry.most_rows if entry.mode != PREFILL or entry.sequence.params.prompt_logprobs is not None else int(entry.last)
                for entry in plan.entries)
    return Need(rows=plan.rows, draws=draws, kind=kind_of(entry.sequence.params for entry in plan.entries))


def row_steps(most: int) -> tuple[int, ...]:
    """Row counts of the kernels' programs, so that `most` rows fit the last one: multiples of 8, of 128 above 64.

    In:  most 40, 200    Out: (8, 32, 40), (8, 32, 64, 128, 256)
    """
    sizes = [size for size in BUCKETS if size < most]
    while sizes and sizes[-1] >= BUCKETS[-1] and 4 * sizes[-1] < most:
        sizes.append(4 * sizes[-1])
    multiple = 8 if most <= 64 else 128
    return (*sizes, -(-most // multiple) * multiple)


def draw_steps(rows: int) -> tuple[int, ...]:
    """Draw counts of the draw programs behind a step of `rows` rows."""
    return (rows,) if rows <= FEW_DRAWS else (FEW_DRAWS, rows)


def choose(programs: Any, need: Need) -> tuple[int, tuple[int, int, str] | None]:
    """Keys of the least step program, and of the least draw program behind it (None where a step is one program)."""
    rows = next(rows for rows in programs.steps if rows >= need.rows)
    if not programs.draws:
        return rows, None
    return rows, (rows, next(draws for draws in draw_steps(rows) if draws >= need.draws), need.kind)
