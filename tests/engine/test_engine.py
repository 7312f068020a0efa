"""The engine as its callers see it: aborts, refusals, seeds, choices, endings inside an accepted run, statistics."""

import time

import pytest

from radiance_jax.engine.request import SamplingParams
from radiance_jax.errors import UserError
from tests.engine.conftest import Answer
from tests.engine.test_exact import GREEDY, prompt


def eventually(holds) -> bool:
    """True once it holds; the gauges follow the last delta by a moment."""
    deadline = time.monotonic() + 10
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.01)
    return holds()


def test_an_abort_ends_the_answer_and_frees_its_pages(harness):
    engine = harness()
    number, answer = engine.start(prompt(1), **GREEDY | dict(max_tokens=200))
    while not answer.deltas:
        pass
    engine.engine.abort(number)
    assert answer.wait().deltas[-1].finish_reason == "abort"
    assert len(answer.ids) < 200
    assert engine.ask(prompt(2), **GREEDY).deltas[-1].finish_reason == "length"
    assert eventually(lambda: engine.engine.stats().kv_usage == 0)


def test_after_the_last_delta_there_is_none(harness):
    engine = harness()
    number, answer = engine.start(prompt(1), **GREEDY)
    answer.wait()
    seen = len(answer.deltas)
    engine.engine.abort(number)
    engine.ask(prompt(2), **GREEDY)
    assert len(answer.deltas) == seen
    assert [d.finish_reason for d in answer.deltas[:-1]] == [None] * (seen - 1)


@pytest.mark.parametrize(("ids", "params", "field"), (
    ([], {}, "prompt"), ([151], {}, "prompt"), ([-1], {}, "prompt"), ([3] * 256, {}, "prompt"), ([3], dict(max_tokens=256), "prompt"),
    ([3], dict(stop_token_ids=(151,)), "stop_token_ids"), ([3], dict(logit_bias=((999, 1.0),)), "logit_bias")))
def test_what_cannot_be_served_is_refused_naming_the_field(harness, ids, params, field):
    with pytest.raises(UserError) as error:
        harness().engine.submit(ids, SamplingParams(**params), Answer())
    assert error.value.param == field


def test_a_seed_fixes_the_answer_and_choices_differ(harness):
    engine = harness()
    params = dict(temperature=1.0, seed=5, max_tokens=24, ignore_eos=True)
    first = engine.ask(prompt(3), **params).ids
    assert engine.ask(prompt(3), **params).ids == first
    assert engine.ask(prompt(3), choice=1, **params).ids != first
    assert engine.ask(prompt(3), **params | dict(seed=6)).ids != first


def accepted_run(engine, ids) -> tuple[tuple[int, ...], int]:
    """A greedy answer, and an index inside one of its accepted runs (not the first token of its step)."""
    answer = engine.ask(ids, **GREEDY)
    at = 0
    for delta in answer.deltas:
        if len(delta.token_ids) >= 3:
            return answer.ids, at + 1
        at += len(delta.token_ids)
    raise AssertionError("no accepted run: choose another prompt")


def test_endings_inside_an_accepted_run_are_exact(harness):
    engine = harness()
    ids = next(prompt(seed) for seed in range(20) if any(len(d.token_ids) >= 3 for d in engine.ask(prompt(seed), **GREEDY).deltas))
    whole, at = accepted_run(engine, ids)
    at = whole.index(whole[at])  # the first time this token comes
    stopped = engine.ask(ids, **GREEDY | dict(stop_token_ids=(whole[at],)))
    assert stopped.ids == whole[: at + 1] and stopped.deltas[-1].finish_reason == "stop"
    assert stopped.deltas[-1].stop_reason == whole[at]
    assert stopped.text == "".join(f"w{i}" for i in whole[:at])
    assert stopped.stats.completion_tokens == at + 1 == sum(len(d.logprobs) for d in stopped.deltas)
    for length in range(at, at + 3):
        capped = engine.ask(ids, **GREEDY | dict(max_tokens=length + 1))
        assert capped.ids == whole[: length + 1] and capped.deltas[-1].finish_reason == "length"
    word = engine.ask(ids, **GREEDY | dict(stop=(f"w{whole[at]}",)))
    assert word.deltas[-1].finish_reason == "stop" and word.deltas[-1].stop_reason == f"w{whole[at]}"
    assert word.ids == whole[: len(word.ids)] and f"w{whole[at]}" not in word.text


def test_counts_add_up(harness):
    engine = harness()
    answer = engine.ask(prompt(4), **GREEDY)
    stats = answer.stats
    assert stats.completion_tokens == 48 == len(answer.ids)
    assert stats.num_decode_steps + stats.num_accepted_draft_tokens + 1 == 48  # a token a step, and the one of the prefill
    assert sum(k * n for k, n in stats.acceptance_histogram.items()) == stats.num_accepted_draft_tokens
    assert sum(stats.acceptance_histogram.values()) == stats.num_spec_steps
    assert stats.arrival <= stats.first_token <= stats.finished


def test_nothing_is_counted_behind_the_last_news(harness, monkeypatch):
    engine = harness()
    monkeypatch.setattr(engine.engine._planner, "verified", lambda *_, **__: True)  # a proposal is deferred in every step
    told, answer = [], Answer()

    def listen(delta) -> None:
        told.append(delta.stats and delta.stats.num_deferred_proposals)
        answer(delta)

    engine.engine.submit(prompt(4), SamplingParams(**GREEDY), listen)
    stats = answer.wait().stats
    assert eventually(lambda: engine.engine.stats().running == 0)
    assert told[-1] == stats.num_deferred_proposals == stats.num_decode_steps > 0


def test_a_request_may_switch_drafting_off_or_down(harness):
    engine = harness()
    assert engine.ask(prompt(5), **GREEDY | dict(max_draft_tokens=0)).stats.num_draft_tokens == 0
    shallow = engine.ask(prompt(5), **GREEDY | dict(max_draft_tokens=2))
    assert 0 < shallow.stats.num_draft_tokens <= 2 * shallow.stats.num_spec_steps
