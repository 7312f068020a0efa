"""How strong a proposal looks before it is verified: one of a few levels, the same on host and device.

The host plans a step before it has read the last one, so it cannot know what lookup will find there. It sends one depth
for *each* level; the device, which sees the proposal, takes the depth of the level it has. No jax in here: `level`,
`pack` and `at` are plain arithmetic, for whole numbers and for arrays alike.

A lookup proposal's level is how many tokens before it agree with its source (`agreement`): two words that recur prove
little, eight in a row are a text being copied.
"""

from collections.abc import Sequence
from typing import Any

EDGES = (4, 8)  # agreements at which a new level begins
LOOKUP_LEVELS = len(EDGES) + 1
NEURAL = LOOKUP_LEVELS  # the level of every proposal of a neural drafter
LEVELS = LOOKUP_LEVELS + 1
NOTHING = -1  # no proposal
BITS = 8  # of a depth in the packed form; depths go up to 64

Depths = tuple[int, ...]  # the most drafts to verify, by level


def level(agreement: Any) -> Any:
    """In: 3, 4, 7, 8    Out: 0, 1, 1, 2"""
    return sum((agreement >= edge) * 1 for edge in EDGES)


def alike(depth: int) -> Depths:
    """The same depth whatever the evidence."""
    return (depth,) * LEVELS


def lookup_only(depth: int) -> Depths:
    """The same depth for all that lookup proposes, and nothing of a neural drafter's."""
    return (depth,) * LOOKUP_LEVELS + (0,)


def pack(depths: Sequence[int]) -> int:
    """One int32 of four depths."""
    return sum(depth << BITS * at for at, depth in enumerate(depths))


def at(packed: Any, level: Any) -> Any:
    """The depth of a level, of packed depths."""
    return (packed >> BITS * level) & ((1 << BITS) - 1)
