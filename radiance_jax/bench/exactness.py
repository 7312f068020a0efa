"""`python -m radiance_jax.bench exactness [MODEL] [flags]`: the promise, checked on a real model.

Every request is answered once alone, one token a step, without a drafter: its *oracle*. Then all are answered again
under other circumstances, axis by axis (`exactness_axes.py`), and everything the promise covers is compared bit for bit.
Each axis also proves that its circumstance was there. Where bit-exact is promised, any difference makes the status 1.
"""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from radiance_jax.bench import record
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
    depths: str = setting(str, "0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16", "draft depths, over a quarter of the prompts", BENCH)
    sequences: str = setting(str, "1,32", "engines with other --max-num-seqs", BENCH)
    soak: int = setting(int, 0, "requests of the soak, which come and leave at random", BENCH, low=0)
    out: str | None = setting(str, None, "JSON file to write (default: none)", BENCH)

    def __post_init__(self) -> None:
        super().__post_init__()
        words("axes", self.axes, AXES)
        for name in ("chunks", "sequences"):
            numbers(name, getattr(self, name))
        self.depth_list()

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
    ensure_host_devices(config.mesh_size)
    from radiance_jax.bench.exactness_axes import measure  # after the environment is set
    result = record.environment(PROG, argv, config)
    measure(config, result)
    show(result)
    if config.out is not None:
        record.write(config.out, result)
    broken = [each for each in result["axes"] if each["differences"] and result["bit_exact"] or not each["proven"]]
    for each in broken:
        log(f"error: {each['axis']}, {each['circumstance']}: " + (f"{each['differences'][0]}" if each["differences"] else
                                                                 f"the circumstance was not there: {each['activity']}"))
    return FAILED if broken else 0


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
    cases, differences = (sum(each) for each in zip(*((a["cases"], len(a["differences"])) for a in result["axes"]), strict=True))
    promise = "promised" if result["bit_exact"] else "NOT promised (bit-exact is off)"
    console.print(f"{cases} answers compared, {differences} differ; equality is {promise}")


if __name__ == "__main__":
    sys.exit(main())
