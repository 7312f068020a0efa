"""A drafter on disk: in a Hugging Face folder of its own, or under `draft.` in a `.rad`.

A container keeps the drafter's config.json as it was published, in the metadata field `draft_config`, and its tensors
under canonical names (`models/draft/tensors.py`), so there is one reader of dialects for both. What a drafter copied
from its target is not stored again.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from radiance_jax.container.huggingface import WeightFolder
from radiance_jax.container.safetensors_file import TensorInfo
from radiance_jax.container.source import Source, file_sha256
from radiance_jax.container.weights import DRAFT_PREFIX
from radiance_jax.errors import ModelError
from radiance_jax.models.config import ModelConfig

if TYPE_CHECKING:  # the networks bring jax with them, and the container does without it
    from radiance_jax.models.draft.backbone import BlockDrafter

TARGET_EMBED, TARGET_HEAD = "model.embed_tokens.weight", "lm_head.weight"
_COPIES = {"embed_tokens.weight": TARGET_EMBED, "lm_head.weight": TARGET_HEAD}  # the drafter's name to the target's
_FLOATS = ("F32", "F16", "BF16", "F64")


@dataclass(frozen=True, kw_only=True)
class DraftCheckpoint:
    """A drafter and its tensors, by canonical name. `raw` is its config.json; `sha256` of each file it came from."""

    drafter: "BlockDrafter"
    raw: dict[str, Any]
    tensors: Mapping[str, TensorInfo]
    read: Callable[[str], np.ndarray]
    description: str
    sha256: Mapping[str, str]


class DraftFolder(WeightFolder):
    """A published drafter: config.json and safetensors. Opened by its headers; raises `ModelError` for what does not fit."""

    @cached_property
    def checkpoint(self) -> DraftCheckpoint:
        from radiance_jax.models.draft.tensors import canonical_names

        where = str(self.path)
        names = canonical_names(self.stored, where)
        tensors = {name: self.stored[own] for name, own in names.items()}
        return DraftCheckpoint(
            drafter=_checked(where, self.config, tensors), raw=self.config, tensors=tensors,
            read=lambda name: self.read_stored(names[name]), description=f"Hugging Face folder {self.path.resolve().name}",
            sha256={name: file_sha256(self.path / name) for name in ("config.json", *self.shards)})


def open_drafter(path: Path | str) -> DraftCheckpoint:
    """Opens a drafter's folder. Raises `ModelError` naming the field or tensor at fault."""
    if not os.path.isdir(path):
        raise ModelError(f"a drafter must be a folder with config.json and safetensors; {path} is none", param="draft_model")
    try:
        return DraftFolder(path).checkpoint
    except OSError as error:
        raise ModelError(f"a drafter must be a folder with config.json and safetensors; {error.filename or path} cannot be read "
                         f"({error.strerror or error})", param="draft_model") from error


def drafter_of(source: Source) -> DraftCheckpoint | None:
    """The drafter inside an open model, or None. Raises `ModelError` where it is damaged or does not fit the target."""
    raw = getattr(source, "draft_config", None)
    if raw is None:
        return None
    tensors = {name.removeprefix(DRAFT_PREFIX): info for name, info in source.tensors.items() if name.startswith(DRAFT_PREFIX)}
    where = f"{source.path}: draft"
    return DraftCheckpoint(
        drafter=_checked(where, raw, tensors), raw=raw, tensors=tensors, read=lambda name: source.read(DRAFT_PREFIX + name),
        description=str(source.draft_source.get("description", "unknown source")),
        sha256=dict(source.draft_source.get("sha256", {})))


def _checked(where: str, raw: dict[str, Any], tensors: Mapping[str, TensorInfo]) -> "BlockDrafter":
    from radiance_jax.models.draft.registry import read_drafter
    from radiance_jax.models.draft.tensors import check_shapes

    drafter = read_drafter(raw, f"{where}/config.json", tensors)
    check_shapes(where, drafter.config.architecture, drafter.shapes(), {name: info.shape for name, info in tensors.items()})
    for name, info in tensors.items():
        allowed = ("I64", "I32") if name == "d2t" else _FLOATS
        if info.stored not in allowed:
            raise ModelError(f"{where}: {name} must be stored as one of {', '.join(allowed)}; got {info.stored}", param=name)
    return drafter


def check_fits(where: str, drafter: "BlockDrafter", target: ModelConfig) -> None:
    """Raises `ModelError` with both values where a drafter was not made for a target of this shape."""
    c, made_for = drafter.config, f"{where}: the drafter was made for another target"
    borrows = [what for what, own in (("embedding", c.own_embed), ("head", c.own_head)) if not own]

    def must(holds: bool, field: str, what: str, ours: Any, theirs: Any) -> None:
        if not holds:
            raise ModelError(f"{made_for}: {what} must be the target's {theirs}; got {ours}. "
                             "Take the drafter that was trained for this model.", param=field)

    must(c.target_width == target.width, "hidden_size" if c.target_width == c.width else "target_hidden_size",
         "the width of what it taps", c.target_width, target.width)
    must(c.width == target.width or not borrows, "hidden_size", f"the width, as it borrows the {' and the '.join(borrows)},",
         c.width, target.width)
    must(c.vocab_size == target.vocab_size, "vocab_size", "the vocabulary", c.vocab_size, target.vocab_size)
    must(c.target_layers in (None, target.num_layers), "num_target_layers", "the number of layers it counts", c.target_layers,
         target.num_layers)
    if max(c.taps) >= target.num_layers:
        raise ModelError(f"{made_for}: target_layer_ids must be below the target's number of layers, "
                         f"{target.num_layers}; got {max(c.taps)}", param="target_layer_ids")


def copied(drafter: DraftCheckpoint, source: Source, dtype: np.dtype) -> frozenset[str]:
    """Names of the drafter's tensors that equal the target's once they are in `dtype`: it may as well borrow them."""
    same = set()
    for name, theirs in _COPIES.items():
        theirs = theirs if theirs in source.tensors else TARGET_EMBED  # a tied head
        info = drafter.tensors.get(name)
        if info is not None and info.shape == source.tensors[theirs].shape and np.array_equal(
                np.asarray(drafter.read(name), dtype), np.asarray(source.read(theirs), dtype)):
            same.add(name)
    return frozenset(same)
