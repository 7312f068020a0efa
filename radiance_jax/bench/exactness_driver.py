"""`bench exactness --processes N`: N of itself side by side, each on its own cores with its own prompts, as one record.

Compiled programs are found in the persistent cache by all. The record of what is there so far is written whenever a
part has more, so that a run that is cut off leaves what it has found.
"""

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

from radiance_jax.bench import exactness_parts, record
from radiance_jax.bench.exactness import PROG, ExactnessConfig
from radiance_jax.bench.record import log
from radiance_jax.errors import RadianceError, UserError

POLL = 1.0  # seconds between looks at the parts


def shares(cores: Sequence[int], count: int) -> list[list[int]]:
    """Neighbouring cores for each process, equally many; what is left over stays idle. Raises `UserError`."""
    each = len(cores) // count
    if not each:
        raise UserError(f"processes must be at most the cores this process may use, {len(cores)}; got {count}", param="processes")
    return [list(cores[i * each:(i + 1) * each]) for i in range(count)]


def command(argv: Sequence[str], number: int, count: int, cores: Sequence[int], out: Path) -> list[str]:
    """Of one process: the same flags, then its own, which win."""
    return [sys.executable, "-m", "radiance_jax.bench", "exactness", *argv, "--processes", "1", "--part", f"{number}/{count}",
            "--cores", ",".join(map(str, cores)), "--out", str(out)]


def drive(config: ExactnessConfig, argv: Sequence[str]) -> dict[str, Any]:
    """Raises `RadianceError` if a process ends without a record; the others' is written then."""
    count, load = min(config.processes, config.prompts), os.getloadavg()
    cores, started = shares(sorted(os.sched_getaffinity(0)), count), time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        outs = [Path(folder) / f"part{number}.json" for number in range(1, count + 1)]
        children = [subprocess.Popen(command(argv, number, count, cores[number - 1], out), stdout=subprocess.DEVNULL,
                                     stderr=subprocess.PIPE, text=True) for number, out in enumerate(outs, 1)]
        readers = [threading.Thread(target=_echo, args=(f"[{number}/{count}] ", child.stderr), daemon=True)
                   for number, child in enumerate(children, 1)]
        for reader in readers:
            reader.start()
        try:
            seen: list[int] = []
            while any(child.poll() is None for child in children):
                time.sleep(POLL)
                now = [out.stat().st_mtime_ns if out.exists() else 0 for out in outs]
                if now != seen and config.out is not None and any(now):
                    record.write(config.out, _joined(outs, argv, config, load, started))
                seen = now
            for reader in readers:
                reader.join()
        finally:
            for child in children:
                if child.poll() is None:
                    child.terminate()
                    child.wait()
        result = _joined(outs, argv, config, load, started)
        ended = {f"{number}/{count}": child.returncode for number, child in enumerate(children, 1)}
        lost = [part for (part, code), out in zip(ended.items(), outs, strict=True) if code not in (0, 1) or not out.exists()]
        if lost:
            if config.out is not None:
                record.write(config.out, result)
            raise RadianceError(f"part {lost[0]} ended with status {ended[lost[0]]}; its last lines are above")
    return result


def _echo(prefix: str, lines: TextIO) -> None:
    for line in lines:
        log(prefix + line.rstrip("\n"))


def _joined(outs: Sequence[Path], argv: Sequence[str], config: ExactnessConfig, load: Sequence[float],
            started: float) -> dict[str, Any]:
    """The parts there are, under this command's name. A part that has not begun is missing from `covered`."""
    records = [exactness_parts.read(str(out)) for out in outs if out.exists()]
    if not records:
        raise RadianceError("no process came as far as its first answer; the reason is in its lines above")
    made = exactness_parts.merge(records)
    made["command"] = record.command(PROG, argv)
    made["machine"] |= {"cores": len(os.sched_getaffinity(0)), "load_average_at_start": [round(each, 2) for each in load]}
    made["configuration"] |= {"processes": config.processes, "axes": config.axes, "soak": config.soak}
    return made | {"seconds": time.monotonic() - started}
