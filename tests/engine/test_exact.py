"""The promise, in short: ids and logprob bits do not depend on drafting, mates, chunking, capacity, preemption or slot."""

import numpy as np
import pytest

from radiance_jax.engine.pages import PagePool
from tests.engine.conftest import until

GREEDY = dict(temperature=0.0, max_tokens=48, logprobs=5, ignore_eos=True)
SEEDED = dict(temperature=0.8, seed=11, max_tokens=48, logprobs=5, ignore_eos=True)


def prompt(seed: int, length: int = 40, repeats: int = 2) -> list[int]:
    return np.random.default_rng(seed).integers(3, 151, length // repeats).tolist() * repeats


def kinds() -> list[tuple[list[int], dict]]:
    """Sixteen requests, each of another kind."""
    base = dict(max_tokens=32, logprobs=3, ignore_eos=True)
    return [
        (prompt(0), GREEDY), (prompt(1), SEEDED), (prompt(2, 7, 1), base | dict(temperature=1.5, seed=3)),
        (prompt(3, 120), base | dict(temperature=0.0)), (prompt(4), base | dict(temperature=0.7, top_k=5, seed=4)),
        (prompt(5), base | dict(temperature=1.0, top_p=0.7, seed=5)), (prompt(6), base | dict(temperature=1.0, min_p=0.1, seed=6)),
        (prompt(7), base | dict(temperature=0.0, repetition_penalty=1.3)),
        (prompt(8), base | dict(temperature=0.9, presence_penalty=0.7, frequency_penalty=0.5, seed=8)),
        (prompt(9), base | dict(temperature=0.0, logit_bias=((17, 4.0), (20, -100.0)))),
        (prompt(10), dict(temperature=0.0, max_tokens=64, min_tokens=12, stop_token_ids=tuple(range(3, 11)), logprobs=2)),
        (prompt(11), base | dict(temperature=0.0, prompt_logprobs=4)), (prompt(12, 1, 1), base | dict(temperature=0.0)),
        (prompt(13, 200), base | dict(temperature=0.6, seed=13)), (prompt(14), base | dict(temperature=0.0, max_draft_tokens=2)),
        (prompt(15), dict(temperature=0.0, max_tokens=64, stop=("w7", "w1"), logprobs=0, ignore_eos=True)),
    ]


@pytest.mark.parametrize("tp", (1, 3, *(pytest.param(tp, marks=pytest.mark.slow) for tp in (2, 4, 8)),
                                *(pytest.param(tp, marks=pytest.mark.long) for tp in (5, 6))))
def test_drafting_changes_no_bit_at_any_width(harness, tp):
    engine = harness(mesh=f"tp={tp}", **({"row_tile": 4} if tp == 3 else {}))  # of one height: half the compile time
    drafts = accepted = 0
    for seed in range(3):
        for params in (GREEDY, SEEDED):
            on, off = engine.ask(prompt(seed), **params), engine.ask(prompt(seed), **params, max_draft_tokens=0)
            assert on.record() == off.record()
            assert off.stats.num_draft_tokens == 0
            drafts, accepted = drafts + on.stats.num_draft_tokens, accepted + on.stats.num_accepted_draft_tokens
    assert 0 < accepted < drafts, "drafts must have been both accepted and refused"


@pytest.mark.parametrize("dtype", ("f32", pytest.param("bf16", marks=pytest.mark.slow)))
def test_sixteen_mixed_requests_at_once_equal_each_alone(harness, dtype):
    engine = harness(dtype=dtype)
    alone = [engine.ask(ids, **params).record() for ids, params in kinds()]
    together = engine.ask_all(kinds())
    assert [answer.record() for answer in together] == alone
    assert sum(answer.stats.num_accepted_draft_tokens for answer in together) > 0


@pytest.mark.parametrize("options", (
    dict(max_num_batched_tokens=8), dict(max_num_seqs=1),
    *(pytest.param(more, marks=pytest.mark.slow) for more in (
        dict(max_num_seqs=9, max_num_batched_tokens=64), dict(num_speculative_tokens=0), dict(num_speculative_tokens=16),
        dict(kv_pages=40)))), ids=str)
def test_capacity_settings_change_no_bit(harness, options):
    reference = harness()
    other = harness(**options)
    for ids, params in kinds()[:12]:
        assert other.ask(ids, **params).record() == reference.ask(ids, **params).record()


def test_a_small_pool_preempts_and_changes_no_bit(harness):
    engine = harness()
    scheduler = engine.engine._scheduler
    requests = [(prompt(seed, 60), GREEDY | dict(max_tokens=100)) for seed in range(8)]
    alone = [engine.ask(ids, **params).record() for ids, params in requests]
    before, whole = engine.engine.stats().preemptions, scheduler.pool
    until(scheduler.idle)
    scheduler.pool = PagePool(20)
    try:
        assert [answer.record() for answer in engine.ask_all(requests)] == alone
        assert engine.engine.stats().preemptions > before
        until(scheduler.idle)
    finally:
        scheduler.pool = whole


def test_a_decode_logprob_is_the_prompt_logprob_of_the_same_ids(harness):
    engine = harness()
    for params in (GREEDY, SEEDED):
        ids = prompt(21)
        answer = engine.ask(ids, **params)
        echo = engine.ask([*ids, *answer.ids], temperature=0.0, max_tokens=1, prompt_logprobs=5)
        scores = next(d.prompt_logprobs for d in echo.deltas if d.prompt_logprobs)
        assert [s.logprob.hex() for s in scores[len(ids):]] == [s.logprob.hex() for d in answer.deltas for s in d.logprobs]


def test_logprobs_are_raw_and_sum_to_one(harness):
    top = harness().ask(prompt(3), temperature=1.3, seed=1, top_k=3, logit_bias=((9, 50.0),), max_tokens=8, logprobs=20,
                        ignore_eos=True)
    for delta in top.deltas:
        for score in delta.logprobs:
            values = [x for _, x in score.top]
            assert values == sorted(values, reverse=True) and np.exp(values).sum() < 1 + 1e-5
            assert dict(score.top).get(score.token_id, score.logprob) == score.logprob
