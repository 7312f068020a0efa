"""`python -m radiance_jax.bench kernels [flags]`: the Mosaic kernels on a Hopper GPU, one by one.

For each: is it right (against f32 oracles), are a row's bits its own (across row counts, tiles, mates and places), and how
long does it take against the floor: the bytes that must move at the copy bandwidth measured in the same run. Products are timed
in several tiles, and beside XLA's own product; the fastest tile by shape is what the rule of `pallas/tiles.py`
should choose.
"""

import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from radiance_jax.bench import record
from radiance_jax.bench.config import BENCH, words
from radiance_jax.bench.door import FAILED, door
from radiance_jax.bench.record import log
from radiance_jax.errors import UserError
from radiance_jax.flags import read_config
from radiance_jax.settings import Config, setting

PROG = "python -m radiance_jax.bench kernels"
PARTS = ("product", "tiles", "attention", "small")
# (K, N, gated): the products of a layer, and the head in f32
SHAPES = {
    "8b": {"qkv": (4096, 6144, False), "out": (4096, 4096, False), "gate_up": (4096, 12288, True), "down": (12288, 4096, False),
           "head": (4096, 151936, False)},
    "default": {"qkv": (576, 960, False), "out": (576, 576, False), "gate_up": (576, 1536, True), "down": (1536, 576, False),
                "head": (576, 49152, False)},
}
FORMS = "0x256x4x132,0x256x2x264,2x256x4x132,2x256x4x132x4,2x128x4x132,1x256x4x132"


@dataclass(frozen=True, kw_only=True)
class KernelsConfig(Config):
    parts: str = setting(str, ",".join(PARTS), "what to look at", BENCH)
    shapes: str = setting(str, ",".join(SHAPES), "shapes of products", BENCH)
    rows: str = setting(str, "8,16,32,64,128,512", "row counts", BENCH)
    tile_rows: str = setting(str, "8,16,64", "row counts at which tiles are compared", BENCH)
    context: str = setting(str, "1024,8192", "context lengths for attention", BENCH)
    forms: str = setting(str, FORMS, "forms of attention: lanes (0: the plain kernel), split, stages, walkers; then, "
                         "if you like, the splits behind which they are twice as long", BENCH)
    out: str | None = setting(str, None, "JSON file to write (default: none)", BENCH)


@door
def main(argv: Sequence[str]) -> int:
    """A table on stdout, everything in `--out`. Status 1 where a bit or an oracle differs."""
    config, remarks = read_config(KernelsConfig, argv, prog=PROG, environ=os.environ, description="Kernels one by one.")
    for line in remarks:
        log(line)
    record.check_writable(config.out)
    require_gpu()
    result = record.environment(PROG, argv, config)
    result["copy_bandwidth"] = copy_bandwidth()
    log(f"copy bandwidth {result['copy_bandwidth'] / 1e12:.2f} TB/s")
    from radiance_jax.bench import kernels_measure

    for part in words("parts", config.parts, PARTS):
        try:
            result[part] = getattr(kernels_measure, part)(config, result["copy_bandwidth"])
        finally:
            if config.out is not None:
                record.write(config.out, result)
    broken = [each for part in PARTS for each in result.get(part, ()) if each.get("differ") or each.get("wrong")]
    for each in broken:
        log(f"error: {each}")
    return FAILED if broken else 0


def require_gpu() -> None:
    import jax

    if jax.default_backend() == "cpu":
        raise UserError("these kernels need a Hopper GPU; got a CPU")


def copy_bandwidth() -> float:
    """Bytes per second, read plus written, of a large copy on the device: the faster of a copy and of an addition."""
    import jax
    import jax.numpy as jnp

    x = jnp.ones(1 << 29, jnp.float32)
    ways = (jax.jit(lambda x: x + 1), jax.jit(jnp.copy))
    return 2 * x.nbytes / min(seconds(lambda way=way: way(x), 20) for way in ways)


def seconds(call: Callable[[], Any], calls: int, rounds: int = 5) -> float:
    """Median over rounds of the time of a call, `calls` sent without waiting."""
    import jax

    jax.block_until_ready(call())
    took = []
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(calls):
            out = call()
        jax.block_until_ready(out)
        took.append((time.perf_counter() - start) / calls)
    return statistics.median(took)


REPEATS = 20


def repeated(kernel: Callable, *, repeats: int = REPEATS) -> Callable:
    """(x, *others) to x, after kernel(x, other) for every other, `repeats` times: one dispatch for much device work. What is
    added to x is zero, but the compiler cannot know, and one small operation a round is all that it costs."""
    from jax import lax

    def run(x, *others):
        def once(_, x):
            made = [kernel(x, other) for other in others]
            return x + sum(each.reshape(-1)[0].astype(x.dtype) for each in made) * 0

        return lax.fori_loop(0, repeats, once, x)

    return run


def compile_all(jobs: dict[Any, tuple[Callable, tuple]]) -> dict[Any, Any]:
    """(function, abstract arguments) by key to compiled programs, or the exception that came instead."""
    import jax

    def one(job):
        try:
            made = job[0] if hasattr(job[0], "lower") else jax.jit(job[0])
            return made.lower(*job[1]).compile()
        except Exception as error:  # noqa: BLE001  a tile that does not fit is a result
            return error

    with ThreadPoolExecutor(max_workers=8) as pool:
        return dict(zip(jobs, pool.map(one, jobs.values()), strict=True))


if __name__ == "__main__":
    sys.exit(main())
