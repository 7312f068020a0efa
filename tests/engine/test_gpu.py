"""The GPU path: the promise in the row-invariant kernels, and the XLA path without it. Run on a GPU machine with

    JAX_PLATFORMS=cuda,cpu python -m pytest -m gpu tests/engine/test_gpu.py
"""

import os

import jax
import numpy as np
import pytest

from radiance_jax.config import EngineConfig
from radiance_jax.engine.engine import Engine
from radiance_jax.engine.kernels import HOPPER, compute_capability
from radiance_jax.errors import UserError
from tests.engine.conftest import Harness
from tests.engine.test_exact import GREEDY, SEEDED, kinds, prompt

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(580)]


@pytest.fixture(autouse=True)
def on_a_gpu():
    assert jax.default_backend() == "gpu", "these tests are for a GPU machine"


def hopper() -> None:
    if compute_capability() != HOPPER:
        pytest.skip(f"the kernels are for compute capability {HOPPER}")


@pytest.fixture(scope="module")
def exact(tmp_path_factory):
    """The default model, bit-exact on demand."""
    hopper()
    lines: list[str] = []
    config = EngineConfig(dtype="bf16", bit_exact="on", max_model_len=1024, max_num_seqs=8, cache_dir=os.environ.get("RADIANCE_CACHE"),
                          draft_window="fixed")
    engine = Harness(Engine.load(config, lines.append))
    assert engine.engine.exact and any(line.startswith("check: a row has the same bits") for line in lines)
    yield engine
    engine.engine.close()


def asks() -> list[tuple[list[int], dict]]:
    """Requests to a vocabulary of at least 151 ids, of all kinds of draws."""
    return [(ids, params | dict(max_tokens=min(params["max_tokens"], 40))) for ids, params in kinds()]


def test_drafting_changes_no_bit_alone(exact):
    drafts = accepted = 0
    for seed in range(4):
        for params in (GREEDY, SEEDED, dict(temperature=0.0, max_tokens=64, logprobs=0), dict(seed=3, max_tokens=64, logprobs=0)):
            on, off = exact.ask(prompt(seed), **params), exact.ask(prompt(seed), **params, max_draft_tokens=0)
            assert on.record() == off.record()
            drafts, accepted = drafts + on.stats.num_draft_tokens, accepted + on.stats.num_accepted_draft_tokens
    assert 0 < accepted < drafts


def test_company_and_drafting_change_no_bit(exact):
    alone = [exact.ask(ids, **params, **off).record() for ids, params in asks()
             for off in [{} if "max_draft_tokens" in params else dict(max_draft_tokens=0)]]
    assert [answer.record() for answer in exact.ask_all(asks())] == alone


def test_chunks_change_no_bit(exact):
    """Steps of at most 5, 60, 100 and all rows: programs of every row count."""
    scheduler, whole = exact.engine._scheduler, exact.engine._scheduler.budget
    long = [(prompt(31, 600), dict(temperature=0.0, max_tokens=24, logprobs=2, prompt_logprobs=0)),
            (prompt(32, 300), dict(temperature=0.9, seed=5, max_tokens=24, logprobs=0))]
    expected = [exact.ask(ids, **params).record() for ids, params in long]
    try:
        for rows in (9, 60, 100):
            scheduler.budget = rows
            assert [answer.record() for answer in exact.ask_all(long)] == expected
    finally:
        scheduler.budget = whole


def test_a_kind_of_draws_changes_no_bit(exact):
    """The same draw in programs with and without the stages it does not need."""
    for params in (dict(temperature=0.0), dict(temperature=1.0, seed=9)):
        lean = exact.ask(prompt(3), **params, max_tokens=32, logprobs=0)
        full = exact.ask(prompt(3), **params, max_tokens=32, logprobs=3)
        assert lean.ids == full.ids
        bits = [[(s.token_id, s.logprob.hex()) for d in answer.deltas for s in d.logprobs] for answer in (lean, full)]
        assert bits[0] == bits[1]


def test_a_decoded_logprob_is_the_prompt_logprob_of_the_same_text(exact):
    answer = exact.ask(prompt(6), temperature=0.0, max_tokens=48, logprobs=0, ignore_eos=True)
    echo = exact.ask([*prompt(6), *answer.ids], temperature=0.0, max_tokens=1, prompt_logprobs=0, ignore_eos=True)
    scores = next(d.prompt_logprobs for d in echo.deltas if d.prompt_logprobs is not None)[-48:]
    assert [s.logprob.hex() for s in scores] == [s.logprob.hex() for d in answer.deltas for s in d.logprobs]


def test_kernels_and_xla_agree_but_for_rounding(exact):
    config = EngineConfig(dtype="bf16", bit_exact="off", max_model_len=1024, max_num_seqs=8, cache_dir=os.environ.get("RADIANCE_CACHE"),
                          draft_window="fixed")
    other = Harness(Engine.load(config, lambda line: None))
    try:
        assert not other.engine.exact
        ask = dict(temperature=0.0, max_tokens=1, prompt_logprobs=0)
        scores = [[s.logprob for s in next(d.prompt_logprobs for d in engine.ask(prompt(8, 200), **ask).deltas
                                           if d.prompt_logprobs is not None)[1:]] for engine in (exact, other)]
        assert np.abs(np.subtract(*scores)).mean() < 0.2
    finally:
        other.engine.close()


def test_exactness_on_demand_is_refused_where_it_cannot_be_had(harness):
    with pytest.raises(UserError, match="bf16"):
        harness(bit_exact="on", dtype="f32")
    with pytest.raises(UserError, match="multiple of 64"):  # the tiny model's attention output is 144 wide
        harness(bit_exact="on", dtype="bf16")


def test_a_lone_sequence_is_the_same_with_and_without_drafts_in_xla(harness):
    """One row and one row with drafts run the same program, so even here the bits are the same."""
    engine = harness(dtype="bf16", bit_exact="off")
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
