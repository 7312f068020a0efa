"""Whether a training prompt shares text with an evaluation set.

A prompt is dropped if it has a run of 13 words in common with an evaluation text, or holds the whole of one that is shorter
than that (but has at least 4 words). The runs of the evaluation sets are kept as 40-bit hashes in the package, so the check
runs anywhere, the sets need not be there, and their text is not passed on. A hash errs on one side only: of a million runs
that are nowhere in the sets less than one is taken for one that is.
"""

import hashlib
import re
import unicodedata
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Self

import numpy as np

from radiance_jax.errors import UserError

RUN = 13  # words
SHORTEST = 4  # an evaluation text of fewer words is too common to be known by
_BITS = 40
_WORD = re.compile(r"\w+")
_FACTOR, _MIX = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD6E8FEB86659FD93)  # odd, so that each is one to one modulo 2**64


def words_of(text: str) -> list[str]:
    """The words of a text as they are compared: compatibility forms made one, without case and punctuation.

    In:  "It's  A\\u00a0TEST: 3.5"    Out: ["it", "s", "a", "test", "3", "5"]
    """
    return _WORD.findall(unicodedata.normalize("NFKC", text).casefold())


@lru_cache(maxsize=1 << 17)
def _word_hash(word: str) -> int:
    return int.from_bytes(hashlib.blake2b(word.encode("utf-8"), digest_size=8).digest(), "little")


def run_hashes(words: list[str], lengths: tuple[int, ...]) -> np.ndarray:
    """[runs] uint64 below 2**40: a hash of every run of as many words as one of `lengths` (ascending) says, shorter runs
    first. A polynomial of the words' hashes modulo 2**64, so that a run's comes from that of the run one word shorter.

    In:  ["a", "b", "c"], (2, 3)    Out: hashes of "a b", "b c" and "a b c"
    """
    each = np.array([_word_hash(word) for word in words], np.uint64)
    found, total = [np.zeros(0, np.uint64)], np.zeros(len(words) + 1, np.uint64)
    for length in range(1, min(max(lengths, default=0), len(words)) + 1):
        total = total[:-1] * _FACTOR + each[length - 1:]
        if length in lengths:
            mixed = (total ^ np.uint64(length)) * _FACTOR
            found.append(((mixed ^ (mixed >> np.uint64(32))) * _MIX) >> np.uint64(64 - _BITS))
    return np.concatenate(found)


class EvaluationSets:
    """The runs of words of the evaluation sets. `hashes` [runs] uint64, ascending; `lengths`: words of the runs among them."""

    def __init__(self, hashes: np.ndarray, lengths: tuple[int, ...]):
        self.hashes, self.lengths = hashes, lengths

    @classmethod
    def of(cls, texts: Iterable[str]) -> Self:
        """From the texts of the evaluation sets: questions, references and solutions."""
        found: list[np.ndarray] = []
        lengths: set[int] = set()
        for words in map(words_of, texts):
            if len(words) >= SHORTEST:
                length = min(RUN, len(words))
                lengths.add(length)
                found.append(run_hashes(words, (length,)))
        return cls(np.unique(np.concatenate([np.zeros(0, np.uint64), *found])), tuple(sorted(lengths)))

    @classmethod
    def load(cls, path: Path) -> Self:
        """From a file that `save` wrote."""
        try:
            with np.load(path, allow_pickle=False) as file:
                return cls(np.cumsum(file["steps"].astype(np.uint64)), tuple(file["lengths"].tolist()))
        except (OSError, ValueError, KeyError) as error:
            raise UserError(f"{path} must hold the runs of words of the evaluation sets ({error}); make it again with "
                            "python -m radiance_jax.training.build_prompts", param="prompts") from None

    def save(self, path: Path) -> None:
        """As differences, which are small and compress."""
        np.savez_compressed(path, steps=np.diff(self.hashes, prepend=np.uint64(0)), lengths=np.array(self.lengths, np.int32))

    def shares(self, text: str) -> bool:
        """Whether `text` is to be kept from training."""
        runs = run_hashes(words_of(text), self.lengths)
        if not len(runs) or not len(self.hashes):
            return False
        places = np.minimum(np.searchsorted(self.hashes, runs), len(self.hashes) - 1)
        return bool(np.any(self.hashes[places] == runs))
