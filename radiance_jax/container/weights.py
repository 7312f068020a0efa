"""Which weights a configuration needs, and which part of the model each belongs to."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from radiance_jax.container.safetensors_file import CODES, TensorInfo
from radiance_jax.errors import ModelError
from radiance_jax.models.config import ModelConfig, parse_config
from radiance_jax.models.tensors import tensor_shapes

DRAFT_PREFIX = "draft."
BLOCKS = ("embedding", "attention", "mlp", "norms", "head", "draft", "other")

_FLOATS = ("F32", "F16", "BF16", "F64")


def model_config(where: str, raw: dict[str, Any]) -> ModelConfig:
    """`parse_config` of a dictionary that came from the file `where`."""
    try:
        return parse_config(raw)
    except ModelError as error:
        raise ModelError(f"{where}: {error}", param=error.param) from None


def ignored(name: str, config: ModelConfig) -> bool:
    """Tensors that some checkpoints carry and no computation needs: rotary buffers, the copy of a tied head."""
    return name.endswith(".rotary_emb.inv_freq") or (name == "lm_head.weight" and config.tied_head)


def check_weights(where: str, config: ModelConfig, tensors: Mapping[str, TensorInfo]) -> None:
    """Holds the target's tensors (drafter's excluded) against the configuration.

    Raises `ModelError` naming the tensors that are missing, unknown, misshapen or of a type that is not served.
    """
    if config.num_layers > len(tensors):  # also keeps an absurd layer count from building an absurd list
        raise ModelError(f"{where}: num_hidden_layers is {config.num_layers}, but there are only {len(tensors)} "
                         "tensors; weights are missing", param="num_hidden_layers")
    expected = tensor_shapes(config)
    target = {name: info for name, info in tensors.items() if not name.startswith(DRAFT_PREFIX)}
    for fault, names in (("missing", expected.keys() - target.keys()), ("unknown", target.keys() - expected.keys())):
        if names:
            shown = sorted(names)[:4]
            more = f" and {len(names) - len(shown)} more" if len(names) > len(shown) else ""
            raise ModelError(f"{where}: weights must be those of {config.architecture}; {fault}: "
                             f"{', '.join(shown)}{more}", param=shown[0])
    for name, shape in expected.items():
        if target[name].shape != shape:
            raise ModelError(f"{where}: {name} must have shape {list(shape)} by the configuration; "
                             f"got {list(target[name].shape)}", param=name)
        code = CODES.get(np.dtype(target[name].dtype))
        if code not in _FLOATS:
            raise ModelError(f"{where}: {name} must be stored as one of {', '.join(_FLOATS)}; got {code}", param=name)


def block_of(name: str) -> str:
    """The part of the model a weight belongs to, one of `BLOCKS`."""
    if name.startswith(DRAFT_PREFIX):
        return "draft"
    if name == "model.embed_tokens.weight":
        return "embedding"
    if name == "lm_head.weight":
        return "head"
    if "norm" in name:
        return "norms"
    if ".self_attn." in name:
        return "attention"
    return "mlp" if ".mlp." in name else "other"


def layer_of(name: str) -> int | None:
    """The decoder layer a weight belongs to; None for those outside the layers and for the drafter's."""
    parts = name.split(".")
    return int(parts[2]) if parts[:2] == ["model", "layers"] and parts[2].isdigit() else None
