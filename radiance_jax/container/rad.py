"""The `.rad` container: a valid safetensors file that holds everything a model needs.

Weights keep their logical (Hugging Face) names; a drafter's are prefixed `draft.`; companion files (tokenizer,
chat template, ...) are U8 tensors called `file/<name>`. `__metadata__` holds, as strings: format ("rad"),
format_version, architecture, config (JSON), precision, source (JSON), checksums (JSON: tensor to CRC-32 in hex), with a
drafter draft_config and draft_source (JSON), and header_checksum, the CRC-32 of the header itself with that field's
digits set to zero. So damage is found: in the header when the file is opened, in the data by `verify`.
"""

import json
import zlib
from collections.abc import Mapping
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from radiance_jax.container.safetensors_file import SafetensorsFile, TensorInfo, open_safetensors
from radiance_jax.container.weights import DRAFT_PREFIX, check_weights, model_config
from radiance_jax.errors import ModelError

FORMAT_VERSION = "1"
FILE_PREFIX = "file/"
SUM_FIELD = b'"header_checksum":"'  # quotes inside JSON strings are escaped, so only the key itself reads like this
NO_SUM = "0" * 8

_CHUNK = 1 << 24


class RadFile:
    """An open `.rad`: everything but the weights comes from the header; weights are views of a memory map."""

    format = "rad"

    def __init__(self, file: SafetensorsFile, config: dict[str, Any], source: dict[str, Any],
                 checksums: dict[str, str], draft: tuple[dict[str, Any], dict[str, Any]] | None = None):
        self.path = file.path
        self.metadata = file.metadata
        self.config = config
        self.source = source
        self.draft_config, self.draft_source = draft or (None, None)
        self.entries: Mapping[str, TensorInfo] = file.tensors
        self.tensors: Mapping[str, TensorInfo] = {
            name: info for name, info in file.tensors.items() if not name.startswith(FILE_PREFIX)}
        self.files = tuple(name[len(FILE_PREFIX):] for name in file.tensors if name.startswith(FILE_PREFIX))
        self._file = file
        self._checksums = checksums

    @property
    def precision(self) -> str:
        """The type the weights were converted to: "bf16" or "f32"."""
        return self.metadata["precision"]

    @property
    def description(self) -> str:
        """Where the model came from, for people."""
        return str(self.source.get("description", "unknown source"))

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the header, which holds a checksum of every tensor: cheap, and equal for equal content."""
        return "rad-" + sha256(self._file.header).hexdigest()[:32]

    def source_hashes(self) -> dict[str, str]:
        """sha256 of each file the model was converted from."""
        return dict(self.source.get("sha256", {}))

    def read(self, name: str) -> np.ndarray:
        """The weight `name` as a zero-copy, read-only view. Raises `ModelError` for an unknown name."""
        return self._file.read(name)

    def file(self, name: str) -> bytes | None:
        """A companion file such as `tokenizer.json`, or None where the container has none of that name."""
        entry = FILE_PREFIX + name
        return self._file.raw(entry).tobytes() if entry in self.entries else None

    def verify(self) -> None:
        """Reads every byte and holds it against the checksums. Raises `ModelError` naming the damaged tensors."""
        damaged = [name for name in self.entries if checksum(self._file.raw(name)) != self._checksums[name]]
        if damaged:
            more = f" and {len(damaged) - 4} more" if len(damaged) > 4 else ""
            raise ModelError(f"{self.path}: checksums must match; damaged: {', '.join(damaged[:4])}{more}. "
                             "Convert or copy the model again.", param=damaged[0])


def open_rad(path: Path | str) -> RadFile:
    """Opens a `.rad` by its header alone. Raises `ModelError` naming the field that is damaged or does not fit."""
    file = open_safetensors(path)
    where, metadata = str(file.path), file.metadata
    if metadata.get("format") != "rad":
        raise ModelError(f"{where}: metadata 'format' must be 'rad'; got {metadata.get('format')!r}. Convert the "
                         "folder it came from: python -m radiance_jax.convert DIR OUT.rad", param="format")
    if metadata.get("format_version") != FORMAT_VERSION:
        raise ModelError(f"{where}: format_version must be {FORMAT_VERSION}; got {metadata.get('format_version')!r}. "
                         "Convert the model again with this version.", param="format_version")
    expected = metadata.get("header_checksum")
    if expected is None or checksum(unsummed(file.header)) != expected:
        raise ModelError(f"{where}: header_checksum must match the header; it is damaged. Convert or copy the model "
                         "again.", param="header_checksum")
    config, checksums = (_json_field(where, metadata, key) for key in ("config", "checksums"))
    source = _source_field(where, metadata, "source")
    if checksums.keys() != file.tensors.keys():
        odd = sorted(checksums.keys() ^ file.tensors.keys())[0]
        raise ModelError(f"{where}: checksums must name exactly the tensors of the file; {odd!r} is in one only",
                         param="checksums")
    if metadata.get("precision") not in ("bf16", "f32"):
        raise ModelError(f"{where}: precision must be bf16 or f32; got {metadata.get('precision')!r}",
                         param="precision")
    for name, info in file.tensors.items():
        if name.startswith(FILE_PREFIX) and (info.stored != "U8" or len(info.shape) != 1):
            raise ModelError(f"{where}: {name} must be a flat U8 tensor; got {info.stored} {list(info.shape)}",
                             param=name)
    has_drafter = "draft_config" in metadata
    draft = (_json_field(where, metadata, "draft_config"), _source_field(where, metadata, "draft_source")) if has_drafter else None
    rad = RadFile(file, config, source, checksums, draft)
    check_weights(where, model_config(where, config), rad.tensors)
    drafted = [name for name in rad.tensors if name.startswith(DRAFT_PREFIX)]
    if bool(drafted) != has_drafter:
        raise ModelError(f"{where}: a drafter must have both its tensors and draft_config; it has only "
                         + (f"{drafted[0]} and others" if drafted else "draft_config"), param="draft_config")
    return rad


def checksum(data: np.ndarray | bytes) -> str:
    """CRC-32 of the bytes, as 8 hex digits. An array must be contiguous."""
    view = memoryview(data) if isinstance(data, bytes) else memoryview(data.reshape(-1).view(np.uint8))
    crc = 0
    for at in range(0, len(view), _CHUNK):
        crc = zlib.crc32(view[at:at + _CHUNK], crc)
    return f"{crc:08x}"


def unsummed(header: bytes) -> bytes:
    """The header with the digits of its own checksum set to zero: what that checksum is taken over."""
    at = header.find(SUM_FIELD) + len(SUM_FIELD)
    return header if at < len(SUM_FIELD) else header[:at] + NO_SUM.encode() + header[at + len(NO_SUM):]


def _json_field(where: str, metadata: dict[str, str], key: str) -> dict[str, Any]:
    try:
        value = json.loads(metadata.get(key, ""))
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{where}: metadata {key!r} must be JSON: {error}", param=key) from error
    if not isinstance(value, dict):
        raise ModelError(f"{where}: metadata {key!r} must be a JSON object; got {type(value).__name__}", param=key)
    return value


def _source_field(where: str, metadata: dict[str, str], key: str) -> dict[str, Any]:
    value = _json_field(where, metadata, key)
    hashes = value.get("sha256", {})
    if not isinstance(hashes, dict) or not all(isinstance(each, str) for each in hashes.values()):
        raise ModelError(f"{where}: metadata {key!r} must give sha256 as an object of file names to digests; got "
                         f"{str(hashes)[:80]!r}", param=key)
    return value
