"""Where tests and `bench exactness` reach into an engine. An engine that serves has none."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

from radiance_jax.spec.drafter import Drafter


@dataclass(frozen=True, kw_only=True)
class Hooks:
    """`knobs`, a pytree of numpy arrays, is one more argument of every step program: `Device.turn` gives it other values
    (never other shapes) between steps, so that one program serves every test.

    `propose(state, knobs, drafts, count)` may put other proposals in the place of lookup's: drafts [S, K], count [S].
    `drafter` stands in the place of the container's: the description, and its tensors by name; (None, None): none, whatever
    the container holds.
    `tracing(knobs)` is entered while a step is traced; tests put their faults into the engine there. `interpret`: an interpreter
    in which the GPU's programs run on a CPU.
    """

    knobs: Any = ()
    propose: Callable[..., tuple[Any, Any]] | None = None
    drafter: tuple[Drafter, Callable[[str], np.ndarray]] | tuple[None, None] | None = None
    interpret: Any = None
    tracing: Callable[[Any], AbstractContextManager] = lambda knobs: nullcontext()


NO_HOOKS = Hooks()
