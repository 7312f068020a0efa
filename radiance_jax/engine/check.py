"""The start-up check behind mixed tile heights: on *this* machine, do all of them give a row the same bits?

XLA's products on a CPU keep one order of summation for every tile of two rows or more, as far as was seen; nothing
promises it for a processor that was not seen. So the engine scores one random text once per height, with every row of it
in tiles of that height, and compares the logprobs of all rows, each of which depends on every row before it.
"""

from typing import Protocol

import numpy as np

from radiance_jax.models.rows import Heights

CHECK_TOKENS = 40


class Scorer(Protocol):
    def score(self, tokens: list[int], chunks: list[int]) -> np.ndarray:
        """f32 logprobs of every token after the first and of one drawn behind them, prefilled in these chunks."""


def heights_agree(device: Scorer, vocab_size: int, longest: int, heights: Heights) -> bool:
    """`longest`: the most tokens the device can score. Runs one pass per height, and one that mixes them."""
    count = min(CHECK_TOKENS, longest)
    tokens = np.random.default_rng(0).integers(0, vocab_size, count).tolist()
    ways = [[count]] + [[height] * (count // height) + [count % height] * (count % height > 0)
                        for height, _ in heights if height <= count]
    scores = [device.score(tokens, chunks).view(np.uint32) for chunks in ways]
    return all(np.array_equal(scores[0], other) for other in scores[1:])
