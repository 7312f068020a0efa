"""Neural drafters for the laboratory: networks whose weights are made here, in an engine like any other.

The toy drafter of the documentation is always right on the script target in two ways: by what it *observed* (it turns the
last tap, so that one wrong or stale context row shows), or by the *anchor* alone (it then draws by the target's own law,
so that noise of another place shows). With random weights it is always wrong, as a fresh drafter is.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

from radiance_jax.engine.build import DTYPES
from radiance_jax.engine.hooks import Hooks
from radiance_jax.mesh import make_mesh
from radiance_jax.models.load import place_params
from radiance_jax.models.partition import partition
from radiance_jax.spec.drafter import Drafter
from tests.exactness import targets
from tests.exactness.lab import Lab, hooks_of
from tests.spec.toy_drafter import ToyDrafter
from tests.tiny_model import CONFIG

WIDTH, LAYERS = CONFIG["hidden_size"], CONFIG["num_hidden_layers"]
DEPTH = 7
TOY = ToyDrafter(tap=LAYERS - 1, width=WIDTH, block=DEPTH)
ZERO = np.zeros((WIDTH, WIDTH), np.float32)
TOYS = {"observed": (targets.turn(), ZERO), "anchor": (ZERO, np.eye(WIDTH, dtype=np.float32))}


def toy(kind: str):
    """The toy's tensors by name: "observed", "anchor" or "random"."""
    if kind == "random":
        carry, read = np.random.default_rng(1).standard_normal((2, WIDTH, WIDTH)).astype(np.float32)
    else:
        carry, read = TOYS[kind]
    return {"carry.weight": carry, "read.weight": read, "norm.weight": np.ones(WIDTH, np.float32)}.__getitem__


def hooks(drafter: Drafter, tensors, base: Hooks | None = None) -> Hooks:
    return replace(base or hooks_of(DEPTH), drafter=(drafter, tensors))


def open_lab(kind: str, tp: int, folder: Path, drafter: Drafter = TOY, tensors=None, base: Hooks | None = None, **changes) -> Lab:
    return Lab.open(kind, tp, folder, hooks(drafter, tensors or toy("random"), base), num_speculative_tokens="auto", **changes)


@contextmanager
def weights(lab: Lab, tensors) -> Iterator[None]:
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
