"""Loading, being full, clients that leave, keys, and the end."""

import signal
import socket
import threading
import time

import httpx
import pytest

TEXT = "/v1/completions"
LONG = {"prompt": "a", "max_tokens": 400}
RUNNING = "vllm:num_requests_running{"


def aborted(server) -> float:
    lines = server.http.get("/metrics").text.splitlines()
    return sum(float(x.rsplit(" ", 1)[1]) for x in lines
               if x.startswith("vllm:request_success_total") and 'finished_reason="abort"' in x)


@pytest.mark.parametrize("streaming", [True, False])
def test_a_client_that_leaves_aborts_its_answers(slow_server, streaming):
    before = aborted(slow_server)
    client = httpx.Client(base_url=slow_server.url, timeout=0.4)
    with pytest.raises(httpx.ReadTimeout):
        if streaming:
            with client.stream("POST", TEXT, json=LONG | {"stream": True, "n": 2}) as response:
                start = time.monotonic()
                for _ in response.iter_lines():
                    if time.monotonic() > start + 0.3:
                        raise httpx.ReadTimeout("left on purpose")
        else:
            client.post(TEXT, json=LONG | {"n": 2})
    client.close()
    slow_server.wait_metric(RUNNING, 0)
    assert aborted(slow_server) == before + 2


def test_a_full_server_says_503_and_when_to_try_again(slow_server):
    with slow_server.http.stream("POST", TEXT, json=LONG | {"n": 3, "stream": True}) as first:
        lines = first.iter_lines()  # held: dropping it closes the stream
        next(lines)
        full = slow_server.http.post(TEXT, json=LONG)
        assert full.status_code == 503 and int(full.headers["retry-after"]) >= 1
        assert full.json()["error"]["code"] == "overloaded"
        assert slow_server.http.post(TEXT, json=LONG | {"n": 4}).status_code == 400  # would never fit
    slow_server.wait_metric(RUNNING, 0)
    assert slow_server.http.post(TEXT, json=LONG | {"max_tokens": 2}).status_code == 200


def test_the_engines_own_refusal_leaves_no_sibling_running(launch):
    server = launch({"max_waiting": 1, "step_seconds": 0.05})
    server.wait_line("ready on")
    assert server.http.post(TEXT, json=LONG | {"n": 2}).status_code == 503
    server.wait_metric(RUNNING, 0)


def test_the_key_guards_all_but_health_metrics_and_version(launch):
    server = launch({}, "--api-key", "sésame")
    server.wait_line("ready on")
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "sésame".encode()}, {"x-api-key": ""}):
        response = server.http.get("/v1/models", headers=headers)
        assert response.status_code == 401 and response.json()["error"]["code"] == "invalid_api_key"
    assert server.http.post("/tokenize", json={"prompt": "a"}).status_code == 401
    good = {"Authorization": "Bearer sésame".encode()}
    assert server.http.get("/v1/models", headers=good).status_code == 200
    assert all(server.http.get(path).status_code == 200 for path in ("/health", "/metrics", "/version"))


def test_health_says_loading_until_the_engine_is_there(launch):
    server = launch({"load_seconds": 1.0})
    for path in ("/health", "/v1/models"):
        response = server.http.get(path)
        assert response.status_code == 503 and response.json()["error"]["code"] == "loading"
    assert server.http.post(TEXT, json=LONG).status_code == 503
    assert server.http.get("/metrics").status_code == 200
    server.wait_line(r"ready on http://127.0.0.1:\d+/v1 in \d")
    assert server.http.get("/health").status_code == 200


def test_a_model_that_cannot_load_ends_the_process_with_the_reason(launch):
    server = launch({"load_error": "no such file: m.rad"})
    assert server.process.wait(10) == 2
    server.reader.join(5)
    assert server.lines[-1] == "error: no such file: m.rad" and not any("Traceback" in line for line in server.lines)


def test_a_signal_while_loading_ends_the_process(launch):
    server = launch({"load_seconds": 30})
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(10) == 1


def test_a_signal_lets_streams_finish_for_a_while_then_aborts_them(launch):
    server = launch({"step_seconds": 0.05})
    server.wait_line("ready on")
    start = time.monotonic()
    with server.http.stream("POST", TEXT, json=LONG | {"stream": True}) as response:
        lines = response.iter_lines()
        next(lines)
        server.process.send_signal(signal.SIGTERM)
        rest = [line for line in lines if line]
    assert '"finish_reason":"abort"' in rest[-2] and rest[-1] == "data: [DONE]"
    assert server.process.wait(10) == 0 and time.monotonic() - start < 6
    server.wait_line("^closed$")


def test_ctrl_c_closes_an_idle_server_at_once(launch):
    server = launch()
    server.wait_line("ready on")
    start = time.monotonic()
    server.process.send_signal(signal.SIGINT)
    assert server.process.wait(10) == 0 and time.monotonic() - start < 2
    server.wait_line("^closed$")


def test_small_answers_do_not_wait_for_delayed_acknowledgements():
    """asyncio sets TCP_NODELAY only where the protocol is named; without it an answer took 40 ms more."""
    from radiance_jax.server.run import open_socket
    with open_socket("127.0.0.1", 0) as listener:
        assert listener.proto == socket.IPPROTO_TCP


def test_a_taken_port_is_said_before_anything_is_loaded(server):
    from radiance_jax.errors import UserError
    from radiance_jax.server.run import open_socket
    with pytest.raises(UserError, match="cannot listen on 127.0.0.1"):
        open_socket("127.0.0.1", int(server.url.rsplit(":", 1)[1]))


def test_a_host_that_can_have_no_such_name_is_the_users_error():
    from radiance_jax.errors import UserError
    from radiance_jax.server.run import open_socket
    with pytest.raises(UserError, match="choose another --host"):
        open_socket("a" * 70, 0)


@pytest.mark.timeout(30)
def test_a_signal_before_the_loop_runs_is_not_lost(monkeypatch):
    """Between the line that says `listening` and uvicorn's own handlers the loader already imports, so this is no short time."""
    from fake_engine import FakeEngine

    from radiance_jax.config import ServeConfig
    from radiance_jax.server import run
    whole, lost = run.Server.run, []

    def early(server, sockets):
        def give_up() -> None:
            lost.append(True)
            server.should_exit = True

        signal.raise_signal(signal.SIGTERM)
        watchdog = threading.Timer(5, give_up)
        watchdog.start()
        whole(server, sockets)
        watchdog.cancel()

    monkeypatch.setattr(run.Server, "run", early)
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        run.serve(ServeConfig(port=0), FakeEngine, lambda line: None)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert not lost


def test_an_engine_that_has_failed_takes_nothing_more_and_is_not_called_full():
    from fake_engine import FakeEngine
    from starlette.testclient import TestClient

    from radiance_jax.config import ServeConfig
    from radiance_jax.server.app import build_app
    from radiance_jax.server.state import ServerState
    engine = FakeEngine()
    http = TestClient(build_app(ServerState(ServeConfig(), engine)))
    chat = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1}
    assert http.post("/v1/chat/completions", json=chat).status_code == http.get("/health").status_code == 200
    engine.close()
    for response in (http.post(TEXT, json=LONG), http.post("/v1/chat/completions", json=chat), http.get("/health")):
        assert response.status_code == 503 and response.json()["error"]["code"] == "unhealthy"
