"""Cutting proposals by confidence, against a loop."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from radiance_jax.spec.confidence import cut

SLOTS, DRAFTS = 4, 5
CONFIDENCE = st.one_of(st.floats(0, 1, width=32), st.just(float("nan")))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, DRAFTS), min_size=SLOTS, max_size=SLOTS),
       st.lists(st.lists(CONFIDENCE, min_size=DRAFTS, max_size=DRAFTS), min_size=SLOTS, max_size=SLOTS),
       st.sampled_from((0.0, 0.3, 0.5, 1.0)))
def test_a_proposal_ends_before_the_first_draft_below_the_floor(count, confidence, floor):
    kept = cut(np.array(count, np.int32), np.array(confidence, np.float32), floor)
    expected = [next((i for i in range(n) if not row[i] >= floor), n) if floor else n
                for n, row in zip(count, confidence, strict=True)]
    assert np.asarray(kept).tolist() == expected and kept.dtype == np.int32


def test_a_drafter_without_confidence_is_not_cut():
    count = np.array([3, 0], np.int32)
    assert cut(count, None, 0.9) is count
