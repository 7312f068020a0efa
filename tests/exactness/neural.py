"""Neural drafters for the laboratory: networks whose weights are made here, in an engine like any other.

The toy drafter of the documentation is always right on the script target in two ways: by what it *observed* (it turns the
last tap, so that one wrong or stale context row shows), or by the *anchor* alone (it then draws by the target's own law,
so that noise of another place shows). With random weights it is always wrong, as a fresh drafter is.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from radiance_jax.engine.choices import DTYPES
from radiance_jax.engine.hooks import Hooks
from radiance_jax.mesh import make_mesh
from radiance_jax.models.draft import registry
from radiance_jax.models.draft.backbone import BlockDrafter
from radiance_jax.models.load import place_params
from radiance_jax.models.partition import partition
from radiance_jax.spec import evidence
from tests.exactness import targets
from tests.exactness.lab import Lab, hooks_of
from tests.spec.toy_drafter import Toy
from tests.tiny_model import CONFIG

DEPTH = 7
WIDTH, LAYERS = CONFIG["hidden_size"], CONFIG["num_hidden_layers"]
Read = Callable[[str], np.ndarray]

_BACKBONE: dict[str, Any] = {
    "hidden_size": WIDTH, "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 6, "num_key_value_heads": 2,
    "head_dim": 16, "vocab_size": CONFIG["vocab_size"], "num_target_layers": LAYERS, "rope_theta": 1e4, "mask_token_id": 3,
    "target_layer_ids": [1, -1, 0], "max_position_embeddings": 512}
_WINDOW = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 24}
# A later family is one more entry: its config.json, small.
NEURAL: dict[str, dict[str, Any]] = {
    "dflash": _BACKBONE | _WINDOW | {"architectures": ["DFlashDraftModel"], "block_size": DEPTH + 1},
    "dflash2": _BACKBONE | {"architectures": ["DFlash2DraftModel"], "block_size": DEPTH + 1, "is_causal": False,
                            "layer_types": ["sliding_attention"] * 2, "sliding_window": 24, "conv_kernel_size": 2,
                            "conv_group_size": 16, "selector_rank": 8, "selector_top_k": 5},
    "dspark": _BACKBONE | {"architectures": ["DSparkDraftModel"], "block_size": DEPTH, "markov_rank": 8,
                           "markov_head_type": "gated", "enable_confidence_head": True},
}
TOY_LINE = ("toy", (Toy, ("ToyDrafter",)))  # the line of the registry


def read_drafter(raw: dict[str, Any]) -> BlockDrafter:
    """A drafter by its config.json; the registry has the toy's line."""
    kind, (family, names) = TOY_LINE
    with patch.dict(registry.FAMILIES, {kind: (family, names)}), patch.dict(registry.ARCHITECTURES, dict.fromkeys(names, kind)):
        return registry.read_drafter(raw)


def toy_config(tap: int = LAYERS - 1, width: int = WIDTH, block: int = DEPTH) -> dict[str, Any]:
    """The toy's config.json."""
    return _BACKBONE | {
        "architectures": ["ToyDrafter"], "hidden_size": width, "block_size": block, "num_hidden_layers": 1,
        "layer_types": ["sliding_attention"], "sliding_window": 2, "target_layer_ids": [tap], "num_target_layers": None}


def toy_drafter(**changes) -> BlockDrafter:
    return read_drafter(toy_config(**changes))


def random_tensors(drafter: BlockDrafter, seed: int = 1) -> Read:
    """Tensors by name."""
    rng = np.random.default_rng(seed)
    made = {}
    for name, shape in sorted(drafter.shapes().items()):
        spread, middle = (0.1, 1.0) if "norm" in name and len(shape) == 1 else (0.2, 0.0)
        made[name] = (rng.standard_normal(shape) * spread + middle).astype(np.float32)
    return made.__getitem__


TOY = toy_drafter()
ZERO, ONE = np.zeros((WIDTH, WIDTH), np.float32), np.eye(WIDTH, dtype=np.float32)
TOYS = {"observed": (targets.turn(), ZERO), "anchor": (ZERO, ONE)}


def toy(kind: str) -> Read:
    """The tensors of a toy that is always right on the script target: "observed" or "anchor"."""
    carry, read = TOYS[kind]
    return {"carry.weight": carry, "read.weight": read, "norm.weight": np.ones(WIDTH, np.float32)}.__getitem__


def open_lab(kind: str, tp: int, folder: Path, drafter: BlockDrafter = TOY, base: Hooks | None = None, **changes) -> Lab:
    """A laboratory whose drafter has random weights, and proposes whatever lookup finds."""
    hooks = replace(base or hooks_of(DEPTH), drafter=(drafter, random_tensors(drafter)))
    lab = Lab.open(kind, tp, folder, hooks, num_speculative_tokens="auto", **changes)
    lab.built = replace(lab.built, rules=replace(lab.built.rules, policy=drafter_alone))
    lab.restart()
    return lab


def drafter_alone(bids, *_):
    """A drafting policy: no copies, all that the drafter proposes."""
    return [tuple(cap if level == evidence.NEURAL else 0 for level, cap in enumerate(bid.caps)) for bid in bids]


def copies_first(bids, *_):
    """A drafting policy: whatever lookup finds, and the drafter where it finds nothing."""
    return [evidence.alike(max(bid.caps)) for bid in bids]


@contextmanager
def weights(lab: Lab, tensors: Read) -> Iterator[None]:
    """Within, the drafter has these weights (same programs)."""
    drafter, settings, device = lab.hooks.drafter[0], lab.built.model_config, lab.built.device
    mesh = make_mesh(lab.config.mesh_size)
    cut, own = partition(settings, mesh.size), device._draft_params
    specs = drafter.param_specs(cut, DTYPES[lab.config.dtype])
    try:
        device._draft_params = place_params(specs, lambda path: drafter.fuse(tensors, cut, path), mesh)
        yield
    finally:
        device._draft_params = own
