"""`python -m radiance_jax.bench exactness [MODEL] [flags]`: the promise, checked on a real model.

Every request is answered once alone, one token a step, without a drafter: its *oracle*. Then all are answered again
under other circumstances, axis by axis (`exactness_axes.py`), and everything the promise covers is compared bit for bit.
Each axis also proves that its circumstance was there. Where bit-exact is promised, any difference makes the status 1.

A long run is divided: `--processes 8` starts eight of itself, each on its own cores with its own prompts, and adds their
records up (`exactness_driver.py`); `--part`, `--axes`, `--oracles` and `--merge` divide it by hand, also over days.
"""

import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from radiance_jax.bench import exactness_parts, record
from radiance_jax.bench.config import BENCH, numbers, words
from radiance_jax.bench.door import FAILED, door
from radiance_jax.bench.record import log
from radiance_jax.config import EngineConfig
from radiance_jax.errors import UserError
from radiance_jax.flags import read_config
from radiance_jax.host_devices import ensure_host_devices
from radiance_jax.settings import setting

PROG = "python -m radiance_jax.bench exactness"
AXES = ("again", "crowd", "lookup", "policy", "chunks", "rejected", "accepted", "pattern", "depth", "preempted", "echo",
        "capacity", "process", "soak")


@dataclass(frozen=True, kw_only=True)
class ExactnessConfig(EngineConfig):
    """What `bench exactness` asks, and under which circumstances."""

    prompts: int = setting(int, 100, "Spec-Bench prompts of this package, each greedily and with temperature 1", BENCH, low=1)
    max_tokens: int = setting(int, 16, "tokens of every answer; the end token is ignored", BENCH, low=2)
    axes: str = setting(str, ",".join(AXES), "what to vary", BENCH)
    crowd: int = setting(int, 8, "answers live at once where there is a crowd", BENCH, low=2)
    chunks: str = setting(str, "7,64", "rows of a step where prompts are cut, at most", BENCH)
    depths: str = setting(str, "0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16", "draft depths", BENCH)
    sequences: str = setting(str, "1,32", "engines with other --max-num-seqs", BENCH)
    soak: int = setting(int, 0, "requests of the soak, which come and leave at random", BENCH, low=0)
    one_in: int = setting(int, 4, "again, depth, preempted, echo and process ask one in so many of the prompts; 1: all", BENCH,
                          low=1)
    limit_minutes: float | None = setting(float, None, "stop after so long; the record says what is missing (default: never)",
                                          BENCH, low=0.0)
    oracles: str | None = setting(str, None, "file of answers alone and undrafted: those in it are taken, others added, if it is "
                                  "of this model, machine and version (default: none)", BENCH)
    processes: int = setting(int, 1, "divide the prompts over so many processes, each on its own cores", BENCH, low=1)
    part: str = setting(str, exactness_parts.WHOLE, "only these prompts: 3/8 is the third of eight parts", BENCH)
    cores: str | None = setting(str, None, "run on these cores, as in 0,1 (default: all that are allowed)", BENCH)
    merge: str | None = setting(str, None, "add up these records of --out, separated by commas, and run nothing", BENCH)
    out: str | None = setting(str, None, "JSON file to write, anew after every axis (default: none)", BENCH)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("chunks", "sequences"):
            numbers(name, getattr(self, name))
        self.depth_list()
        exactness_parts.part_of(self.part)
        if not self.asked():
            raise UserError("--axes soak needs --soak N, the number of its requests", param="soak")
        if self.processes > 1 and (self.part != exactness_parts.WHOLE or self.cores):
            raise UserError("processes gives every process its part and its cores; leave part and cores out", param="processes")

    def asked(self) -> list[str]:
        """The axes to run; no soak without requests."""
        return [name for name in words("axes", self.axes, AXES) if name != "soak" or self.soak]

    def depth_list(self) -> tuple[int, ...]:
        parts = words("depths", self.depths)
        if not all(part.isascii() and part.isdigit() for part in parts):
            raise UserError(f"depths must be whole numbers separated by commas; got {self.depths!r}", param="depths")
        return tuple(map(int, parts))


@door
def main(argv: Sequence[str]) -> int:
    """A table on stdout, progress on stderr, everything in `--out`."""
    config, remarks = read_config(ExactnessConfig, argv, prog=PROG, environ=os.environ,
                                  description="The promise of bit-exact answers, checked axis by axis.")
    for line in (config.describe(), *remarks):
        log(line)
    record.check_writable(config.out)
    if config.merge is not None:
        result = exactness_parts.merge([exactness_parts.read(path) for path in words("merge", config.merge)])
        result["command"] = record.command(PROG, argv)
    elif config.processes > 1:
        from radiance_jax.bench.exactness_driver import drive

        result = drive(config, argv)
    else:
        result = run(config, argv)
    if config.out is not None:
        record.write(config.out, result)
    show(result)
    return status(result)


def run(config: ExactnessConfig, argv: Sequence[str]) -> dict[str, Any]:
    """All axes asked for, in this process. `config.out` is written after each circumstance."""
    if config.cores is not None:
        record.pin(words("cores", config.cores))  # before jax counts them
    ensure_host_devices(config.mesh_size)
    from radiance_jax.bench.exactness_axes import measure  # after the environment is set

    started, result = time.monotonic(), record.environment(PROG, argv, config)

    def save() -> None:
        result["seconds"] = time.monotonic() - started
        if config.out is not None:
            record.write(config.out, result)

    measure(config, result, save, started + config.limit_minutes * 60 if config.limit_minutes is not None else None)
    return result


def status(result: dict[str, Any]) -> int:
    """1, with the reasons in the log, if what is promised was not kept or is not proven."""
    bad = [each for each in (*result["axes"], *result["unfinished"])
           if each["differences"] and result["bit_exact"] or not each["proven"]]
    for each in bad:
        log(f"error: {each['axis']}, {each['circumstance']}: " + (f"{each['differences'][0]}" if each["differences"] else
                                                                 f"the circumstance was not there: {each['activity']}"))
    if not result["complete"]:
        log(f"error: not complete{': ' + result['stopped'] if result.get('stopped') else ''}; missing, in whole or in part: "
            f"{', '.join(result['missing'])}")
    return FAILED if bad or not result["complete"] else 0


def show(result: dict[str, Any]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    made = Table(title="Answers under other circumstances against the same answers alone and undrafted", box=box.SIMPLE_HEAD,
                 title_justify="left")
    for name in ("axis", "circumstance", "proof that it was there"):
        made.add_column(name)
    for name in ("cases", "differences", "s"):
        made.add_column(name, justify="right")
    for each in result["axes"]:
        proof = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in each["activity"].items())
        made.add_row(each["axis"], each["circumstance"], proof if each["proven"] else f"NOT PROVEN: {proof}", str(each["cases"]),
                     str(len(each["differences"])), f"{each['seconds']:.0f}")
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 140
    console.print(made)
    cases = sum(each["cases"] for each in result["axes"])
    differences = sum(len(each["differences"]) for each in result["axes"])
    promise = "promised" if result["bit_exact"] else "NOT promised (bit-exact is off)"
    console.print(f"{cases} answers compared, {differences} differ; equality is {promise}")


if __name__ == "__main__":
    sys.exit(main())
