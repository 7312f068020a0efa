"""What this process is made of and runs on: the part of a manifest, and of a cache's key, that no setting names."""

import os
import platform
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).parent
ASKING = ("bench", "training")  # folders that ask for answers and take no part in giving them


@cache
def code_digest() -> str:
    """Of the source files that have a part in an answer."""
    files = sorted(path for path in PACKAGE.rglob("*.py") if path.relative_to(PACKAGE).parts[0] not in ASKING)
    told = sha256()
    for path in files:
        told.update(str(path.relative_to(PACKAGE)).encode() + b"\0" + path.read_bytes() + b"\0")
    return told.hexdigest()[:16]


def cpu_model() -> str:
    names = _cpuinfo(("model name",))
    return names[0] if names else platform.processor() or platform.machine()


@cache
def instructions() -> str:
    """A digest of the processor's instruction sets, "unknown" where the system does not list them."""
    found = _cpuinfo(("flags", "Features"))
    return sha256(" ".join(sorted(found[0].split())).encode()).hexdigest()[:16] if found else "unknown"


def runtime(mesh: Any) -> dict[str, Any]:
    """Versions, devices and compiler settings under which a program is compiled. Imports jax."""
    import jax
    import jaxlib

    device = mesh.devices.flat[0]
    return {
        "python": platform.python_version(), "jax": jax.__version__, "jaxlib": jaxlib.__version__,
        "platform": device.platform, "platform_version": device.client.platform_version, "device": device.device_kind,
        "devices": [each.id for each in mesh.devices.flat], "visible": jax.device_count(), "processes": jax.process_count(),
        "cpu": [cpu_model(), instructions(), len(os.sched_getaffinity(0))] if device.platform == "cpu" else [],
        "flags": [os.environ.get(name, "") for name in ("XLA_FLAGS", "LIBTPU_INIT_ARGS", "NPROC")],
        # All of them, that none is forgotten: one that changes no program costs a start that compiles.
        "settings": {name: str(value) for name, value in jax.config.values.items() if "cache" not in name}}


def _cpuinfo(names: tuple[str, ...]) -> list[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    return [line.partition(":")[2].strip() for line in lines if line.startswith(names)]
