"""Asks XLA for several devices on a CPU-only machine. Called by the doors before jax is imported."""

import os
import sys
from collections.abc import MutableMapping

FLAG = "--xla_force_host_platform_device_count"


def ensure_host_devices(count: int, environ: MutableMapping[str, str] | None = None) -> bool:
    """Makes at least `count` CPU devices visible; True where the environment was changed.

    Flags that the user set are kept, this one included. Once jax is imported nothing is changed: then
    the mesh reports the missing devices. Other platforms do not read the flag.
    """
    environ = os.environ if environ is None else environ
    flags = environ.get("XLA_FLAGS", "")
    if count <= 1 or "jax" in sys.modules or FLAG in flags:
        return False
    environ["XLA_FLAGS"] = f"{flags} {FLAG}={count}".strip()
    return True
