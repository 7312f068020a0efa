"""Compiled programs kept on disk, found without tracing them.

JAX's own compile cache is keyed by the lowered program, so finding one there takes tracing and lowering it first: seconds of
Python for every program of kernels. What a `Ladder` says, together with the source and what the process runs on, determines the
lowered program; so an index by that leads straight to the executable. Where the index knows nothing (the source was edited), the
lowered program is looked up by its content, as JAX does.
"""

import contextlib
import json
import os
import pickle
import threading
from collections.abc import Sequence
from concurrent.futures import Executor
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import uuid4

import jax
from jax.experimental.serialize_executable import deserialize_and_load, serialize

from radiance_jax.fingerprint import code_digest, runtime

CODE = code_digest()  # of the source as it is imported; it may be edited while this process runs
LIMIT = 4 * 2**30  # bytes kept; programs used least recently go first
CACHE_HIT = "/jax/compilation_cache/cache_hits"
SUM = sha256().digest_size  # bytes at the head of a program's file, over the rest: damaged code may load, and compute something
Key = tuple[Any, ...]


class Shelf:
    """Programs of one ladder over `mesh`, kept under `folder`. Raises `ValueError` for a description that holds an address.

    The files hold pickles, as trustworthy as the folder they are in: whoever can write there can run code here.
    """

    def __init__(self, folder: Path, described: str, mesh: Any):
        if " at 0x" in described:
            raise ValueError("a ladder must be described by its values; an object in it shows only its address")
        self._folder, self._devices = folder / "programs", list(mesh.devices.flat)
        self._around = json.dumps(runtime(mesh), sort_keys=True)
        self._index_file = self._folder / f"{_digest(self._around, CODE, described)}.index"
        self._index: dict[str, str] = {}
        self._loaded: list[Key] = []
        self._hits = threading.local()

    def __enter__(self) -> "Shelf":
        jax.monitoring.register_event_listener(self._hear)
        return self

    def __exit__(self, *_: Any) -> None:
        jax.monitoring.unregister_event_listener(self._hear)

    @property
    def found(self) -> int:
        """Programs that were not compiled anew."""
        return len(self._loaded)

    def take_all(self, keys: Sequence[Key], pool: Executor) -> dict[Key, Any]:
        """Those of `keys` that the index knows and that can be loaded."""
        with contextlib.suppress(OSError, ValueError):
            self._index = dict(json.loads(self._index_file.read_text(encoding="utf-8")))
            os.utime(self._index_file)
        programs = zip(keys, pool.map(lambda key: self._load(key, self._index.get(str(key))), keys), strict=True)
        return {key: program for key, program in programs if program is not None}

    def compile(self, key: Key, lowered: Any) -> Any:
        """The program of `lowered`: kept from before under its content, or compiled now and kept."""
        # The text does not name the arguments: the same operations over a tree of other names would be taken for these.
        content = _digest(self._around, lowered.as_text(), str(lowered.in_tree), str(lowered.out_tree))
        self._index[str(key)] = content
        program = self._load(key, content)
        if program is None:
            self._hits.count = 0
            program = lowered.compile()
            # One that came out of JAX's cache is not written down again: on a CPU it would load, and lack its code.
            if not self._hits.count:
                self._write(self._place(content), lambda: _summed(pickle.dumps(serialize(program))))
        return program

    def settle(self) -> bool:
        """Keeps the index for the next start, and of all programs those used last. Returns whether it could."""
        kept_index, left = self._write(self._index_file, lambda: json.dumps(self._index).encode()), LIMIT
        with contextlib.suppress(OSError):
            for path in sorted(self._folder.iterdir(), key=_last_used, reverse=True):
                with contextlib.suppress(OSError):  # another process may tidy up as well
                    left -= path.stat().st_size
                    if left < 0:
                        path.unlink()
        return kept_index

    def forget(self) -> None:
        """What is kept for this ladder does not run here."""
        for path in (self._index_file, *map(self._place, self._index.values())):
            with contextlib.suppress(OSError):
                path.unlink()

    def _load(self, key: Key, content: str | None) -> Any | None:
        if content is None:
            return None
        # What is damaged, or was written by a runtime that only looks like this one, is compiled again and written over.
        with contextlib.suppress(Exception):
            place = self._place(content)
            told = place.read_bytes()
            if told != _summed(told[SUM:]):
                return None
            program = deserialize_and_load(
                *pickle.loads(told[SUM:]), backend=self._devices[0].client, execution_devices=self._devices)
            os.utime(place)
            self._loaded.append(key)
            return program
        return None

    def _write(self, place: Path, content: Any) -> bool:
        """In one piece. A program that cannot be written down, or a full disk, costs the next start its time and nothing else."""
        half = place.with_name(f"{place.name}.{uuid4().hex}")  # processes in containers over one folder have the same ids
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            half.write_bytes(content())
            os.replace(half, place)
        except Exception:
            with contextlib.suppress(OSError):
                half.unlink()
            return False
        return True

    def _place(self, content: str) -> Path:
        return self._folder / f"{content}.program"

    def _hear(self, event: str, **_: Any) -> None:
        if event == CACHE_HIT:
            self._hits.count = getattr(self._hits, "count", 0) + 1


def _last_used(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _summed(content: bytes) -> bytes:
    return sha256(content).digest() + content


def _digest(*parts: str) -> str:
    return sha256("\0".join(parts).encode()).hexdigest()[:32]
