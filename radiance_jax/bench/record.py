"""What a benchmark writes beside its figures: machine, versions, command, and how busy others kept the machine."""

import json
import os
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from radiance_jax import __version__
from radiance_jax.errors import UserError
from radiance_jax.fingerprint import PACKAGE, cpu_model
from radiance_jax.settings import Config


def log(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def environment(prog: str, argv: Sequence[str], config: Config) -> dict[str, Any]:
    """Imports jax: call it once the platform is set up."""
    import jax
    import jaxlib

    device = jax.devices()[0]
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": command(prog, argv),
        "machine": {
            "platform": device.platform, "device": device.device_kind, "devices": jax.device_count(),
            "cpu": cpu_model(), "cores": len(os.sched_getaffinity(0)), "system": platform.platform(),
            "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
            "load_average_at_start": [round(each, 2) for each in os.getloadavg()],
        },
        "versions": {"python": platform.python_version(), "jax": jax.__version__, "jaxlib": jaxlib.__version__,
                     "radiance_jax": __version__, "git": git_commit()},
        "configuration": {name: portable(value) for name, value in vars(config).items()
                          if value is not None and name != "cache_dir"},
    }


def command(prog: str, argv: Sequence[str]) -> str:
    return shlex.join([*prog.split(), *map(portable, argv)])


def portable(value: Any) -> Any:
    """Without the folders of this machine: an absolute path keeps its last part, also in a list with commas and behind a flag
    with an equals sign."""
    if not isinstance(value, str) or "/" not in value:
        return value
    flag, equals, rest = value.partition("=")
    if equals and flag.startswith("--"):
        return f"{flag}={portable(rest)}"
    return ",".join(Path(each).name if each.startswith("/") else each for each in value.split(","))


def git_commit() -> str | None:
    """The commit of this package's files, with "+changes" if they differ from it; None outside a repository."""
    def git(*arguments: str) -> str:
        return subprocess.run(["git", "-C", str(PACKAGE), *arguments], capture_output=True, text=True,
                              check=True).stdout.strip()

    try:
        return git("rev-parse", "HEAD") + ("+changes" if git("status", "--porcelain", "--", ".") else "")
    except (OSError, subprocess.CalledProcessError):
        return None


class Neighbours:
    """How many cores other programs kept busy since construction: the machine's busy time less our own and that of
    children that have ended. None where /proc/stat cannot be read."""

    def __init__(self) -> None:
        self._start = self._read()

    def cores(self) -> float | None:
        now = self._read()
        if self._start is None or now is None:
            return None
        busy, wall = now[0] - self._start[0], now[1] - self._start[1]
        return round(max(busy, 0.0) / max(wall, 1e-9), 2)

    @staticmethod
    def _read() -> tuple[float, float] | None:
        try:
            first = Path("/proc/stat").read_text(encoding="ascii").splitlines()[0].split()[1:9]
        except OSError:
            return None
        user, nice, system, _idle, _wait, irq, soft_irq, steal = (int(each) for each in first)
        own = os.times()
        ours = own.user + own.system + own.children_user + own.children_system
        busy = (user + nice + system + irq + soft_irq + steal) / os.sysconf("SC_CLK_TCK")
        return busy - ours, time.monotonic()


def check_writable(path: str | None) -> None:
    """Before hours of measuring. Raises `UserError`."""
    if path is not None and not os.access(Path(path).resolve().parent, os.W_OK):
        raise UserError(f"out must be a file in a folder that can be written; got {path}", param="out")


def pin(cores: Sequence[str]) -> None:
    """Keeps this process on these cores. Raises `UserError` for those it may not use."""
    allowed = os.sched_getaffinity(0)
    if not all(each.isascii() and each.isdigit() and int(each) in allowed for each in cores):
        raise UserError(f"cores must be some of {', '.join(map(str, sorted(allowed)))}; got {','.join(cores)}", param="cores")
    os.sched_setaffinity(0, set(map(int, cores)))


def write(path: str, record: dict[str, Any]) -> None:
    """In one piece: a reader finds the old file or the new one, never half of it."""
    half = Path(f"{path}.{os.getpid()}.tmp")
    half.write_text(json.dumps(_rounded(record), indent=1) + "\n", encoding="utf-8")
    os.replace(half, path)


def _rounded(value: Any) -> Any:
    """Floats to six significant digits."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    return [_rounded(each) for each in value] if isinstance(value, (list, tuple)) else value
