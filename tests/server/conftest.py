"""Servers as processes of their own on loopback: over the fake engine, and over a real one with a tiny model."""

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests import tiny_model

HERE = Path(__file__).parent


class Served:
    """A running server: `url`, `lines` it printed, and its process."""

    def __init__(self, script: str, arguments: list[str]):
        environment = os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "", "PYTHONPATH": str(HERE.parents[1])}
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / script), *arguments, "--port", "0"],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
        self.lines: list[str] = []
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()
        self.url = self.wait_line(r"listening on (http://\S+)/v1")[1]
        self.http = httpx.Client(base_url=self.url, timeout=20)

    def _read(self) -> None:
        for line in self.process.stdout:
            self.lines.append(line.rstrip())

    def wait_line(self, pattern: str, seconds: float = 20) -> re.Match:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for line in list(self.lines):
                if match := re.search(pattern, line):
                    return match
            if self.process.poll() is not None and not self.reader.is_alive():
                break
            time.sleep(0.01)
        raise AssertionError(f"no line like {pattern!r} in {self.lines}")

    def metric(self, name: str) -> float:
        """Sum of a metric's samples; `name` may go on into the labels."""
        lines = self.http.get("/metrics").text.splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))

    def wait_metric(self, name: str, value: float, seconds: float = 5) -> None:
        end = time.monotonic() + seconds
        while (seen := self.metric(name)) != value:
            assert time.monotonic() < end, f"{name} stayed {seen}, not {value}"
            time.sleep(0.02)

    def memory(self) -> int:
        """Resident bytes of the process (Linux)."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text(encoding="ascii").split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def stop(self) -> None:
        self.http.close()
        self.process.kill()
        self.process.wait()


def start(engine: dict | None = None, *flags: str) -> Served:
    return Served("fake_serve.py", [json.dumps(engine or {}), *flags])


@pytest.fixture(scope="session")
def server() -> Iterator[Served]:
    """A fast server shared by every test that leaves nothing behind."""
    served = start()
    served.wait_line("ready on")
    yield served
    served.stop()


@pytest.fixture(scope="session")
def slow_server() -> Iterator[Served]:
    """One whose answers take seconds and which holds at most three of them."""
    served = start({"step_seconds": 0.03}, "--max-num-seqs", "2", "--max-queue", "1")
    served.wait_line("ready on")
    yield served
    served.stop()


@pytest.fixture
def launch() -> Iterator:
    """`launch(engine_options, *flags)`; the servers end with the test."""
    running: list[Served] = []

    def go(engine: dict | None = None, *flags: str) -> Served:
        running.append(start(engine, *flags))
        return running[-1]

    yield go
    for served in running:
        served.stop()


REAL = ("--dtype", "f32", "--max-num-batched-tokens", "32", "--page-size", "16", "--num-speculative-tokens", "7")


@pytest.fixture(scope="session")
def real_model(tmp_path_factory) -> Path:
    return tiny_model.make(tmp_path_factory.mktemp("tiny"), max_position_embeddings=4096)


@pytest.fixture(scope="session")
def real_cache(tmp_path_factory) -> Path:
    """Compiled programs, so that the second server of the same sizes starts quickly."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def launch_real(real_model, real_cache) -> Iterator:
    """`launch_real(*flags)`: a warm server over a real engine; it ends with the test."""
    running: list[Served] = []

    def go(*flags: str) -> Served:
        running.append(Served("real_serve.py", [str(real_model), "--cache-dir", str(real_cache), *REAL, *flags]))
        running[-1].wait_line("ready on", 120)
        return running[-1]

    yield go
    for served in running:
        served.stop()
