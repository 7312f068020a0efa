"""The GPU path, until its own kernels come: plain XLA programs by row count. Run on a GPU machine with

    JAX_PLATFORMS=cuda,cpu python -m pytest -m gpu
"""

import jax
import numpy as np
import pytest

from radiance_jax.errors import UserError
from tests.engine.test_exact import GREEDY, SEEDED, kinds, prompt

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(580)]


@pytest.fixture(autouse=True)
def on_a_gpu():
    assert jax.default_backend() == "gpu", "these tests are for a GPU machine"


def test_bit_exact_is_refused_with_the_reason(harness):
    with pytest.raises(UserError, match="row-invariant"):
        harness(bit_exact="on")


def test_a_lone_sequence_is_the_same_with_and_without_drafts(harness):
    """One row and one row with drafts run the same program, so even here the bits are the same."""
    engine = harness(dtype="bf16")
    accepted = 0
    for seed in range(4):
        for params in (GREEDY, SEEDED):
            on, off = engine.ask(prompt(seed), **params), engine.ask(prompt(seed), **params, max_draft_tokens=0)
            assert on.record() == off.record()
            accepted += on.stats.num_accepted_draft_tokens
    assert accepted > 0


def test_every_kind_of_request_is_answered_in_a_crowd(harness):
    engine = harness(dtype="f32")
    alone = [engine.ask(ids, **params) for ids, params in kinds()]
    together = engine.ask_all(kinds())
    assert all(answer.deltas[-1].finish_reason in ("length", "stop") for answer in together)
    near = [abs(a.deltas[0].logprobs[0].logprob - b.deltas[0].logprobs[0].logprob) for a, b in zip(alone, together, strict=True)]
    assert np.max(near) < 1e-2
