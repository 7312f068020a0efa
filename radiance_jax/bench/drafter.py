"""`python -m radiance_jax.bench drafter [flags]`: what a drafter's part of a step costs, over what its bytes cost.

The engine's own `propose` and `observe`, as programs of their own, with random weights made on the device. The *floor* is
the time in which this machine, by a plain copy measured in the same run, moves the bytes that must be moved: weights once,
the context that is in reach once. A verify step of an 8B-shaped target stands beside them, if asked for.
"""

import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from radiance_jax.bench import record
from radiance_jax.bench.config import BENCH, DTYPES, numbers, words
from radiance_jax.bench.door import door
from radiance_jax.bench.drafter_shapes import SHAPES
from radiance_jax.bench.record import log
from radiance_jax.config import parse_mesh
from radiance_jax.errors import UserError
from radiance_jax.flags import read_config
from radiance_jax.host_devices import ensure_host_devices
from radiance_jax.settings import MODEL, Config, setting

PROG = "python -m radiance_jax.bench drafter"


@dataclass(frozen=True, kw_only=True)
class DrafterConfig(Config):
    """What `bench drafter` measures."""

    shapes: str = setting(str, ",".join(SHAPES), f"drafters: {', '.join(SHAPES)} (Qwen3.8-27B's), or config.json files", BENCH)
    mesh: str = setting(str, "tp=1", "devices by axis, as in tp=8", MODEL)
    dtype: str = setting(str, "bf16", "dtype of weights and activations", MODEL, choices=DTYPES)
    sequences: str = setting(str, "1,8", "sequences that draft together", BENCH)
    contexts: str = setting(str, "1024,8192", "tokens before the anchor", BENCH)
    rows: str = setting(str, "8,64,512", "rows observed in one step", BENCH)
    temperature: float = setting(float, 0.0, "of all sequences; above 0 drafts are drawn with the target's noise", BENCH,
                                 low=0, high=100)
    repeats: int = setting(int, 20, "calls timed at a time", BENCH, low=1)
    rounds: int = setting(int, 5, "times everything is measured", BENCH, low=1)
    verify: bool = setting(bool, False, "also a verify step of an 8B-shaped target (36 layers, width 4096; about 17 GB)", BENCH)
    steps: str | None = setting(str, None, "record of bench step whose steps of eight rows a sequence stand for it", BENCH)
    out: str | None = setting(str, None, "JSON file to write (default: none)", BENCH)

    def __post_init__(self) -> None:
        super().__post_init__()
        parse_mesh(self.mesh)
        for name in ("sequences", "contexts", "rows"):
            numbers(name, getattr(self, name))
        words("shapes", self.shapes)
        if self.verify and self.steps is not None:
            raise UserError("a verify step is measured (--verify) or taken from a record (--steps), not both", param="steps")

    @property
    def mesh_size(self) -> int:
        return parse_mesh(self.mesh)["tp"]


@door
def main(argv: Sequence[str]) -> int:
    """A table on stdout, progress on stderr, everything in `--out`."""
    config, remarks = read_config(DrafterConfig, argv, prog=PROG, environ=os.environ,
                                  description="Time of propose and observe for a drafter's shape, over its bytes.")
    for line in (config.describe(), *remarks):
        log(line)
    record.check_writable(config.out)
    shapes = {name: shape_of(name) for name in words("shapes", config.shapes)}
    steps = recorded_steps(config.steps) if config.steps else None
    ensure_host_devices(config.mesh_size)
    result = measure(config, shapes, argv, steps)
    show(result)
    if config.out is not None:
        record.write(config.out, result)
    return 0


def shape_of(name: str) -> dict[str, Any]:
    """A drafter's config.json by name or path. Raises `UserError`."""
    if name in SHAPES:
        return SHAPES[name]
    try:
        return json.loads(Path(name).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"shapes must be {', '.join(SHAPES)} or config.json files; cannot read {name}: {error}",
                        param="shapes") from None


