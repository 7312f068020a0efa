"""A drafter's parameters: first values, and the way between the tree that is trained and the tensors that are published.

Training holds the fused tree of `param_specs` at one rank, as a server does. What `fuse` does to a checkpoint is nothing but
moving numbers about, so it is read backwards by sending each number's address through it: that needs no second list of
names in any family.
"""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from radiance_jax.mesh import ArraySpec, is_spec
from radiance_jax.models.load import path_keys
from radiance_jax.models.draft.backbone import BlockDrafter
from radiance_jax.models.partition import Partition

SPREAD = 0.02
Tensors = dict[str, np.ndarray]


def first_tensors(drafter: BlockDrafter, seed: int) -> Tensors:
    """f32 tensors by canonical name: matrices and codebooks N(0, 0.02), norms 1, biases 0, a convolution that passes its row
    on, and a bias by the token before that is zero at first (its second table is; the first has rows of about length 1)."""
    rng, tensors = np.random.default_rng(seed), {}
    for name, shape in sorted(drafter.shapes().items()):
        if name.endswith("norm.weight"):
            tensors[name] = np.ones(shape)
        elif name.endswith("bias") or name.endswith("markov_w2.weight"):
            tensors[name] = np.zeros(shape)
        elif name.endswith("base_kernel"):
            tensors[name] = np.zeros(shape)
            tensors[name][:, 0] = 1.0
        else:
            spread = shape[-1] ** -0.5 if name.endswith("markov_w1.weight") else SPREAD
            tensors[name] = rng.standard_normal(shape) * spread
    return {name: value.astype(np.float32) for name, value in tensors.items()}


def fused(drafter: BlockDrafter, cut: Partition, read: Callable[[str], np.ndarray], dtype: Any = np.float32) -> Any:
    """The tree [host arrays] of a drafter's tensors."""
    return _walk(drafter, cut, lambda path, spec: np.asarray(drafter.fuse(read, cut, path), dtype))


def unfused(drafter: BlockDrafter, cut: Partition, tree: Any) -> Tensors:
    """`fused` backwards: tensors by canonical name, in the tree's dtype; padding is left out."""
    leaves = {path: np.asarray(leaf) for path, leaf in _leaves(tree)}
    shapes = drafter.shapes()
    tensors: Tensors = {}

    def give_back(path: tuple, spec: ArraySpec) -> None:
        first: dict[str, int] = {}  # address of a tensor's first number; 0 is padding's
        count = 1

        def addresses(name: str) -> np.ndarray:
            nonlocal count
            if name not in first:
                first[name] = count
                count += int(np.prod(shapes[name]))
            return np.arange(first[name], first[name] + int(np.prod(shapes[name]))).reshape(shapes[name])

        address, values = drafter.fuse(addresses, cut, path).reshape(-1), leaves[path].reshape(-1)
        flat = np.zeros(count, values.dtype)
        flat[address] = values
        for name, start in first.items():
            tensors[name] = flat[start:start + int(np.prod(shapes[name]))].reshape(shapes[name])

    _walk(drafter, cut, give_back)
    assert tensors.keys() == shapes.keys(), tensors.keys() ^ shapes.keys()
    return tensors


def count(drafter: BlockDrafter) -> int:
    """Parameters that are trained."""
    return sum(int(np.prod(shape)) for shape in drafter.shapes().values())


def _walk(drafter: BlockDrafter, cut: Partition, leaf: Callable[[tuple, ArraySpec], Any]) -> Any:
    specs = drafter.param_specs(cut, np.float32)
    return jax.tree_util.tree_map_with_path(lambda path, spec: leaf(path_keys(path), spec), specs, is_leaf=is_spec)


def _leaves(tree: Any) -> list[tuple[tuple, Any]]:
    return [(path_keys(path), leaf) for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]]
