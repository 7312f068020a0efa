"""Writing a `.rad`: one tensor in memory at a time, and all or nothing on disk."""

import json
import os
import secrets
import struct
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from radiance_jax.container.rad import FILE_PREFIX, FORMAT_VERSION, NO_SUM, checksum, unsummed
from radiance_jax.container.safetensors_file import CODES
from radiance_jax.errors import UserError

_ALIGNMENT = 64  # where data begins: enough for any vector load from the memory map


class RadWriter:
    """Context manager that streams tensors into a temporary file beside `path` and renames it on success.

    The header is written first, from known shapes and dtypes, with zeros for the checksums; checksums have a fixed
    width, so the same header with the real ones is patched in before the rename. On any exception the temporary
    file is removed and `path` is untouched. The bytes written are a function of the arguments alone.

    In:  RadWriter(path, weights={"model.norm.weight": ((576,), np.dtype("float32"))}, files={"config.json": b"{}"}, ..)
    Use: `with` it, `add` every weight in the order of `writer.names`, leave the block.
    `draft` holds the drafter's config and source.
    """

    def __init__(self, path: Path | str, *, weights: Mapping[str, tuple[tuple[int, ...], np.dtype]],
                 files: Mapping[str, bytes], config: Mapping[str, Any], precision: str, source: Mapping[str, Any],
                 overwrite: bool = False, draft: Mapping[str, Mapping[str, Any]] | None = None):
        self.path = Path(path)
        self.overwrite = overwrite
        if self.path.exists() and not overwrite:
            raise UserError(f"{self.path} must not exist yet; remove it or ask to overwrite it (--force)", param="out")
        self._files = dict(files)
        # Wide types first: with no holes allowed, this keeps every tensor aligned to its own item size.
        order = sorted(weights, key=lambda name: -weights[name][1].itemsize)
        self._specs = {name: (tuple(weights[name][0]), np.dtype(weights[name][1])) for name in order}
        self.names = tuple(order)
        self._specs |= {FILE_PREFIX + name: ((len(data),), np.dtype(np.uint8)) for name, data in self._files.items()}
        self._metadata = {
            "format": "rad", "format_version": FORMAT_VERSION, "architecture": str(config["architectures"][0]),
            "precision": precision, "config": json.dumps(config, sort_keys=True),
            "source": json.dumps(source, sort_keys=True)}
        if draft is not None:
            self._metadata |= {f"draft_{field}": json.dumps(value, sort_keys=True) for field, value in draft.items()}
        self._sums = dict.fromkeys(self._specs, NO_SUM)
        self._pending = list(self._specs)
        self.nbytes = 0

    def _header(self, *, own_sum: str) -> bytes:
        entries: dict[str, Any] = {
            "__metadata__": {"header_checksum": own_sum, **self._metadata, "checksums": json.dumps(self._sums)}}
        at = 0
        for name, (shape, dtype) in self._specs.items():
            end = at + int(np.prod(shape, dtype=object)) * dtype.itemsize
            entries[name] = {"dtype": CODES[dtype], "shape": list(shape), "data_offsets": [at, end]}
            at = end
        text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode("utf-8")
        return text + b" " * (-(8 + len(text)) % _ALIGNMENT)

    def __enter__(self) -> Self:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._temporary = self.path.with_name(f".{self.path.name}.{secrets.token_hex(4)}.part")
        self._out = self._temporary.open("xb")
        try:
            self._placeholder = self._header(own_sum=NO_SUM)
            self._out.write(struct.pack("<Q", len(self._placeholder)) + self._placeholder)
        except BaseException:
            self._discard()
            raise
        return self

    def add(self, name: str, array: np.ndarray) -> None:
        """Writes the next weight; its shape and dtype must be those announced. Raises `ValueError` otherwise."""
        if not self._pending or self._pending[0] != name:
            raise ValueError(f"the next tensor must be {self._pending[:1]}; got {name!r}")
        if (array.shape, array.dtype) != self._specs[name]:
            raise ValueError(f"{name} was announced as {self._specs[name]}; got {(array.shape, array.dtype)}")
        raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        self._sums[name] = checksum(raw)
        self._out.write(raw)
        self._pending.pop(0)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        try:
            if kind is None:
                self._finish()
        finally:
            self._discard()

    def _finish(self) -> None:
        missing = len(self._pending) - len(self._files)
        if missing:
            raise ValueError(f"{missing} announced tensors were never added, first {self._pending[0]!r}")
        for name, data in self._files.items():
            self.add(FILE_PREFIX + name, np.frombuffer(data, np.uint8))
        header = self._header(own_sum=NO_SUM)
        header = self._header(own_sum=checksum(unsummed(header)))
        assert len(header) == len(self._placeholder)
        self.nbytes = self._out.tell()
        self._out.seek(8)
        self._out.write(header)
        self._out.flush()
        os.fsync(self._out.fileno())
        self._out.close()
        self._publish()
        folder = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def _publish(self) -> None:
        if not self.overwrite:
            try:
                os.link(self._temporary, self.path)  # unlike a rename, fails if someone made the file meanwhile
                return
            except FileExistsError:
                raise UserError(f"{self.path} must not exist yet, but appeared meanwhile; ask to overwrite it "
                                "(--force)", param="out") from None
            except OSError:
                pass  # a file system without hard links: the rename has to do
        os.replace(self._temporary, self.path)

    def _discard(self) -> None:
        self._out.close()
        self._temporary.unlink(missing_ok=True)
