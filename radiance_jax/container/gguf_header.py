"""The header of a GGUF file: metadata and tensor descriptions, read with every length checked against the file.

Written here rather than taken from the `gguf` package, whose reader trusts lengths (a lying array count makes it
loop without end) and takes seconds on a vocabulary. Format: ggml's docs/gguf.md, versions 2 and 3, little-endian.
"""

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from radiance_jax.errors import ModelError

MAX_RANK = 4
_STRING, _ARRAY = 8, 9
_SCALARS = {0: "u1", 1: "i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "?", 10: "<u8", 11: "<i8",
            12: "<f8"}
_MIN_ENTRY = 8 + 4 + 1  # the smallest metadata entry: name length, type, value
_MIN_TENSOR = 8 + 4 + 8 + 4 + 8


@dataclass(frozen=True)
class GgufTensor:
    """`shape` in NumPy order (ggml's reversed); `kind` is ggml's type number; bytes [start, end) of the file."""

    shape: tuple[int, ...]
    kind: int
    start: int
    end: int


@dataclass(frozen=True)
class GgufHeader:
    """Metadata values are Python scalars, strings and lists."""

    metadata: dict[str, Any]
    tensors: dict[str, GgufTensor]


class _Cursor:
    """Reads forward through the mapped file; every read is checked before it happens."""

    def __init__(self, path: Path, data: mmap.mmap):
        self.path, self.data, self.at, self.field = path, data, 0, "magic"

    def fail(self, what: str) -> ModelError:
        return ModelError(f"{self.path}: GGUF field {self.field!r}: {what}. The file is damaged: fetch it again.",
                          param=self.field)

    def take(self, count: int) -> int:
        """Skips `count` bytes and returns where they begin."""
        if count > len(self.data) - self.at:
            raise self.fail(f"needs {count} bytes at byte {self.at}, but the file has {len(self.data)}")
        self.at += count
        return self.at - count

    def number(self, code: str) -> int:
        return struct.unpack_from(code, self.data, self.take(struct.calcsize(code)))[0]

    def string(self) -> str:
        length = self.number("<Q")
        start = self.take(length)
        try:
            return self.data[start:start + length].decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.fail(f"must be UTF-8 ({error.reason} at byte {start + error.start})") from None

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind in _SCALARS:
            dtype = np.dtype(_SCALARS[kind])
            return np.frombuffer(self.data, dtype, 1, self.take(dtype.itemsize))[0].item()
        if kind != _ARRAY:
            raise self.fail(f"has unknown type {kind}")
        inner, count = self.number("<I"), self.number("<Q")
        if inner in _SCALARS:
            dtype = np.dtype(_SCALARS[inner])
            start = self.take(count * dtype.itemsize)
            return np.frombuffer(self.data, dtype, count, start).tolist() if count else []
        if inner != _STRING:
            raise self.fail(f"must be an array of scalars or strings; got type {inner}")
        if count * 8 > len(self.data) - self.at:
            raise self.fail(f"claims {count} strings, more than the file can hold")
        return [self.string() for _ in range(count)]


def read_gguf_header(path: Path) -> GgufHeader:
    """Reads the header of `path`. Raises `ModelError` naming the field or tensor that is damaged or not supported."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _read(_Cursor(path, data))
    except (OSError, ValueError) as error:
        if isinstance(error, ModelError):
            raise
        raise ModelError(f"{path}: cannot be read as GGUF ({error})", param="path") from error


def _read(cursor: _Cursor) -> GgufHeader:
    start = cursor.take(4)
    if cursor.data[start:start + 4] != b"GGUF":
        raise cursor.fail("must be 'GGUF'")
    cursor.field = "version"
    version = cursor.number("<I")
    if version not in (2, 3):
        raise cursor.fail(f"must be 2 or 3, little-endian; got {version}")
    counts = {}
    for cursor.field, smallest in (("tensor_count", _MIN_TENSOR), ("kv_count", _MIN_ENTRY)):
        counts[cursor.field] = cursor.number("<Q")
        if counts[cursor.field] * smallest > len(cursor.data):
            raise cursor.fail(f"claims {counts[cursor.field]} entries, more than the file can hold")
    metadata: dict[str, Any] = {}
    for index in range(counts["kv_count"]):
        cursor.field = f"metadata entry {index}"
        key = cursor.string()
        cursor.field = key
        if key in metadata:
            raise cursor.fail("comes twice")
        metadata[key] = cursor.value(cursor.number("<I"))
    infos: dict[str, tuple[tuple[int, ...], int, int]] = {}
    for index in range(counts["tensor_count"]):
        cursor.field = f"tensor entry {index}"
        name = cursor.string()
        cursor.field = name
        if name in infos:
            raise cursor.fail("comes twice")
        rank = cursor.number("<I")
        if not 1 <= rank <= MAX_RANK:
            raise cursor.fail(f"must have 1 to {MAX_RANK} dimensions; got {rank}")
        shape = tuple(cursor.number("<Q") for _ in range(rank))[::-1]
        infos[name] = (shape, cursor.number("<I"), cursor.number("<Q"))
    return GgufHeader(metadata, _place(cursor, metadata.get("general.alignment", 32), infos))


def _place(cursor: _Cursor, alignment: Any,
           infos: dict[str, tuple[tuple[int, ...], int, int]]) -> dict[str, GgufTensor]:
    """Turns offsets in the data section into byte ranges of the file, checking size, alignment and overlap."""
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType  # here: its import costs a quarter of a second

    cursor.field = "general.alignment"
    if not isinstance(alignment, int) or not 0 < alignment <= 1 << 20 or alignment & (alignment - 1):
        raise cursor.fail(f"must be a power of two up to 2^20; got {alignment!r}")
    base = -(-cursor.at // alignment) * alignment
    tensors = {}
    for cursor.field, (shape, kind, offset) in infos.items():
        if kind not in GGMLQuantizationType._value2member_map_:
            raise cursor.fail(f"has unknown type {kind}")
        block, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
        if not all(shape) or shape[-1] % block:
            raise cursor.fail(f"has shape {list(shape)}: sizes must be positive and rows a multiple of {block}")
        if offset % alignment:
            raise cursor.fail(f"must begin at a multiple of {alignment}; got offset {offset}")
        start = base + offset
        end = start + math.prod(shape) // block * block_bytes
        if end > len(cursor.data):
            raise cursor.fail(f"ends at byte {end}, but the file has {len(cursor.data)} (shape {list(shape)})")
        tensors[cursor.field] = GgufTensor(shape, kind, start, end)
    at = base
    for cursor.field, tensor in sorted(tensors.items(), key=lambda item: item[1].start):
        if tensor.start < at:
            raise cursor.fail("overlaps the tensor before it")
        at = tensor.end
    return tensors