def recorded_steps(path: str) -> list[dict[str, Any]]:
    """Exact steps in which each sequence has eight rows, of a record of `bench step`. Raises `UserError`."""
    try:
        raw = json.loads(Path(path).read_text(encoding="utf-8"))
        if raw["configuration"]["shape"] != "8b":
            raise ValueError(f"it is of shape {raw['configuration']['shape']}")
        return [{"sequences": each["sequences"], "context": each["context"], "rows": 8 * each["sequences"], "ms": each["ms"],
                 "least_ms": each["ms"]} for each in raw["steps"]
                if each["way"] == "exact" and each["rows_each"] == 8 and each["context"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"steps must be a record that `bench step --shape 8b --out` wrote; {path} is none ({error})",
                        param="steps") from None


def measure(config: DrafterConfig, shapes: dict[str, dict[str, Any]], argv: Sequence[str],
            verify: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    """`verify`: steps of the target that were measured before."""
    from radiance_jax.bench import drafter_programs as programs
    from radiance_jax.mesh import make_mesh

    result = record.environment(PROG, argv, config)
    mesh, watch = make_mesh(config.mesh_size), record.Neighbours()
    result["copy_gb_per_s"] = bandwidth = programs.copy_speed(mesh)
    log(f"a plain copy moves {bandwidth:.0f} GB/s on each device")
    result |= {} if verify is None else {"verify": verify, "verify_from": record.portable(config.steps)}
    if config.verify:
        log("-- verify step of an 8B-shaped target --")
        result["verify"] = verify = programs.verify_steps(config, mesh, timed)
    result["drafters"] = []
    for name, raw in shapes.items():
        log(f"-- {name} --")
        subject = programs.Subject.make(raw, mesh, config)
        found: dict[str, Any] = {"shape": record.portable(name), **subject.figures(), "propose": [], "observe": []}
        proposing = {(sequences, context): subject.propose(sequences, context, config.temperature)
                     for sequences in numbers("sequences", config.sequences) for context in numbers("contexts", config.contexts)}
        observing = {rows: subject.observe(rows) for rows in numbers("rows", config.rows)}
        compile_beside((call for call, _ in (*proposing.values(), *observing.values())), 8 if mesh.size == 1 else 1)
        for (sequences, context), (call, nbytes) in proposing.items():
            line = figures({"sequences": sequences, "context": context}, timed(call, config), nbytes, bandwidth)
            beside = [each["ms"] for each in verify or () if (each["sequences"], each["context"]) == (sequences, context)]
            found["propose"].append(line | {"share_of_verify": line["ms"] / step for step in beside})
        for rows, (call, nbytes) in observing.items():
            found["observe"].append(figures({"rows": rows}, timed(call, config), nbytes, bandwidth))
        result["drafters"].append(found)
        del subject, call, proposing, observing
    result["machine"]["cores_busy_with_others"] = watch.cores()
    return result


def compile_beside(calls: Iterable[Callable[[], Any]], threads: int) -> None:
    """Calls each once, on threads: what compiles, compiles side by side. One thread where devices wait for each other: two calls
    must not reach them in different orders."""
    import jax

    with ThreadPoolExecutor(max_workers=threads) as pool:
        list(pool.map(lambda call: jax.block_until_ready(call()), calls))


def timed(call: Callable[[], Any], config: DrafterConfig) -> list[float]:
    """Seconds of one call, round by round: `repeats` are sent one behind the other and waited for together."""
    import jax

    jax.block_until_ready(call())
    seconds = []
    for _ in range(config.rounds):
        start = time.perf_counter()
        for _ in range(config.repeats):
            last = call()
        jax.block_until_ready(last)
        seconds.append((time.perf_counter() - start) / config.repeats)
    return seconds


def figures(what: dict[str, Any], seconds: Sequence[float], nbytes: int, bandwidth: float) -> dict[str, Any]:
    """Milliseconds (median, least), bytes on one device, the floor they set, and the median over it."""
    middle, floor = statistics.median(seconds) * 1e3, nbytes / bandwidth / 1e6
    return what | {"ms": middle, "least_ms": min(seconds) * 1e3, "bytes": nbytes, "floor_ms": floor, "over_floor": middle / floor}


def show(result: dict[str, Any]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    made = Table(title=f"A drafter's part of a step (floor: bytes at {result['copy_gb_per_s']:.0f} GB/s)", box=box.SIMPLE_HEAD,
                 title_justify="left")
    made.add_column("drafter")
    for name in ("what", "ms", "least", "MB", "floor ms", "over floor", "of 8B verify"):
        made.add_column(name, justify="right")
    for each in result["drafters"]:
        for kind in ("propose", "observe"):
            for line in each[kind]:
                what = f"{line['sequences']} x {line['context']}" if kind == "propose" else f"{line['rows']} rows"
                share = line.get("share_of_verify")
                made.add_row(each["shape"], f"{kind} {what}", f"{line['ms']:.3f}", f"{line['least_ms']:.3f}",
                             f"{line['bytes'] / 1e6:.0f}", f"{line['floor_ms']:.3f}", f"{line['over_floor']:.2f}",
                             f"{share:.2f}" if share else "")
    for line in result.get("verify", ()):
        made.add_row("(8B target)", f"verify {line['sequences']} x {line['context']}", f"{line['ms']:.3f}",
                     f"{line['least_ms']:.3f}", "", "", "", "")
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 140
    console.print(made)


if __name__ == "__main__":
    sys.exit(main())
