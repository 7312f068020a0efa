"""One interface for whatever a model is read from, and the choice by what the path is."""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from radiance_jax.container.safetensors_file import TensorInfo
from radiance_jax.errors import ModelError

COMPANIONS = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json",
              "chat_template.jinja")
MAX_COMPANION_BYTES = 128 << 20

_CHUNK = 1 << 22


class Source(Protocol):
    """A model on disk. Opening reads headers only; every implementation checks them against the configuration."""

    format: str  # "rad", "huggingface" or "gguf"
    path: Path
    config: dict[str, Any]  # as in config.json, always of an architecture that `parse_config` accepts
    tensors: Mapping[str, TensorInfo]  # weights under Hugging Face names, [out, in]; the drafter's under `draft.`
    files: tuple[str, ...]  # names of the companion files, out of COMPANIONS

    @property
    def description(self) -> str:
        """Where the model came from, for people."""

    @property
    def fingerprint(self) -> str:
        """A hash of the content. Cheap for `.rad`; other formats read all their bytes the first time."""

    @property
    def precision(self) -> str:
        """What the weights are stored as, for people: bf16, f32, "Q4_1 + Q8_0 + F32", ..."""

    def read(self, name: str) -> np.ndarray:
        """One weight, as `tensors[name]` describes it. Raises `ModelError` for an unknown name."""

    def file(self, name: str) -> bytes | None:
        """A companion file, or None where there is none."""

    def source_hashes(self) -> dict[str, str]:
        """sha256 of each file behind the model (for `.rad`: of the files it was converted from)."""


def open_model(path: Path | str) -> Source:
    """Opens a `.rad` file, a Hugging Face folder or a GGUF file. Raises `ModelError` for anything else."""
    from radiance_jax.container.gguf_source import GgufSource  # here, so that a `.rad` never imports gguf
    from radiance_jax.container.huggingface import HuggingFaceSource
    from radiance_jax.container.rad import open_rad

    path = Path(path)
    try:
        if os.path.isdir(path):
            return HuggingFaceSource(path)
        with path.open("rb") as file:
            head = file.read(9)
    except OSError as error:
        raise ModelError(f"a model must be a .rad file, a Hugging Face folder or a .gguf file; {error.filename or path} cannot be "
                         f"read ({error.strerror or error})", param="model") from error
    if head[:4] == b"GGUF":
        return GgufSource(path)
    if path.suffix == ".rad" or head[8:9] == b"{":
        return open_rad(path)
    raise ModelError(f"a model must be a .rad file, a Hugging Face folder or a .gguf file; {path} begins with "
                     f"{head!r}, like none of them", param="model")


def eos_token_ids(source: Source) -> tuple[int, ...]:
    """Ids that end an answer, as the engine takes them: those of generation_config.json, else those of config.json."""
    found: list[int] = []
    generation = json_object(source.file("generation_config.json"), "generation_config.json")
    for block in (generation, source.config):
        ids = block.get("eos_token_id")
        found = found or (ids if isinstance(ids, list) else [] if ids is None else [ids])
    if not all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in found):
        raise ModelError(f"eos_token_id must be a token id or a list of them; got {found!r}", param="eos_token_id")
    return tuple(dict.fromkeys(found))


def json_object(data: bytes | None, where: str) -> dict[str, Any]:
    """The JSON object in a companion file; {} where the file is absent. Raises `ModelError` for anything else."""
    if data is None:
        return {}
    try:
        value = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{where} must be valid JSON: {error}", param=where) from error
    if not isinstance(value, dict):
        raise ModelError(f"{where} must hold a JSON object; got {type(value).__name__}", param=where)
    return value


def read_companion(path: Path) -> bytes:
    """A small file beside the weights. Raises `ModelError` for one that is too long or cannot be read."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_COMPANION_BYTES + 1)
    except OSError as error:
        raise ModelError(f"{path} cannot be read ({error.strerror or error})", param=path.name) from error
    if len(data) > MAX_COMPANION_BYTES:
        raise ModelError(f"{path} must be at most {MAX_COMPANION_BYTES} bytes; it has more", param=path.name)
    return data


def file_sha256(path: Path) -> str:
    """sha256 of a file, in hex, reading it in pieces."""
    digest = hashlib.sha256()
    for chunk in chunks(path):
        digest.update(chunk)
    return digest.hexdigest()


def chunks(path: Path) -> Iterator[bytes]:
    """The bytes of a file in pieces of 4 MiB."""
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            yield chunk


def combined_fingerprint(kind: str, hashes: Mapping[str, str]) -> str:
    """One short hash of a set of named file hashes."""
    return f"{kind}-" + hashlib.sha256(json.dumps(hashes, sort_keys=True).encode()).hexdigest()[:32]
