"""Long texts are tokenised without stopping the other threads: the engine's, and the server's event loop."""

import threading
import time

import pytest
from tiny_tokenizers import byte_level

LONG = "the quick brown fox 12 日 " * 60_000


@pytest.mark.parametrize("work", ["encode", "decode"])
def test_other_threads_run_meanwhile(work):
    tokenizer = byte_level()
    ids = tokenizer.encode(LONG)
    jobs = {"encode": lambda: tokenizer.encode(LONG), "decode": lambda: tokenizer.decode(ids)}
    worker, ticks = threading.Thread(target=jobs[work]), [time.monotonic()]
    worker.start()
    while worker.is_alive():
        time.sleep(0.001)
        ticks.append(time.monotonic())
    worst = max(after - before for before, after in zip(ticks, ticks[1:], strict=False))
    assert worst < 0.6 * (ticks[-1] - ticks[0]), f"one gap of {worst:.2f} s in {ticks[-1] - ticks[0]:.2f} s"
