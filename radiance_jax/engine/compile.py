"""Ahead-of-time compilation, the persistent cache, and the guard that sees any compile after warm-up."""

import threading
from collections.abc import Callable, Hashable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import jax

from radiance_jax.engine.shelf import Shelf
from radiance_jax.errors import UserError

Key = Hashable
_COMPILE_EVENT = "/jax/core/compile/backend_compile_duration"


def use_persistent_cache(folder: Path) -> None:
    """Keeps every compiled program under `folder`, however small or quick to compile. Raises `UserError` where that cannot be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cache_dir must be a folder that can be written; {folder} cannot be made ({error.strerror}). "
                        "Name another, or use --no-compile-cache.", param="cache_dir") from None
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def compile_all(programs: Iterable[tuple[Key, Callable[[], Any]]], threads: int, shelf: Shelf | None = None,
                log: Callable[[str], None] = lambda line: None) -> dict[Key, Any]:
    """Each program by its key: taken from the shelf, or lowered here and compiled on a thread from then on, side by side with
    the others (XLA releases the interpreter while it works)."""
    programs = list(programs)
    with ThreadPoolExecutor(max_workers=max(threads, 1)) as pool, shelf or nullcontext():
        compiled = (lambda key, lowered: lowered.compile()) if shelf is None else shelf.compile
        kept = {} if shelf is None else shelf.take_all([key for key, _ in programs], pool)
        missing = [(key, lower) for key, lower in programs if key not in kept]
        if missing:
            log(f"programs: compiling {len(missing)} of {len(programs)}"
                + ("" if shelf is None else "; a start with the same settings will find them"))
        made = {key: pool.submit(compiled, key, lower()) for key, lower in missing}
        done = kept | {key: future.result() for key, future in made.items()}
        if missing and shelf is not None and not shelf.settle():
            log("programs: they cannot be kept, and the next start compiles them again; cache_dir must be a folder that can be "
                "written")
        return done


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
