"""The ladder of programs: which ones an engine has, how each is lowered, and how they are told apart once compiled.

Where one program is a step there is one for each row count. Over GPU kernels a row count has a forward program and draw programs
of every kind, and a drafter one program that proposes and, for each row count, one that observes.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from jax.sharding import Mesh

from radiance_jax.engine.draft_programs import DraftPrograms, lower_observe, lower_propose
from radiance_jax.engine.hooks import Hooks
from radiance_jax.engine.kernels import Kernels
from radiance_jax.engine.kinds import KINDS, draw_steps
from radiance_jax.engine.state import Capacity, admission_size
from radiance_jax.engine.steps import Programs, StepShape, lower_admission, lower_step
from radiance_jax.engine.two_part import drawn_specs, head_params, lower_draw, lower_forward, returned_specs, tap_specs
from radiance_jax.models.config import ModelConfig
from radiance_jax.models.partition import Partition

ADMIT, STEP, DRAW, PROPOSE, OBSERVE = "admit", "step", "draw", "propose", "observe"
Key = tuple[Any, ...]  # one of these names, then row count, draw count and kind as far as they tell programs apart


@dataclass(frozen=True, kw_only=True)
class Ladder:
    """What is static: sizes, the steps' shapes in ascending order of rows, the mesh, and specs of parameters and caches."""

    model: ModelConfig
    cut: Partition
    capacity: Capacity
    shapes: Sequence[StepShape]
    kernels: Kernels | None
    mesh: Mesh
    params: Any
    caches: tuple[Any, ...]
    hooks: Hooks

    def described(self) -> str:
        """All that tells its programs from another ladder's but the mesh. Without hooks: what they do shows in no value."""
        return repr((self.model, self.cut, self.capacity, self.shapes, self.kernels, self.params, self.caches))

    def programs(self) -> Iterator[tuple[Key, Callable[[], Any]]]:
        """Every program by its key, and what lowers it."""
        model, cut, capacity, mesh, drafting = self.model, self.cut, self.capacity, self.mesh, self.shapes[0].drafting
        dtype = self.params["norm"].dtype
        yield (ADMIT,), partial(lower_admission, capacity, cut.vocab_size, mesh, admission_size(capacity))
        for shape in reversed(self.shapes):  # those that take the longest to compile first
            rows = shape.rows
            if self.kernels is None:
                yield (STEP, rows), partial(lower_step, model, cut, capacity, shape, mesh, self.params, self.caches, self.hooks)
                continue
            yield (STEP, rows), partial(
                lower_forward, model, cut, capacity, shape, self.kernels, mesh, self.params, self.caches, self.hooks)
            for draws, kind in ((draws, kind) for draws in draw_steps(rows) for kind in KINDS):
                yield (DRAW, rows, draws, kind), partial(
                    lower_draw, model, cut, capacity, self.kernels, rows, draws, kind, mesh, self.params)
            if drafting is not None:
                turn = drawn_specs(model, capacity, rows, dtype).turn
                yield (OBSERVE, rows), partial(
                    lower_observe, drafting, capacity, turn, tap_specs(model, rows, dtype, drafting.drafter.taps), mesh, dtype)
        if self.kernels is not None and drafting is not None:
            yield (PROPOSE,), partial(
                lower_propose, drafting, capacity, self.shapes[0].p_min, mesh, head_params(self.params), dtype)

    def returned(self) -> dict[int, Any]:
        """By rows, what the forward programs over GPU kernels return and take back."""
        if self.kernels is None:
            return {}
        return {shape.rows: returned_specs(self.model, self.capacity, shape, self.params["norm"].dtype) for shape in self.shapes}


def programs_of(compiled: dict[Key, Any], returned: dict[int, Any]) -> Programs:
    """Compiled programs by their keys, in the places where the device looks for them. `returned`: as of the ladder."""
    of = lambda name: {key[1:]: program for key, program in compiled.items() if key[0] == name}  # noqa: E731
    by_rows = lambda name: {rows: program for (rows,), program in sorted(of(name).items())}  # noqa: E731
    drafts = DraftPrograms(compiled[PROPOSE,], by_rows(OBSERVE)) if (PROPOSE,) in compiled else None
    return Programs(steps=by_rows(STEP), admit=compiled[ADMIT,], draws=dict(sorted(of(DRAW).items())), drafts=drafts,
                    returned=returned)
