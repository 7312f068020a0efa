"""The start-up check: on *this* machine, does a row have the same bits whatever tile it is in, and wherever it stands in it?

XLA's products on a CPU keep one order of summation for every tile of two rows or more, as far as was seen; nothing
promises it for a processor that was not seen. So the engine scores one random text once per height, with every row of it
in tiles of that height, and once in chunks of all lengths, and compares the logprobs of all rows, each of which depends on
every row before it.

Kernels on a GPU are written so that a row's bits are its own whatever the program; what the compiler made of them, and what
XLA made of the operations between them, is checked in the same way.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import Protocol

import numpy as np

from radiance_jax.engine.kinds import KINDS
from radiance_jax.models.rows import Heights

CHECK_TOKENS = 40
RAGGED = (1, 3, 5, 2, 4, 6)  # chunks by which rows change their places in tiles and in segments of attention
READ = 137  # tokens read through the GPU programs: whole chunks of most of them, and a rest


class Reader(Protocol):
    def read_through(self, tokens: list[int], chunks: list[int], rows: int, kind: str,
                     temperature: float) -> tuple[np.ndarray, np.ndarray]:
        """Tokens drawn at every place, int32, and f32 logprobs as of `Scorer.score`, in programs of at least `rows` rows whose
        draws are of this kind."""


class Scorer(Protocol):
    def score(self, tokens: list[int], chunks: list[int]) -> np.ndarray:
        """f32 logprobs of every token after the first and of one drawn behind them, prefilled in these chunks."""


def heights_agree(device: Scorer, vocab_size: int, longest: int, heights: Heights) -> bool:
    """`longest`: the most tokens the device can score. Runs a pass per height, one that mixes them, and one in ragged chunks."""
    count = min(CHECK_TOKENS, longest)
    tokens = np.random.default_rng(0).integers(0, vocab_size, count).tolist()
    ways = [[count]] + [[height] * (count // height) + [count % height] * (count % height > 0)
                        for height, _ in heights if height <= count]
    ragged = [rows for rows, end in zip(RAGGED, accumulate(RAGGED), strict=True) if end < count]
    ways.append([*ragged, count - sum(ragged)])
    scores = [device.score(tokens, chunks).view(np.uint32) for chunks in ways]
    return all(np.array_equal(scores[0], other) for other in scores[1:])


def programs_agree(device: Reader, vocab_size: int, longest: int, buckets: Sequence[int]) -> bool:
    """Whether programs of all these row counts (ascending) and all kinds of draws give a row the same bits, in full chunks and in
    ones that leave rows idle. `longest`: the most tokens the device can score.

    Once undrawn by chance and once with noise; a kind that cannot do either is not asked to.
    """
    count = min(READ, longest)
    tokens = np.random.default_rng(0).integers(0, vocab_size, count).tolist()
    for temperature, kinds in ((0.0, KINDS), (1.0, KINDS[1:])):
        ways = [(rows, size, kind) for rows in buckets for kind in kinds
                for size in ((rows, max(rows - 3, 1)) if kind == kinds[0] else (rows,))]
        first = None
        for rows, size, kind in reversed(ways):
            chunks = [min(size, count - start) for start in range(0, count, size)]
            drawn, scores = device.read_through(tokens, chunks, rows, kind, temperature)
            found = drawn.tobytes() + scores.tobytes()
            first = found if first is None else first
            if found != first or not np.isfinite(scores).all():
                return False
    return True
