"""A folder that holds a config.json and no weights: what the configuration implies, before anything is fetched."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from radiance_jax.container.huggingface import INDEX, SINGLE
from radiance_jax.container.safetensors_file import CODES, DTYPES, TensorInfo
from radiance_jax.container.source import COMPANIONS, combined_fingerprint, file_sha256, json_object, read_companion
from radiance_jax.container.weights import model_config
from radiance_jax.errors import ModelError
from radiance_jax.models.tensors import tensor_shapes

_STORED = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
MAX_LAYERS = 10_000  # no list of layers is built for an absurd count


def holds_no_weights(path: Path) -> bool:
    return os.path.isfile(path / "config.json") and not any(os.path.exists(path / name) for name in (SINGLE, INDEX))


def implied(shapes: Mapping[str, tuple[int, ...]], config: Mapping[str, Any]) -> dict[str, TensorInfo]:
    """Tensors of these shapes, in the type that the configuration says (bf16 where it says none)."""
    said = config.get("dtype") or config.get("torch_dtype")
    dtype = DTYPES[_STORED.get(said, "BF16") if isinstance(said, str) else "BF16"]
    found, at = {}, 0
    for name, shape in shapes.items():
        end = at + int(np.prod(shape, dtype=object)) * dtype.itemsize
        found[name] = TensorInfo(tuple(shape), dtype, at, end, CODES[dtype])
        at = end
    return found


class ConfigOnly:
    """A `Source` of counts alone: reading a weight raises."""

    format = "config.json alone"

    def __init__(self, path: Path | str):
        self.path = Path(path)
        self.files = tuple(name for name in COMPANIONS if (self.path / name).is_file())
        self.config: dict[str, Any] = json_object(self.file("config.json"), f"{self.path}/config.json")
        config = model_config(str(self.path), self.config)
        if config.num_layers > MAX_LAYERS:
            raise ModelError(f"{self.path}: num_hidden_layers must be at most {MAX_LAYERS}; got {config.num_layers}",
                             param="num_hidden_layers")
        self.tensors: Mapping[str, TensorInfo] = implied(tensor_shapes(config), self.config)

    @property
    def description(self) -> str:
        return f"{self.path.resolve().name}/config.json, no weights"

    @property
    def precision(self) -> str:
        return next(iter(self.tensors.values())).stored.lower()

    @property
    def fingerprint(self) -> str:
        return combined_fingerprint("config", self.source_hashes())

    def source_hashes(self) -> dict[str, str]:
        return {name: file_sha256(self.path / name) for name in self.files}

    def read(self, name: str) -> np.ndarray:
        raise ModelError(f"{self.path}: holds no weights, only a configuration; fetch the whole model", param=name)

    def file(self, name: str) -> bytes | None:
        return read_companion(self.path / name) if name in self.files else None
