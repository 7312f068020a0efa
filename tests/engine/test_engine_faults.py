"""What goes wrong around the engine: listeners that raise, pages that are lost, a device that breaks, a full queue."""

import queue
import threading
import time

import pytest

from radiance_jax.engine.engine import Engine
from radiance_jax.engine.request import SamplingParams
from radiance_jax.errors import CapacityError
from radiance_jax.models.rows import rows_computed
from tests.engine.conftest import Answer, Harness, until
from tests.engine.test_exact import GREEDY, prompt

LONG = dict(temperature=0.0, max_tokens=200, ignore_eos=True)


def pages_in_use(engine: Engine) -> int:
    return engine._scheduler.pool.used


def test_a_listener_that_raises_ends_its_own_answer_and_no_other(harness, caplog):
    one = harness()
    alone, before = one.ask(prompt(1), **GREEDY).record(), one.engine.stats()
    heard = []

    def deaf(delta) -> None:
        heard.append(delta)
        if len(heard) == 3:
            raise ValueError("nobody is there")

    one.engine.submit(prompt(2), SamplingParams(**LONG), deaf)
    assert one.ask(prompt(1), **GREEDY).record() == alone
    until(lambda: pages_in_use(one.engine) == 0)
    after = one.engine.stats()
    assert len(heard) == 3 and after.listener_errors == before.listener_errors + 1
    assert after.finished["error"] == before.finished.get("error", 0) + 1
    assert "nobody is there" in caplog.text


def test_an_abort_frees_pages_at_once(harness):
    one = harness()
    for _ in range(5):
        sequence, answer = one.start(prompt(3), **LONG)
        until(lambda: answer.deltas)
        started = time.monotonic()
        one.engine.abort(sequence)
        assert answer.wait().deltas[-1].finish_reason == "abort" and len(answer.ids) < 200
        until(lambda: pages_in_use(one.engine) == 0)
        assert time.monotonic() - started < 1


def test_an_abort_reaches_a_sequence_that_waits(harness):
    one = harness(max_num_seqs=1)
    running, first = one.start(prompt(3), **LONG)
    waiting, second = one.start(prompt(4), **LONG)
    one.engine.abort(waiting)
    assert second.wait().ids == () and second.deltas[-1].finish_reason == "abort"
    one.engine.abort(running)
    first.wait()


def test_an_aborted_answer_has_the_text_of_all_its_tokens(harness):
    """Also what was held back because a stop string might have begun there."""
    one, told = harness(), threading.Event()
    whole = one.ask(prompt(3), **GREEDY).ids
    held = Answer()

    def listen(delta) -> None:
        held(delta)
        if delta.token_ids and not told.is_set():
            told.set()
            one.engine.abort(number.get())

    number = queue.SimpleQueue()
    stop = "".join(f"w{token}" for token in whole) + "!"
    number.put(one.engine.submit(prompt(3), SamplingParams(**LONG, stop=(stop,)), listen))
    assert held.wait().deltas[-1].finish_reason == "abort"
    assert 0 < len(held.ids) < len(whole) and held.ids == whole[:len(held.ids)]
    assert held.text == "".join(f"w{token}" for token in held.ids)


def test_lost_pages_are_said_counted_and_taken_back(harness, caplog):
    one = harness()
    one.engine._guard.strict = False
    try:
        alone, before = one.ask(prompt(5), **GREEDY).record(), one.engine.stats().leaked_pages
        until(lambda: pages_in_use(one.engine) == 0)
        one.engine._scheduler.pool.take(3)
        assert one.ask(prompt(5), **GREEDY).record() == alone
        until(lambda: one.engine.stats().leaked_pages == before + 3)  # counted last, behind the log line
        assert pages_in_use(one.engine) == 0 and "3 of " in caplog.text
        assert one.engine.healthy() and one.ask(prompt(5), **GREEDY).record() == alone
    finally:
        one.engine._guard.strict = True


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_device_that_breaks_ends_every_answer_with_an_error(config, tmp_path, caplog):
    one = Harness(Engine.load(config(cache_dir=str(tmp_path)), lambda line: None))
    deaf = one.engine.submit(prompt(1), SamplingParams(**LONG), lambda delta: 1 / (delta.finish_reason != "error"))
    answers = [one.start(prompt(seed), **LONG)[1] for seed in range(5)]
    until(lambda: answers[0].deltas)

    def read(pending):
        raise RuntimeError("the device is gone")

    one.engine._device.read = read
    assert deaf == 0
    for answer in answers:
        assert answer.wait().deltas[-1].finish_reason == "error" and "the device is gone" in answer.deltas[-1].error
    until(lambda: not one.engine.healthy())
    with pytest.raises(CapacityError, match="has stopped"):
        one.engine.submit(prompt(1), SamplingParams(**LONG), Answer())
    assert one.engine.stats().running == one.engine.stats().waiting == 0
    assert "every answer under way ends with an error" in caplog.text
    one.engine.close()


def test_a_full_queue_is_refused_until_there_is_room(harness):
    one = harness(max_num_seqs=1)
    one.engine._max_queue = 2
    try:
        started = [one.start(prompt(seed), **LONG) for seed in range(2)]
        until(lambda: one.engine.stats().running == 1)
        started.append(one.start(prompt(2), **LONG))
        with pytest.raises(CapacityError, match="2 requests are waiting"):
            one.start(prompt(3), **LONG)
        for sequence, answer in started:
            one.engine.abort(sequence)
            answer.wait()
        assert one.ask(prompt(3), **GREEDY).ids
    finally:
        one.engine._max_queue = None


def test_gaps_are_between_deliveries_and_steps_are_counted_by_the_rows_they_computed(harness):
    one = harness()
    before = one.engine.stats()
    answer = one.ask(prompt(6), **GREEDY)
    after = one.engine.stats()
    deliveries = sum(bool(delta.token_ids) for delta in answer.deltas)
    assert after.inter_token.count - before.inter_token.count == deliveries - 1
    assert after.ttft.count - before.ttft.count == after.e2e.count - before.e2e.count == 1
    assert answer.stats.last_token <= answer.stats.finished
    tiles = one.engine._tiles
    rows = {rows: count - before.step_seconds.get(rows, (0, 0))[0] for rows, (count, _) in after.step_seconds.items()}
    assert sum(rows.values()) == after.steps - before.steps > 1
    possible = {rows_computed(live, tiles) for live in range(one.engine.capacity.rows + 1)}
    assert set(rows) <= possible and len([each for each in rows if rows[each]]) > 1


def test_an_engine_that_nobody_asks_does_not_keep_the_device_waiting(harness):
    one = harness()
    one.ask(prompt(6), **GREEDY)
    until(lambda: pages_in_use(one.engine) == 0)
    before = one.engine.stats().host_gap_seconds
    time.sleep(0.5)
    one.ask(prompt(6), **GREEDY)
    until(lambda: one.engine.stats().running == 0)
    assert one.engine.stats().host_gap_seconds - before < 0.4


def test_answers_without_a_seed_follow_the_order_they_came_in(config, tmp_path):
    """The stream of seeds starts at `seed`: the same requests in the same order give the same answers."""
    runs = []
    for _ in range(2):
        engine = Engine.load(config(seed=5, cache_dir=str(tmp_path)), lambda line: None)
        answers = Harness(engine).ask_all([(prompt(7), dict(temperature=1.0, max_tokens=12, ignore_eos=True))] * 3)
        runs.append([answer.ids for answer in answers])
        engine.close()
    assert runs[0] == runs[1] and len(set(runs[0])) == 3
