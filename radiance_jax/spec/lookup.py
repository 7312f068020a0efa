"""Prompt lookup: propose what followed the last time this text was written. The host form, and the oracle.

The longest suffix of the sequence (at most `longest`, at least `shortest` tokens) that occurred earlier is looked up;
among its earlier occurrences the latest wins; what followed it is proposed (Saxena 2023, "Prompt Lookup Decoding").
The engine runs `lookup_device.py`, which never leaves the device and agrees with this one on every input.
"""

from collections.abc import Sequence


def propose(tokens: Sequence[int], *, longest: int, shortest: int, window: int) -> list[int]:
    """Up to `window` draft tokens to follow `tokens`.

    In:  tokens [5, 6, 7, 8, 5, 6], longest 4, shortest 2, window 3
    Out: [7, 8, 5]
    """
    tokens = list(tokens)
    end = len(tokens)
    for size in range(min(longest, end - 1), shortest - 1, -1):
        suffix = tokens[end - size:]
        for at in range(end - size - 1, -1, -1):
            if tokens[at:at + size] == suffix:
                return tokens[at + size:at + size + window]
    return []
