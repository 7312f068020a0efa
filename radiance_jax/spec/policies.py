"""Drafting policies by name. One is a function from bids and prices to depths; to try yours, write it in a file of its own
and add a line to `POLICIES`: `python -m radiance_jax.bench policy --policies fixed,yours` replays traces through it.

The engine serves `fixed` and `adaptive` (`--draft-window`); the others are there to be compared with.
"""

from collections.abc import Callable, Sequence

import numpy as np

from radiance_jax.spec import window
from radiance_jax.spec.bids import Bid, Bids
from radiance_jax.spec.evidence import Depths

# (bids, curve, rows of prompts in the step, whether planned rows are paid) -> depths of each bid, in order.
# curve[n] are the seconds of a step of n rows, up to the most that the bids can ask for.
Policy = Callable[[Sequence[Bid], np.ndarray, int, bool], list[Depths]]


def fixed(bids: Sequence[Bid], curve: np.ndarray, prompts: int, as_planned: bool) -> list[Depths]:
    """As deep as allowed, always."""
    return [bid.caps for bid in bids]


def adaptive(bids: Sequence[Bid], curve: np.ndarray, prompts: int, as_planned: bool) -> list[Depths]:
    """As deep as it pays (`window.py`)."""
    if not len(bids):
        return []
    bids = Bids.of(bids)
    if bids.fixed.all():
        return [bid.caps for bid in bids]
    return (window.planned if as_planned else window.live)(bids, curve, prompts)


def off(bids: Sequence[Bid], curve: np.ndarray, prompts: int, as_planned: bool) -> list[Depths]:
    """Never."""
    return [(0,) * len(bid.caps) for bid in bids]


def copies(bids: Sequence[Bid], curve: np.ndarray, prompts: int, as_planned: bool) -> list[Depths]:
    """Only what looks like a text being copied, and then all of it; whatever it costs."""
    return [tuple(cap if level >= 1 else 0 for level, cap in enumerate(bid.caps)) for bid in bids]


POLICIES: dict[str, Policy] = {"fixed": fixed, "adaptive": adaptive, "off": off, "copies": copies}
