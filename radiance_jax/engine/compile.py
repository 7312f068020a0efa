"""Ahead-of-time compilation, the persistent cache, and the guard that sees any compile after warm-up."""

import threading
from collections.abc import Hashable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax

Key = Hashable
_COMPILE_EVENT = "/jax/core/compile/backend_compile_duration"


def use_persistent_cache(folder: Path) -> None:
    """Keeps every compiled program under `folder`, however small or quick to compile."""
    folder.mkdir(parents=True, exist_ok=True)
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def compile_all(lowered: Iterable[tuple[Key, Any]], threads: int) -> dict[Key, Any]:
    """Compiles programs side by side, each from when it is lowered; XLA releases the interpreter while it works."""
    with ThreadPoolExecutor(max_workers=max(threads, 1)) as pool:
        futures = {key: pool.submit(program.compile) for key, program in lowered}
        return {key: future.result() for key, future in futures.items()}


class CompileGuard:
    """Counts compilations on the threads it watches. With `strict`, `check` raises once there was one."""

    def __init__(self, strict: bool = False):
        self.strict = strict
        self.count = 0
        self._threads: set[int] = set()
        self._listening = True
        jax.monitoring.register_event_duration_secs_listener(self._hear)

    def _hear(self, event: str, duration: float, **_: Any) -> None:
        if event == _COMPILE_EVENT and threading.get_ident() in self._threads:
            self.count += 1

    def watch_this_thread(self) -> None:
        self._threads.add(threading.get_ident())

    def check(self) -> None:
        if self.strict and self.count:
            raise AssertionError(f"{self.count} compilations after warm-up")

    def close(self) -> None:
        """Safe to call twice."""
        self._threads.clear()
        if self._listening:
            self._listening = False
            jax.monitoring.unregister_event_duration_listener(self._hear)
