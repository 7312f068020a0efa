"""Reading a safetensors file from its header, trusting nothing the header says.

Layout: u64 little-endian header length, JSON header, data. The JSON maps a tensor's name to its dtype, shape
and [start, end) in the data section; `__metadata__` maps strings to strings. Data has no holes and no overlaps.
"""

import json
import math
import struct
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from radiance_jax.errors import ModelError

MAX_HEADER_BYTES = 100_000_000  # the limit of the safetensors library
MAX_RANK = 8

DTYPES: Mapping[str, np.dtype] = {
    "F64": np.dtype(np.float64), "F32": np.dtype(np.float32), "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16), "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2), "I64": np.dtype(np.int64), "I32": np.dtype(np.int32),
    "I16": np.dtype(np.int16), "I8": np.dtype(np.int8), "U64": np.dtype(np.uint64), "U32": np.dtype(np.uint32),
    "U16": np.dtype(np.uint16), "U8": np.dtype(np.uint8), "BOOL": np.dtype(np.bool_),
}
CODES: Mapping[np.dtype, str] = {dtype: code for code, dtype in DTYPES.items()}


@dataclass(frozen=True)
class TensorInfo:
    """One tensor as a header describes it.

    `dtype` is what reading gives; `stored` names the format on disk (safetensors code, or GGUF type such as
    Q4_1, where the two differ). Its bytes are [start, end) of the file that holds it.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    start: int
    end: int
    stored: str

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes on disk."""
        return self.end - self.start


@dataclass(frozen=True)
class SafetensorsFile:
    """An open safetensors file: `header` is its JSON text, `data` a read-only memory map of the whole file."""

    path: Path
    header: bytes
    metadata: dict[str, str]
    tensors: dict[str, TensorInfo]
    data: np.ndarray

    def raw(self, name: str) -> np.ndarray:
        """The tensor's bytes as a U8 view of the memory map. Raises `ModelError` for an unknown name."""
        info = self.tensors.get(name)
        if info is None:
            raise ModelError(f"{self.path}: no tensor is called {name!r}", param=name)
        return self.data[info.start:info.end]

    def read(self, name: str) -> np.ndarray:
        """The tensor as a zero-copy, read-only view of the memory map."""
        raw = self.raw(name)
        info = self.tensors[name]
        return raw.view(info.dtype).reshape(info.shape)


def open_safetensors(path: Path | str) -> SafetensorsFile:
    """Reads and validates the header of `path`; data is mapped, not read.

    Raises `ModelError` that names the field at fault. Memory is bounded by the size of the header itself.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            file_size = file.seek(0, 2)
            file.seek(0)
            length_bytes = file.read(8)
            if len(length_bytes) < 8:
                raise ModelError(f"{path}: a safetensors file has at least 8 bytes; this one has {file_size}. "
                                 "It is truncated: fetch or convert it again.", param="header length")
            (length,) = struct.unpack("<Q", length_bytes)
            if not 2 <= length <= min(MAX_HEADER_BYTES, file_size - 8):
                raise ModelError(
                    f"{path}: header length must be from 2 to {MAX_HEADER_BYTES} and fit the file of {file_size} "
                    f"bytes; got {length}. It is truncated or no safetensors file.", param="header length")
            header = file.read(length)
        data = np.asarray(np.memmap(path, dtype=np.uint8, mode="r"))
    except OSError as error:
        raise ModelError(f"{path}: cannot be read ({error.strerror or error})", param="path") from error
    entries = _parse_json(path, header)
    metadata = entries.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise ModelError(f"{path}: __metadata__ must map strings to strings", param="__metadata__")
    base = 8 + length
    tensors = {name: _parse_entry(path, name, entry, base) for name, entry in entries.items()}
    _check_layout(path, tensors, base, len(data))
    return SafetensorsFile(path, header, metadata, tensors, data)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        twice, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise ModelError(f"header: names must be unique; {twice!r} comes twice", param=twice)
    return found


def _parse_json(path: Path, header: bytes) -> dict[str, Any]:
    if header[:1] != b"{":
        raise ModelError(f"{path}: the header must be a JSON object that begins with '{{'; got {header[:8]!r}. "
                         "It is damaged or no safetensors file.", param="header")
    try:
        entries = json.loads(header.decode("utf-8"), object_pairs_hook=_unique)
    except ModelError as error:
        raise ModelError(f"{path}: {error}", param=error.param) from None
    except (ValueError, RecursionError) as error:  # ValueError covers bad UTF-8, bad JSON and absurd integers
        raise ModelError(f"{path}: the header must be valid JSON: {error}", param="header") from error
    return entries


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def _parse_entry(path: Path, name: str, entry: Any, base: int) -> TensorInfo:
    def must(holds: bool, field: str, what: str, got: Any) -> None:
        if not holds:
            raise ModelError(f"{path}: tensor {name!r}: {field} must be {what}; got {str(got)[:80]}", param=name)

    keys = sorted(entry) if isinstance(entry, dict) else entry
    must(keys == ["data_offsets", "dtype", "shape"], "its entry", "{dtype, shape, data_offsets}", keys)
    code, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    must(isinstance(code, str) and code in DTYPES, "dtype", f"one of {', '.join(DTYPES)}", code)
    must(isinstance(shape, list) and len(shape) <= MAX_RANK and all(map(_whole, shape)), "shape",
         f"a list of at most {MAX_RANK} whole numbers", shape)
    must(isinstance(offsets, list) and len(offsets) == 2 and all(map(_whole, offsets)) and offsets[0] <= offsets[1],
         "data_offsets", "[start, end] with start <= end", offsets)
    need = math.prod(shape) * DTYPES[code].itemsize  # Python integers: a lying shape cannot wrap around
    must(offsets[1] - offsets[0] == need, "data_offsets", f"{need} bytes apart for {code} {shape}", offsets)
    return TensorInfo(tuple(shape), DTYPES[code], base + offsets[0], base + offsets[1], code)


def _check_layout(path: Path, tensors: dict[str, TensorInfo], base: int, file_size: int) -> None:
    at = base
    for name, info in tensors.items():
        if info.end > file_size:
            raise ModelError(f"{path}: tensor {name!r} ends at byte {info.end}, but the file has {file_size} bytes. "
                             "It is truncated: fetch or convert it again.", param=name)
    for name, info in sorted(tensors.items(), key=lambda item: (item[1].start, item[1].end)):
        if info.start != at:
            fault = "overlaps the tensor before it" if info.start < at else "leaves a hole before it"
            raise ModelError(f"{path}: tensor {name!r}: data_offsets {fault} "
                             f"(starts at byte {info.start - base}, must start at {at - base})", param=name)
        at = info.end
    if at != file_size:
        raise ModelError(f"{path}: the header describes {at} bytes, but the file has {file_size}. "
                         "It is damaged: fetch or convert it again.", param="file size")
