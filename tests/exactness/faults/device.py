"""Every device fault in one program, chosen by a traced number."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import jax
import numpy as np

from radiance_jax.bench import forced
from radiance_jax.engine.hooks import Hooks
from tests.exactness import lab
from tests.exactness.faults import arithmetic, attention, draws, pipeline, rows

MECHANISMS = (rows, attention, arithmetic, draws, pipeline)
FAULTS: dict[str, Callable] = {name: test for each in MECHANISMS for name, test in each.FAULTS.items()}
NUMBER = {name: number for number, name in enumerate(FAULTS, 1)}
# What is patched while the program is traced: a function of the original, of the switch, and of what was seen of the step.
PLACES = {place: make for each in MECHANISMS for place, make in each.PLACES.items()}


def hooks() -> Hooks:
    """Those of the laboratory, and all device faults."""
    table = forced.table(lab.SCRIPTS, lab.ENTRIES, lab.DEPTH)
    return Hooks(knobs=table | {"fault": np.int32(0)}, propose=forced.propose, tracing=tracing)


@contextmanager
def tracing(knobs: dict[str, Any]) -> Iterator[None]:
    seen = SimpleNamespace()

    def on(name: str) -> jax.Array:
        return knobs["fault"] == NUMBER[name]

    with ExitStack() as stack:
        for (module, name), make in PLACES.items():
            stack.enter_context(patch.object(module, name, make(getattr(module, name), on, seen)))
        yield
