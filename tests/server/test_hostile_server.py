"""Hostile requests against a real server process: a refusal or an answer, never a 500, a crash, a hang or a leak."""

import json
import random
import socket
from collections import Counter
from typing import Any

import httpx
import pytest

from radiance_jax.server.body import MAX_BODY_BYTES

FLAGS = ("--max-num-seqs", "4", "--kv-pages", "24", "--max-model-len", "128", "--max-queue", "12")
ROOM = 48 << 20  # resident bytes that may come on top once every kind of body has been seen
PATHS = ("/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize")
ALLOWED = (200, 400, 404, 405, 413, 503)
VALID = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "w5 w6"}], "max_tokens": 3, "temperature": 0.5,
                             "seed": 1, "logprobs": True, "top_logprobs": 2, "stop": ["w9"], "n": 1, "stream": False},
    "/v1/completions": {"prompt": "w5 w6", "max_tokens": 3, "logit_bias": {"5": 1}, "logprobs": 1, "echo": True,
                        "presence_penalty": 0.1, "speculative": {"max_draft_tokens": 2}, "top_p": 0.9, "stream": False},
    "/tokenize": {"prompt": "w5 w6", "add_special_tokens": True},
    "/detokenize": {"tokens": [5, 6]},
}
NAMES = (
    "model", "messages", "prompt", "tokens", "max_tokens", "min_tokens", "temperature", "top_p", "top_k",
    "min_p", "seed", "stop", "stop_token_ids", "n", "logprobs", "top_logprobs", "logit_bias", "stream",
    "stream_options", "speculative", "presence_penalty", "repetition_penalty", "response_format", "tools",
    "tool_choice", "best_of", "suffix", "user", "chat_template_kwargs", "ignore_eos", "echo",
    "return_metrics", "return_token_ids", "speculative.n_max", "__proto__")


def scalar(rng: random.Random) -> Any:
    return rng.choice((
        None, True, False, 0, -1, 1, 2**31, 2**63, -(2**63) - 1, 2**70, 10**300, 0.5, -0.0, 1e-320, 1e308, "", "a",
        "w5", "\x00", "\u202e", "\U0001f600" * 40, "{{ 1/0 }}", "{% for x in range(10**9) %}x{% endfor %}",
        "../../etc/passwd", "a" * 100_000, "w5 " * 30_000))


def value(rng: random.Random, depth: int = 0) -> Any:
    kind = rng.random()
    if kind < 0.6 or depth > 3:
        return scalar(rng)
    if kind < 0.75:
        return [value(rng, depth + 1) for _ in range(rng.choice((0, 1, 3)))]
    if kind < 0.9:
        keys = ("role", "content", "type", "text", "enabled", "n_max", "include_usage", "5", "x", "")
        return {rng.choice(keys): value(rng, depth + 1) for _ in range(rng.choice((0, 1, 3)))}
    return rng.choice(([1] * 5000, ["w5"] * 500, {str(i): i for i in range(700)}, [[]] * 300))


def changed(rng: random.Random, body: dict[str, Any]) -> dict[str, Any]:
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        name = rng.choice([*body, *NAMES]) if rng.random() < 0.9 else "".join(rng.choices("abcdef_ \n\u00e9", k=6))
        if rng.random() < 0.1:
            body.pop(name, None)
        else:
            body[name] = value(rng)
    return body


def nested(rng: random.Random) -> bytes:
    depth, opening = rng.choice((30, 200, 900, 5000, 100_000)), rng.choice((b"[", b'{"a":'))
    inside = opening * depth + (b"1" if opening != b"[" else b"") + (b"]" if opening == b"[" else b"}") * depth
    return b'{"' + rng.choice((b"prompt", b"messages", b"stop", b"x")) + b'":' + inside + b"}"


def damaged(rng: random.Random, raw: bytes) -> bytes:
    """Bytes that are not the JSON they were."""
    kind, at = rng.randrange(9), rng.randrange(len(raw) + 1)
    if kind == 0:
        return raw[:at]
    if kind == 1:
        return raw[:at] + bytes(rng.randrange(256) for _ in range(rng.choice((1, 4, 50)))) + raw[at:]
    if kind == 2:
        return raw.decode().encode(rng.choice(("utf-16", "utf-32", "utf-8-sig")))
    if kind == 3:
        return raw[:-1] + rng.choice((b',"seed":NaN}', b',"top_p":-Infinity}', b',"top_p":1e999}',
                                      b',"seed":' + b"9" * 6000 + b"}"))
    if kind == 4:
        return raw[:-1] + rng.choice((b',"user":"\\ud800"}', b',"user":"\xff"}', b',"user":"\x01"}',
                                      b',"max_tokens":1,"max_tokens":"2"}'))
    if kind == 5:
        return nested(rng)
    if kind == 6:
        return rng.choice((b"", b"null", b"[]", b"3", b'"x"', b"{}", b"{}{}", b"\x00" * 100, b"[" + raw + b"]"))
    if kind == 7:
        return raw[:-1] + b',"user":"' + b"x" * rng.choice((1000, 500_000)) + b'"}'
    return raw.replace(b'"', b"'")


