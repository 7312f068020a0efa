"""From trained tensors to a drafter in the public layout: config.json and safetensors in bf16, under each family's own names."""

import json
import os
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

from radiance_jax.container.drafter import check_fits, open_drafter
from radiance_jax.models.config import ModelConfig
from radiance_jax.training.parameters import Tensors


def export(folder: Path, raw: dict[str, Any], tensors: Tensors, target: ModelConfig) -> int:
    """Writes a folder that `convert --draft-model` merges, opened again to be sure; returns the bytes of its tensors."""
    folder.mkdir(parents=True, exist_ok=True)
    stored = {name: np.ascontiguousarray(value.astype(ml_dtypes.bfloat16)) for name, value in tensors.items()}
    save_file(stored, folder / ".model.safetensors", metadata={"format": "pt"})
    os.replace(folder / ".model.safetensors", folder / "model.safetensors")
    os.chmod(folder / "model.safetensors", 0o644)  # the library makes it the user's own
    (folder / "config.json").write_text(json.dumps(raw | {"torch_dtype": "bfloat16"}, indent=2) + "\n")
    check_fits(str(folder), open_drafter(folder).drafter, target)
    return sum(value.nbytes for value in stored.values())
