"""Faults that lose bits, each as seen or feared in some engine, and the test that catches it.

A *device* fault is compiled into one program beside all the others and chosen by a traced number, so that no fault
costs a compile; what is patched is patched only while that program is traced. A *host* fault is a patch at run time. Each file
here is one mechanism: `FAULTS` (name to the test that catches it) and what it replaces.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

import numpy as np

from tests.exactness.faults import device, host, sums
from tests.exactness.faults.device import hooks
from tests.exactness.lab import Lab

DEVICE, HOST, SUMS = device.FAULTS, host.FAULTS, sums.FAULTS
__all__ = ["DEVICE", "HOST", "SUMS", "hooks", "inject"]


@contextmanager
def inject(name: str, faulty: Lab | None = None) -> Iterator[None]:
    """Within, the engine has that fault."""
    if name in device.FAULTS:
        faulty.turn(fault=np.int32(device.NUMBER[name]))
        try:
            yield
        finally:
            faulty.turn(fault=np.int32(0))
        return
    with ExitStack() as stack:
        for each in (sums.PATCHES[name],) if name in SUMS else host.PATCHES[name]():
            stack.enter_context(patch.object(each.owner, each.name, each.make(getattr(each.owner, each.name))))
        yield
