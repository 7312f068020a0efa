"""Checkpoints: the whole state of a run by orbax, and the best drafter so far as plain tensors. orbax is imported here alone."""

import json
import os
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp
from safetensors.numpy import save_file

from radiance_jax.container.safetensors_file import open_safetensors
from radiance_jax.training.parameters import Tensors
from radiance_jax.training.programs import TrainState

BEST, FACTS, WEIGHTS = "best", "facts.json", "model.safetensors"
KEPT = 2


class Checkpoints:
    """States of a run in `folder`, the last two. Written beside the run; whole or not there."""

    def __init__(self, folder: Path):
        self._manager = ocp.CheckpointManager(folder.resolve(), options=ocp.CheckpointManagerOptions(
            max_to_keep=KEPT, enable_async_checkpointing=True))

    @property
    def latest(self) -> int | None:
        return self._manager.latest_step()

    def save(self, state: TrainState, facts: dict[str, Any], step: int) -> None:
        """`facts`: what else is needed to go on; plain values."""
        if step not in self._manager.all_steps():
            self._manager.save(step, args=ocp.args.Composite(state=ocp.args.StandardSave(state), facts=ocp.args.JsonSave(facts)))

    def restore(self, like: TrainState) -> tuple[TrainState, dict[str, Any]]:
        """The latest one, placed as `like` (abstract arrays) says."""
        found = self._manager.restore(self.latest, args=ocp.args.Composite(
            state=ocp.args.StandardRestore(like), facts=ocp.args.JsonRestore()))
        return found.state, found.facts

    def close(self) -> None:
        """Waits for what is being written."""
        self._manager.wait_until_finished()
        self._manager.close()


def save_best(out: Path, tensors: Tensors, facts: dict[str, Any]) -> None:
    """The best drafter so far: f32 tensors by canonical name, and what it did. The facts come last: they say that it is whole."""
    if jax.process_index():
        return
    folder = out / BEST
    folder.mkdir(parents=True, exist_ok=True)
    for name, write in ((WEIGHTS, lambda path: save_file(tensors, path)),
                        (FACTS, lambda path: path.write_text(json.dumps(facts)))):
        write(folder / f".{name}")
        os.replace(folder / f".{name}", folder / name)


def best_facts(out: Path) -> dict[str, Any] | None:
    path = out / BEST / FACTS
    return json.loads(path.read_text()) if path.exists() else None


def best_tensors(out: Path) -> Tensors:
    file = open_safetensors(out / BEST / WEIGHTS)
    return {name: file.read(name) for name in file.tensors}
