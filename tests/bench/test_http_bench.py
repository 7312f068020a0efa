"""`bench http` over the fake server, beside one that is not ours and one that fails."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from radiance_jax.bench import __main__ as bench
from radiance_jax.bench.http import percentiles
from radiance_jax.bench.http_client import path_of, split_url
from tests.server.conftest import Served, start


class Other(BaseHTTPRequestHandler):
    """A server that knows no usage, frames nothing, and breaks one stream of two where `fails` is set."""

    fails, count = False, 0

    def log_message(self, *_) -> None:
        pass

    def answer(self, kind: str, raw: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.end_headers()
        self.wfile.write(raw)

    def do_GET(self) -> None:
        self.answer("application/json", b'{"data": [{"id": "other"}]}')

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        type(self).count += 1
        def line(delta: dict, reason: str | None) -> str:
            return "data: " + json.dumps({"choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}) + "\r\n\r\n"

        text = "".join(line({"content": f"t{i}"}, None) for i in range(body["max_tokens"]))
        end = "" if self.fails and self.count % 2 == 0 else line({}, "length")
        self.answer("text/event-stream", (text + end + ("data: [DONE]\n\n" if end else "")).encode())


@pytest.fixture(scope="module")
def ours() -> Served:
    served = start()
    served.wait_line("ready on")
    yield served
    served.stop()


@pytest.fixture
def other():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Other)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()
    server.server_close()
    Other.fails = False


@pytest.fixture
def flags(tmp_path):
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "one"}\n{"prompt": "two"}\n')
    return ["--prompts", str(prompts), "--requests", "4", "--rounds", "2", "--concurrency", "1,3", "--max-tokens", "9"]


def test_two_servers_take_turns_and_are_counted_alike(ours, other, flags, tmp_path, capsys):
    out = tmp_path / "http.json"
    assert bench.main(["http", "--url", f"ours={ours.url}", "--url", f"other={other}", "--out", str(out),
                       "--api-key", "secret", *flags]) == 0
    shown = capsys.readouterr()
    turns = [line.rpartition(" ")[2] for line in shown.err.splitlines() if line.startswith("round")]
    assert turns == ["ours", "other"] * 2 + ["other", "ours"] * 2
    result = json.loads(out.read_text())
    assert "secret" not in out.read_text() and "secret" not in shown.err
    assert result["servers"]["other"] == {"url": other, "model": "other"}
    assert [(cell["concurrency"], cell["server"]) for cell in result["cells"]] == [
        (1, "ours"), (1, "other"), (3, "ours"), (3, "other")]
    for cell in result["cells"]:
        assert (cell["requests"], cell["errors"], cell["tokens"]) == (8, 0, 72)
        assert cell["counted_by_server"] == (cell["server"] == "ours")
        assert 0 < cell["ttft_s"]["p50"] <= cell["latency_s"]["p50"] and cell["tokens_per_s"] > 0
        assert cell["text_as_first"] == (8 if cell["server"] == "ours" else 0)
    assert "other gives no usage in streams" in shown.out and "0/8" in shown.out


def test_answers_that_break_off_are_errors_and_status_1(other, flags, capsys):
    Other.fails, Other.count = True, 0  # the first request, the warm-up, succeeds
    assert bench.main(["http", "--url", other, *flags]) == 1
    assert "ended without a finish reason" in capsys.readouterr().out


@pytest.mark.parametrize(("argv", "says"), [
    (["--url", "ftp://x"], "url must read like"), (["--url", "http://127.0.0.1:1"], "must answer with JSON"),
    (["--url", "http://x:0"], "url must read like"), (["--url", "http://a", "--url", "http://a"], "name of its own"),
    (["--concurrency", "0"], "at least 1"), (["--extra-body", "[]"], "must be a JSON object"),
    (["--extra-body", "{"], "must be a JSON object"), (["--requets", "3"], "did you mean '--requests'"),
    (["--requests", "4"], "concurrency must be at most requests (4)")])
def test_wrong_flags_are_refused(capsys, argv, says):
    assert bench.main(["http", *argv]) == 2
    assert says in capsys.readouterr().err.splitlines()[-1]


def test_paths_and_percentiles():
    assert path_of(split_url("http://h:1/v1/"), "/v1/models") == "/v1/models"
    assert path_of(split_url("https://h/proxy/v1"), "/v1/models") == "/proxy/v1/models"
    assert percentiles([3, 1, 2]) == {"p50": 2, "p90": 3, "p99": 3} and percentiles([]) is None