def send_request(http: httpx.Client, rng: random.Random) -> str:
    """One hostile request over a kept connection. Returns what was tried and what came, for the count."""
    path = rng.choice(PATHS)
    body, roll = dict(VALID[path]), rng.random()
    headers = {"content-type": rng.choice(("application/json", "text/plain", "multipart/form-data; boundary=x", ""))}
    if roll < 0.6:
        body = changed(rng, body) if roll > 0.05 else body | {"seed": rng.randrange(2**63)}
        content: Any = json.dumps(body).encode()
    elif roll < 0.95:
        content = damaged(rng, json.dumps(body).encode())
    elif roll < 0.96:
        content = b'{"prompt":"' + b"x" * (MAX_BODY_BYTES + rng.randrange(2**20)) + b'"}'
    else:
        path, content = rng.choice(("/v1/models/" + "a/" * 3000, "/v1/models/%2e%2e/%00", "//", "/v1/completions/",
                                    "/metrics?x=" + "y" * 5000)), b""
    method = "POST" if rng.random() < 0.95 else rng.choice(("GET", "PUT", "DELETE", "PATCH", "OPTIONS"))
    if content and rng.random() < 0.1:
        whole = content
        content = (whole[at:at + 4096] for at in range(0, len(whole), 4096))  # chunked
    response = http.request(method, path, content=content, headers=headers)
    check(response, path)
    return str(response.status_code)


def check(response: httpx.Response, path: str) -> None:
    assert response.status_code in ALLOWED, (path, response.status_code, response.text[:500])
    kind = response.headers["content-type"]
    if kind.startswith("application/json"):
        body = response.json()
        if response.status_code != 200:
            assert set(body["error"]) == {"message", "type", "param", "code"}, body
            assert len(body["error"]["message"]) < 1000, body
    elif kind.startswith("text/event-stream"):
        assert response.text.endswith("data: [DONE]\n\n") and '"server_error"' not in response.text
    else:
        assert path.startswith("/metrics") and response.status_code == 200, (path, kind)


def send_garbage(host: str, port: int, rng: random.Random) -> str:
    """Bytes that are not quite HTTP. The server may answer with a refusal or close the connection."""
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
    raw = rng.choice((
        head + b"Transfer-Encoding: chunked\r\n\r\nZZZ\r\n{}\r\n0\r\n\r\n",
        head + b"Transfer-Encoding: chunked\r\n\r\n-5\r\nabc",
        head + b"Transfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFFF\r\n{}",
        head + b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n3\r\n{}x\r\n0\r\n\r\n",
        head + b"Content-Length: 100000\r\n\r\n{\"prompt\":",  # and no more
        head + b"Content-Length: -1\r\n\r\n{}", head + b"Content-Length: abc\r\n\r\n{}",
        head + b"Content-Length: 99999999999999999999999\r\n\r\n{}",
        head + b"Content-Length: 2\r\n\r\n{}" * 3, head + b"X: " + b"y" * 200_000 + b"\r\n\r\n",
        b"POST " + b"/" * 100_000 + b" HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00", b"\x00" * 1000,
        b"GET / HTTP/9.9\r\n\r\n",
        head + b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\n{}"))
    with socket.create_connection((host, port), timeout=5) as connection:
        try:
            connection.sendall(raw)
            connection.shutdown(socket.SHUT_WR)
            answer = connection.recv(65536)
        except TimeoutError:
            raise AssertionError(f"no answer to {raw[:200]!r}") from None
        except OSError:  # cut off before it had sent everything
            answer = b""
    assert not answer.startswith(b"HTTP/1.1 5") or answer.startswith(b"HTTP/1.1 503"), (raw[:200], answer[:500])
    return answer[9:12].decode() or "closed"


@pytest.mark.timeout(900)
@pytest.mark.parametrize("count", [400, pytest.param(2000, marks=pytest.mark.slow)])
def test_hostile_requests_are_refused_and_leave_no_trace(launch_real, count):
    server, rng, seen = launch_real(*FLAGS), random.Random(count), Counter()
    host, port = server.url.removeprefix("http://").split(":")

    def one() -> None:
        seen[send_garbage(host, int(port), rng) if rng.random() < 0.05 else send_request(server.http, rng)] += 1

    for _ in range(count // 4):
        one()
    before = server.memory()
    for _ in range(count - count // 4):
        one()
    grown = server.memory() - before
    print(f"{count} requests: {dict(seen)}; memory {before / 2**20:.0f} MiB, then {grown / 2**20:+.1f} MiB")
    assert grown < ROOM, f"{grown / 2**20:.1f} MiB more after {count - count // 4} requests"
    assert seen["200"] > count // 50 and seen["400"] > count // 3
    assert server.process.poll() is None and server.http.get("/health").status_code == 200
    for gauge in ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"):
        server.wait_metric(gauge + "{", 0)
    answer = server.http.post("/v1/completions", json=VALID["/v1/completions"])
    assert answer.status_code == 200 and answer.json()["usage"]["completion_tokens"] == 3
    odd = server.lines[next((i for i, line in enumerate(server.lines) if line.startswith("ready on")), 0) + 1:]
    assert not [line for line in odd if "Invalid HTTP request" not in line], "\n".join(odd[-60:])


def test_the_longest_body_that_is_read_does_not_stop_the_server(launch_real):
    server = launch_real(*FLAGS)
    for body in ({"prompt": "w5 " * (MAX_BODY_BYTES // 3 - 100)}, {"prompt": [5] * (MAX_BODY_BYTES // 3 - 100)},
                 {"prompt": ["w5"] * (MAX_BODY_BYTES // 6 - 100)}):
        response = server.http.post("/v1/completions", json=body, timeout=60)
        assert response.status_code == 400, response.text[:300]
        assert server.http.get("/health").status_code == 200
