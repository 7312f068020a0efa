"""A Hugging Face folder: config.json and safetensors, in one file or in shards with an index."""

import re
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from radiance_jax.container.safetensors_file import SafetensorsFile, TensorInfo, open_safetensors
from radiance_jax.container.source import (
    COMPANIONS,
    combined_fingerprint,
    file_sha256,
    json_object,
    read_companion,
)
from radiance_jax.container.weights import check_weights, ignored, model_config
from radiance_jax.errors import ModelError

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"

_SHARD = re.compile(r"model-\d+-of-\d+\.safetensors")
_PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\.safetensors")


class WeightFolder:
    """config.json and the headers of the safetensors beside it, in one file or in shards; `stored` are all tensors in them.

    Raises `ModelError` naming the file or field at fault.
    """

    def __init__(self, path: Path | str):
        self.path = Path(path)
        self.files = tuple(name for name in COMPANIONS if (self.path / name).is_file())
        self.config: dict[str, Any] = json_object(self.file("config.json"), f"{self.path}/config.json")
        if not self.config:
            raise ModelError(f"{self.path}: a model folder must have a config.json that is not empty; is this the "
                             "right folder?", param="config.json")
        if self.config.get("quantization_config"):
            raise ModelError(f"{self.path}: quantised checkpoints are not served by this version (config.json has a "
                             "quantization_config); take the unquantised one", param="quantization_config")
        self._check_config()
        shards = self._sharded() if not (self.path / SINGLE).is_file() else {SINGLE: None}
        self.shards: dict[str, SafetensorsFile] = {}
        self._home: dict[str, str] = {}
        self.stored: dict[str, TensorInfo] = {}
        for shard, listed in shards.items():
            file = self.shards[shard] = open_safetensors(self.path / shard)
            self._check_listing(shard, listed, file.tensors.keys(), self._home)
            self._home |= dict.fromkeys(file.tensors, shard)
            self.stored |= file.tensors

    def _check_config(self) -> None:
        """Raises `ModelError` for a configuration that cannot be served; called before any weight file is looked for."""

    def read_stored(self, name: str) -> np.ndarray:
        return self.shards[self._home[name]].read(name)

    def file(self, name: str) -> bytes | None:
        """A companion file, or None where there is none."""
        return read_companion(self.path / name) if name in self.files else None

    def _sharded(self) -> dict[str, set[str]]:
        """Shard file to the tensors that the index lists for it."""
        index = self.path / INDEX
        if not index.is_file():
            raise ModelError(f"{self.path}: must hold {SINGLE} or {INDEX}. Checkpoints in other formats (pytorch_model"
                             ".bin) are not read: save the model as safetensors.", param=SINGLE)
        weight_map = json_object(read_companion(index), str(index)).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise ModelError(f"{index}: weight_map must be a JSON object that maps tensors to files",
                             param="weight_map")
        shards: dict[str, set[str]] = {}
        for name, shard in weight_map.items():
            # Only plain names: an index must not be able to point outside its own folder.
            if not isinstance(shard, str) or not _PLAIN_NAME.fullmatch(shard):
                raise ModelError(f"{index}: weight_map[{name!r}] must be the plain name of a .safetensors file in the "
                                 f"folder; got {str(shard)[:80]!r}", param=name)
            shards.setdefault(shard, set()).add(name)
        missing = sorted(shard for shard in shards if not (self.path / shard).is_file())
        if missing:
            raise ModelError(f"{self.path}: the index names files that are missing: {', '.join(missing[:4])}. "
                             "Fetch the folder again.", param=missing[0])
        extra = sorted(file.name for file in self.path.iterdir()
                       if _SHARD.fullmatch(file.name) and file.name not in shards)
        if extra:
            raise ModelError(f"{self.path}: holds shards that the index does not name: {', '.join(extra[:4])}. Two "
                             "checkpoints may be mixed: fetch the folder again.", param=extra[0])
        return shards

    def _check_listing(self, shard: str, listed: set[str] | None, found: Any, seen: Mapping[str, str]) -> None:
        twice = sorted(found & seen.keys())
        if twice:
            raise ModelError(f"{self.path}: {twice[0]} is both in {seen[twice[0]]} and in {shard}", param=twice[0])
        if listed is None:
            return
        for names, fault in ((listed - found, "lacks tensors that the index lists for it"),
                             (found - listed, "holds tensors that the index does not list for it")):
            if names:
                shown = sorted(names)
                raise ModelError(f"{self.path}/{shard} {fault}: {', '.join(shown[:4])}. Fetch the folder again.",
                                 param=shown[0])


class HuggingFaceSource(WeightFolder):
    """Opens `path` by its headers; raises `ModelError` naming the file or tensor that is missing or does not fit."""

    format = "huggingface"

    def __init__(self, path: Path | str):
        super().__init__(path)
        config = model_config(str(self.path), self.config)
        tensors = {name: info for name, info in self.stored.items() if not ignored(name, config)}
        check_weights(str(self.path), config, tensors)
        self.tensors: Mapping[str, TensorInfo] = tensors

    def _check_config(self) -> None:
        model_config(str(self.path), self.config)

    @property
    def description(self) -> str:
        return f"Hugging Face folder {self.path.resolve().name}"

    @property
    def precision(self) -> str:
        return " + ".join(sorted({info.stored for info in self.tensors.values()})).lower()

    @cached_property
    def fingerprint(self) -> str:
        return combined_fingerprint("hf", self.source_hashes())

    def source_hashes(self) -> dict[str, str]:
        return {name: file_sha256(self.path / name) for name in (*self.files, *self.shards)}

    def read(self, name: str) -> np.ndarray:
        if name not in self.tensors:
            raise ModelError(f"{self.path}: no weight is called {name!r}", param=name)
        return self.read_stored(name)
