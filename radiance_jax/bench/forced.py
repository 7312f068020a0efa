"""Proposals written in advance, so that a test decides what is accepted. They are data: one program serves them all.

A request's seed, modulo the rows of the table, names its row; the number of tokens it has answered so far names the
entry. An entry holds K drafts and how many of them are proposed (-1: what prompt lookup found is proposed instead).
"""

from collections.abc import Callable, Sequence
from itertools import cycle

import jax.numpy as jnp
import numpy as np

from radiance_jax.engine.hooks import Hooks

LOOKUP = -1


def table(rows: int, length: int, depth: int) -> dict[str, np.ndarray]:
    """Drafts [N, L, K] and counts [N, L]: lookup everywhere."""
    return {"drafts": np.zeros((rows, length, depth), np.int32), "count": np.full((rows, length), LOOKUP, np.int32)}


def hooks(rows: int, length: int, depth: int) -> Hooks:
    return Hooks(knobs=table(rows, length, depth), propose=propose)


def propose(state, knobs, drafts, count):
    """The entry of each slot's request, or lookup's own proposal."""
    rows, length = knobs["count"].shape
    row = (state.draw.seed[:, 0] % np.uint32(rows)).astype(jnp.int32)
    at = jnp.clip(state.length - state.prompt, 0, length - 1)
    forced = knobs["count"][row, at]
    return jnp.where((forced >= 0)[:, None], knobs["drafts"][row, at], drafts), jnp.where(forced >= 0, forced, count)


Row = tuple[np.ndarray, np.ndarray]  # drafts [L, K] and counts [L] of one request


def accepting(pattern: Sequence[int], answer: Sequence[int], length: int, depth: int, vocab: int) -> Row:
    """Full-depth proposals of which exactly `pattern`'s next number is right, again and again; what follows is wrong.

    In:  pattern (2, 0), answer [5, 6, 7, 8, 9], depth 3. The prompt's step gives 5, then
    Out: at 1: 6, 7 and one wrong draft (accepts 2, emits 8 too); at 4: three wrong ones
    """
    drafts, counts = np.zeros((length, depth), np.int32), np.full(length, depth, np.int32)
    for at in range(length):
        for k in range(depth):
            right = answer[at + k] if at + k < len(answer) else 0
            drafts[at, k] = (right + 1) % vocab
    at, steps = 1, cycle(pattern)
    while at < min(len(answer), length):
        right = min(next(steps), depth)
        drafts[at, :right] = [answer[at + k] if at + k < len(answer) else 0 for k in range(right)]
        at += right + 1
    return drafts, counts


def steps_of(pattern: Sequence[int], tokens: int, depth: int) -> list[int]:
    """Tokens emitted by each verify step of an answer of `tokens` tokens under `accepting`, the first token left out.

    In:  pattern (2, 0), 6 tokens   Out: [3, 1, 1]: the last step has room for one
    """
    emitted, left, steps = [], tokens - 1, cycle(pattern)
    while left > 0:
        emitted.append(min(min(next(steps), depth) + 1, left))
        left -= emitted[-1]
    return emitted


def always(what: Callable[[int, int], int], length: int, depth: int) -> Row:
    """The same kind of proposal everywhere: `what(entry, place in the run)`."""
    drafts = np.array([[what(at, k) for k in range(depth)] for at in range(length)], np.int32).reshape(length, depth)
    return drafts, np.full(length, depth, np.int32)
