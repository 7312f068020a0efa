"""Order-free sums: against float64, against themselves in another order, and at their edges."""

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radiance_jax.engine.mass import mass
from radiance_jax.engine.sampling import raw_logprobs

MASS = jax.jit(mass)
LARGEST = 151_936
SMALL = st.one_of(st.sampled_from([0.0, 1.0, 2.0**-13, 2.0**-26, 2.0**-39, 2.0**-40, 1 - 2.0**-24, 1e-38]),
                  st.floats(0, 1, width=32))


def exact(weights: np.ndarray) -> np.ndarray:
    return weights.astype(np.float64).sum(-1)


@settings(max_examples=60, deadline=None)
@given(st.lists(SMALL, min_size=64, max_size=64), st.randoms(use_true_random=False))
def test_a_sum_is_right_and_the_same_in_any_order(values, random):
    values[0] = 1.0  # as the weight of the largest logit
    weights = np.array([values], np.float32)
    ours = np.asarray(MASS(weights))
    np.testing.assert_allclose(ours, exact(weights), rtol=1e-6)
    random.shuffle(values)
    assert np.asarray(MASS(np.array([values], np.float32))).tobytes() == ours.tobytes()


@pytest.mark.parametrize("spread", (0.01, 1.0, 3.0, 30.0))
def test_a_large_vocabulary_sums_right_whatever_its_mates_and_order(spread):
    rng = np.random.default_rng(0)
    logits = rng.normal(0, spread, (3, LARGEST)).astype(np.float32)
    weights = np.exp(logits - logits.max(1, keepdims=True))
    ours = np.asarray(MASS(weights))
    np.testing.assert_allclose(ours, exact(weights), rtol=1e-6)
    assert np.asarray(MASS(weights[:, ::-1])).tobytes() == ours.tobytes()
    assert all(np.asarray(MASS(weights[i:i + 1])).tobytes() == ours[i:i + 1].tobytes() for i in range(3))


def test_no_limb_overflows_where_every_token_is_as_likely():
    count = 2**18
    for value in (1.0, 1 - 2.0**-24, 2.0**-13 - 2.0**-37):
        weights = np.full((1, count), value, np.float32)
        weights[0, 0] = 1.0
        np.testing.assert_allclose(np.asarray(MASS(weights)), exact(weights), rtol=1e-6)


def test_it_grows_with_every_weight():
    """What top-p's search relies on."""
    weights = np.sort(np.random.default_rng(1).random((1, 4096)).astype(np.float32) ** 8)[:, ::-1]
    kept = np.tril(np.ones((256, 4096), np.float32), 4096 - 256)
    assert (np.diff(np.asarray(MASS(kept * weights))) >= 0).all()


def test_normalisers_at_the_edges():
    logits = np.full((5, LARGEST), -np.inf, np.float32)
    logits[0, 17] = 3.0  # one token is possible
    logits[1] = 0.0  # all are as likely
    logits[2, :2] = 5.0  # a tie
    logits[3], logits[3, 9] = -20.0, 1e4  # one is everything
    logits[4] = -88.0
    logits[4, 3] = 0.0  # a tail that is all below the resolution
    expected = np.array([3.0, np.log(LARGEST), 5 + np.log(2), 1e4, 0.0])
    normaliser, logprob = map(np.asarray, jax.jit(raw_logprobs)(logits, np.array([17, 5, 1, 9, 3], np.int32)))
    np.testing.assert_allclose(normaliser, expected, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(logprob, logits[np.arange(5), [17, 5, 1, 9, 3]] - expected, rtol=1e-6, atol=1e-6)
