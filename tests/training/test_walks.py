"""Walks over held-out answers against the plainest spelling of the engine's rule."""

import numpy as np

from radiance_jax.training.held_out import HeldOut, Walks, expected_length


def test_a_walk_commits_what_is_accepted_and_one_more():
    """Answer of 8 tokens at 2..9; two drafts a block."""
    matches = np.array([9, 9, 2, 9, 9, 0, 1, 9, 0, 9])
    walks = Walks.of(matches, 2, 10, 2)  # 2: both, to 5; 5: none, to 6; 6: one, to 8; 8: none of the one that is left, to 9
    assert (walks.rounds, walks.tokens) == (4, 7)
    assert walks.reached.tolist() == [4, 2] and walks.accepted.tolist() == [2, 1]
    assert walks.tokens_per_verify == 7 / 4


def test_all_right_and_all_wrong():
    ends = Walks.of(np.array([0, 3, 3, 3, 3, 2, 1, 0]), 1, 8, 3)  # 1: three and one, to 5; 5: two, then the answer ends
    assert (ends.rounds, ends.tokens) == (2, 6) and ends.accepted.tolist() == [2, 2, 1] and ends.reached.tolist() == [2, 2, 1]
    none = Walks.of(np.zeros(8, int), 1, 8, 3)
    assert (none.rounds, none.tokens) == (6, 6) and none.report()["acceptance"] == [0.0, 0.0, 0.0]


def test_sums_are_kept_apart_by_source_and_temperature():
    one, two = Walks.of(np.zeros(4, int), 0, 4, 2), Walks.of(np.full(4, 2), 0, 4, 2)
    found = HeldOut.of([(one, "maths", 0.0), (two, "chat", 0.7)])
    assert (found.every.rounds, found.every.tokens) == (4, 6)
    assert found.report()["by"] == {
        "chat": {"tokens_per_verify": 3.0, "verifications": 1}, "maths": {"tokens_per_verify": 1.0, "verifications": 3},
        "temperature 0": {"tokens_per_verify": 1.0, "verifications": 3}, "temperature above 0": {"tokens_per_verify": 3.0, "verifications": 1}}


def test_expected_length():
    assert expected_length(np.array([8, 4, 0]), np.array([4, 1, 0])) == 1 + 0.5 + 0.125
