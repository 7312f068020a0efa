"""From a checkpoint's tensors to sharded parameters, one parameter at a time."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import jax
import numpy as np
from jax.sharding import Mesh

from radiance_jax.errors import ModelError
from radiance_jax.mesh import is_spec, place
from radiance_jax.models import llama
from radiance_jax.models.config import ModelConfig
from radiance_jax.models.partition import Partition


class TensorInfo(Protocol):
    shape: tuple[int, ...]


class Checkpoint(Protocol):
    """What loading needs of a model file: names with shapes, and values."""

    tensors: Mapping[str, TensorInfo]

    def read(self, name: str) -> np.ndarray: ...


def check_tensors(config: ModelConfig, checkpoint: Checkpoint) -> None:
    """Raises `ModelError` naming missing, extra and mis-shaped tensors."""
    expected = llama.tensor_shapes(config)
    given = {name: tuple(info.shape) for name, info in checkpoint.tensors.items() if not name.startswith(("file/", "draft."))}
    if config.tied_head:
        given.pop("lm_head.weight", None)  # some checkpoints store the tied head a second time
    given = {name: shape for name, shape in given.items() if not name.endswith("rotary_emb.inv_freq")}
    problems = [f"missing {name} {list(shape)}" for name, shape in expected.items() if name not in given]
    problems += [f"unexpected {name} {list(shape)}" for name, shape in given.items() if name not in expected]
    problems += [f"{name} must have shape {list(shape)}; got {list(given[name])}" for name, shape in expected.items()
                 if name in given and given[name] != shape]
    if problems:
        more = f" (and {len(problems) - 8} more)" if len(problems) > 8 else ""
        raise ModelError(f"the tensors do not fit {config.architecture} as its config.json describes it: "
                         + "; ".join(problems[:8]) + more)


def load_params(config: ModelConfig, cut: Partition, checkpoint: Checkpoint, mesh: Mesh, dtype,
                progress: Callable[[int, int], None] | None = None) -> Any:
    """Reads, pads, fuses, casts and places every parameter. `progress(done bytes, all bytes)`."""
    check_tensors(config, checkpoint)
    return place_params(llama.param_specs(config, cut, dtype), lambda path: llama.fuse(checkpoint.read, config, cut, path),
                        mesh, progress)


def path_keys(path: tuple) -> tuple:
    """Names and indices of a leaf's path in a tree of parameters, as `fuse` takes them."""
    return tuple(getattr(key, "key", getattr(key, "idx", None)) for key in path)


def place_params(specs: Any, fuse: Callable[[tuple], np.ndarray], mesh: Mesh,
                 progress: Callable[[int, int], None] | None = None) -> Any:
    """A tree of `ArraySpec` to a tree of arrays; `fuse(path)` gives the global values of one of them."""
    paths, tree = jax.tree_util.tree_flatten_with_path(specs, is_leaf=is_spec)
    total, done, leaves = sum(spec.nbytes for _, spec in paths), 0, []
    for path, spec in paths:
        keys = path_keys(path)
        values = fuse(keys)
        assert values.shape == spec.shape, (keys, values.shape, spec.shape)
        leaves.append(place(spec, mesh, lambda index, values=values: values[index]))
        done += spec.nbytes
        if progress:
            progress(done, total)
    return jax.tree_util.tree_unflatten(tree, leaves)
