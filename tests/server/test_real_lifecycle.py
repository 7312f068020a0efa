"""The real engine behind the real server: being full, clients that leave, a device that breaks, and the end."""

import json
import signal
import threading
import time

import httpx

TEXT = "/v1/completions"
FLAGS = ("--max-num-seqs", "2", "--max-queue", "1", "--max-model-len", "4000")
LONG = {"prompt": "w5 w6 w7", "max_tokens": 3900, "ignore_eos": True, "temperature": 0}
RUNNING, PAGES = "vllm:num_requests_running{", "vllm:kv_cache_usage_perc{"


class Reader(threading.Thread):
    """Reads one stream to its end; `events` grows meanwhile."""

    def __init__(self, url: str, body: dict):
        super().__init__(daemon=True)
        self.url, self.body, self.events, self.status = url, body | {"stream": True}, [], None
        self.start()

    def run(self) -> None:
        with httpx.stream("POST", self.url + TEXT, json=self.body, timeout=60) as response:
            self.status = response.status_code
            for line in response.iter_lines():
                if line:
                    self.events.append(line)

    def begun(self) -> "Reader":
        end = time.monotonic() + 20
        while len(self.events) < 3:
            assert time.monotonic() < end, "no events"
            time.sleep(0.01)
        return self


def last_event(reader: Reader) -> dict:
    reader.join(30)
    assert not reader.is_alive() and reader.events[-1] == "data: [DONE]", reader.events[-2:]
    return json.loads(reader.events[-2].removeprefix("data: "))


def test_full_then_left_then_free(launch_real):
    server = launch_real(*FLAGS)
    with httpx.Client(base_url=server.url, timeout=30) as client, client.stream(
            "POST", TEXT, json=LONG | {"n": 3, "stream": True}) as response:
        lines = response.iter_lines()
        next(lines)
        full = server.http.post(TEXT, json=LONG)
        assert full.status_code == 503 and int(full.headers["retry-after"]) >= 1
        assert full.json()["error"]["code"] == "overloaded"
        assert server.metric(PAGES) > 0 and server.metric("vllm:num_requests_waiting{") == 1
    left = time.monotonic()
    server.wait_metric(PAGES, 0)
    server.wait_metric(RUNNING, 0)
    assert time.monotonic() - left < 1.5
    answer = server.http.post(TEXT, json=LONG | {"max_tokens": 4}).json()
    assert answer["usage"]["completion_tokens"] == 4
    assert server.metric("radiance:compiles_after_warmup_total") == 0


def test_a_device_that_breaks_ends_streams_with_an_error_and_health_with_503(launch_real):
    server = launch_real(*FLAGS)
    streams = [Reader(server.url, LONG).begun() for _ in range(2)]
    server.process.send_signal(signal.SIGUSR1)
    for stream in streams:
        error = last_event(stream)["error"]
        assert error["type"] == "server_error" and "the device is gone" in error["message"]
    health = server.http.get("/health")
    assert health.status_code == 503 and health.json()["error"]["code"] == "unhealthy"
    refused = server.http.post(TEXT, json=LONG)
    assert refused.status_code == 503 and "stopped" in refused.json()["error"]["message"]
    assert refused.json()["error"]["code"] == "unhealthy"
    assert server.http.get("/metrics").status_code == 200
    server.wait_line("the engine failed; every answer under way ends with an error")
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(10) == 0


def test_a_signal_ends_long_streams_as_aborted_and_lets_short_ones_finish(launch_real):
    server = launch_real(*FLAGS)
    long, short = Reader(server.url, LONG).begun(), Reader(server.url, LONG | {"max_tokens": 40})
    while short.status is None:
        time.sleep(0.005)
    started = time.monotonic()
    server.process.send_signal(signal.SIGTERM)
    assert last_event(short)["choices"][0]["finish_reason"] == "length"
    assert last_event(long)["choices"][0]["finish_reason"] in ("abort", "length")
    assert server.process.wait(15) == 0 and time.monotonic() - started < 10
