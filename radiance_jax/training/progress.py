"""What a run says while it goes: a line for people, JSON lines for programs."""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any, BinaryIO

import jax
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

LINES_APART = 5.0  # seconds between lines where the output is no terminal


def _ends_a_line(file: BinaryIO) -> bool:
    file.seek(-1, os.SEEK_END)
    return file.read() == b"\n"


class Journal:
    """`log.jsonl` in the folder of the run, gone on with where there is one, and the progress line. Only the first of several
    processes speaks."""

    def __init__(self, path: Path, total: int, done: int):
        self._speaks = jax.process_index() == 0
        self._file = path.open("a+b") if self._speaks else None
        if self._file and self._file.tell() and not _ends_a_line(self._file):
            self._file.write(b"\n")  # a run that was killed in the middle of a line: the next one is whole
        self._console = Console(stderr=True)
        self._bar = Progress(TextColumn("{task.completed}/{task.total}"), BarColumn(20), TextColumn("{task.description}"),
                             TimeRemainingColumn(), console=self._console, transient=True)
        self._task = self._bar.add_task("", total=total, completed=done)
        self._spoken = 0.0
        if self._speaks and self._console.is_terminal:
            self._bar.start()

    def write(self, record: dict[str, Any]) -> None:
        if self._file:
            self._file.write(json.dumps(record).encode() + b"\n")
            self._file.flush()

    def progress(self, step: int, text: str) -> None:
        if not self._speaks:
            return
        if self._console.is_terminal:
            self._bar.update(self._task, completed=step, description=text)
        elif time.monotonic() - self._spoken >= LINES_APART:
            self._spoken = time.monotonic()
            print(f"step {step}: {text}", file=sys.stderr, flush=True)

    def say(self, text: str) -> None:
        if self._speaks:
            self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def close(self) -> None:
        self._bar.stop()
        if self._file:
            self._file.close()
