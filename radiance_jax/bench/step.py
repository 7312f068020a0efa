"""`python -m radiance_jax.bench step [flags]`: a whole step of a model's shape on a Hopper GPU, with random weights.

Forward pass and head for so many rows (decode and verify rows of one or more sequences, or a prefill chunk), in row-invariant
kernels and, in the same run and taking turns, with XLA's autotuned products in their place (not exact: the fastest mix).
The floor is the bytes that must move once (weights, keys and values) at the copy bandwidth measured in the same run.
"""

import os
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from radiance_jax.bench import record
from radiance_jax.bench.config import BENCH, numbers, words
from radiance_jax.bench.door import FAILED, door
from radiance_jax.bench.kernels import copy_bandwidth, require_gpu
from radiance_jax.bench.record import log
from radiance_jax.engine.kernels import FINE, LANES, SPLIT
from radiance_jax.errors import UserError
from radiance_jax.flags import read_config
from radiance_jax.pallas.splits import BLOCK
from radiance_jax.settings import Config, setting

PROG = "python -m radiance_jax.bench step"
SHAPES = {
    "8b": {"hidden_size": 4096, "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
           "intermediate_size": 12288, "vocab_size": 151936, "rope_theta": 1e6, "tie_word_embeddings": False},
    "default": {"hidden_size": 576, "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64,
                "intermediate_size": 1536, "vocab_size": 49152, "rope_theta": 1e5, "tie_word_embeddings": True},
}
WAYS = ("exact", "mixed")
CHUNKS = (512, 128)  # in which a prompt is read
LAUNCHES = ("auto", "graph", "alone")


@dataclass(frozen=True, kw_only=True)
class StepConfig(Config):
    shape: str = setting(str, "8b", f"shape of the model: {', '.join(SHAPES)}", BENCH, choices=tuple(SHAPES))
    rows: str = setting(str, "1,8,16,64", "decode or verify rows of one sequence", BENCH)
    sequences: str = setting(str, "8", "so many sequences with one row and with eight, at the first context", BENCH)
    prefill: str = setting(str, "512,4096", "rows of a prefill chunk, 0 tokens before it", BENCH)
    context: str = setting(str, "1024,8192", "tokens before the rows", BENCH)
    ways: str = setting(str, ",".join(WAYS), "exact: row-invariant products; mixed: XLA's in their place", BENCH)
    split: int = setting(int, SPLIT, "positions of an attention split", BENCH, low=64)
    fine: int = setting(int, FINE, "so many splits of that length, those behind them twice as long; 0: all alike", BENCH, low=0)
    lanes: int = setting(int, LANES, "warpgroups that share a split in the streamed attention kernel; 0: the plain one", BENCH,
                         low=0, high=2)
    launches: str = setting(str, "auto", f"of kernels: {', '.join(LAUNCHES)}; auto: as an engine of these weights would", BENCH,
                            choices=LAUNCHES)
    bits: str = setting(str, "1,2,3,7,8,15,16,17,33,64,128,512", "row counts among which bits are compared", BENCH)
    prompt: int = setting(int, 0, "tokens of a prompt whose bits are compared when it is read in chunks of 512 and of 128", BENCH,
                       low=0)
    profile: bool = setting(bool, True, "kernels by time, of one row behind the first context", BENCH)
    out: str | None = setting(str, None, "JSON file to write (default: none)", BENCH)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.split % BLOCK:
            raise UserError(f"a split is a multiple of {BLOCK} positions; got {self.split}", param="split")


@door
def main(argv: Sequence[str]) -> int:
    """A table on stdout, everything in `--out`. Status 1 where bits differ."""
    config, remarks = read_config(StepConfig, argv, prog=PROG, environ=os.environ, description="A whole step on a GPU.")
    for line in remarks:
        log(line)
    record.check_writable(config.out)
    require_gpu()
    result = record.environment(PROG, argv, config)
    result["xla_flags"] = os.environ.get("XLA_FLAGS", "")
    result["copy_bandwidth"] = copy_bandwidth()
    from radiance_jax.bench.step_programs import Steps

    longest = max(config.prompt, *numbers("context", config.context)) + 64
    steps = Steps(config.shape, config.split, config.fine * config.split or None, config.lanes, longest, config.launches)
    result |= {"weight_bytes": steps.weight_bytes, "steps": [], "bits": []}
    try:
        measure(config, steps, result)
    finally:
        if config.out is not None:
            record.write(config.out, result)
    return FAILED if any(each["differ"] for each in result["bits"]) else 0


def measure(config: StepConfig, steps: Any, result: dict[str, Any]) -> None:
    ways = words("ways", config.ways, WAYS)
    contexts = numbers("context", config.context)
    cases = [(1, rows, context) for context in contexts for rows in numbers("rows", config.rows)]
    cases += [(n, rows, contexts[0]) for n in numbers("sequences", config.sequences) for rows in (1, 8)]
    cases += [(1, rows, 0) for rows in numbers("prefill", config.prefill)]
    buckets = {steps.bucket(n * rows) for n, rows, _ in cases} | {steps.bucket(r) for r in numbers("bits", config.bits)}
    buckets |= {steps.bucket(rows) for rows in (1, *CHUNKS) if config.prompt}
    buckets |= {steps.bucket(r + steps.BEFORE) for r in numbers("bits", config.bits) if r + steps.BEFORE <= 512}
    start = time.monotonic()
    steps.compile(sorted(buckets), ways)
    result["compile_seconds"] = time.monotonic() - start
    log(f"{len(buckets) * len(ways)} programs in {result['compile_seconds']:.0f} s")
    if "exact" in ways:
        result["bits"] = steps.bits(numbers("bits", config.bits))
        result["bits"] += steps.prompt_bits(config.prompt, CHUNKS) if config.prompt else []
    if config.profile:
        result["profile"] = {way: steps.profile(way, 1, 1, contexts[0]) for way in ways}
        for way, seen in result["profile"].items():
            log(f"{way}: {seen['kernels_per_step']:.0f} kernels a step, {seen['span_us']:.0f} us from the first to the last, "
                f"{seen['busy_us']:.0f} in one at least: " + "; ".join(
                    f"{each['name']} {each['per_step']:.0f} x {each['us']:.1f}" for each in seen["by_time"][:10])
                + f"; the driver was asked for {seen['driver_calls']}")
    for sequences, rows, context in cases:
        took = {way: [] for way in ways}
        for _ in range(5):
            for way in ways:
                took[way].append(steps.seconds(way, sequences, rows, context))
        moved = steps.weight_bytes + sequences * (context + rows) * steps.kv_bytes
        for way in ways:
            total, sent = (statistics.median(part) for part in zip(*took[way], strict=True))
            each = {"way": way, "sequences": sequences, "rows_each": rows, "context": context, "bucket": steps.bucket(sequences * rows),
                    "ms": 1e3 * total, "sent_ms": 1e3 * sent, "floor_ms": 1e3 * moved / result["copy_bandwidth"]}
            each["over_floor"] = each["ms"] / each["floor_ms"]
            result["steps"].append(each)
            log(f"{way}: {sequences} x {rows} rows behind {context}: {each['ms']:.3f} ms, {each['over_floor']:.3f} of the floor; sent "
                f"in {each['sent_ms']:.3f}")


if __name__ == "__main__":
    sys.exit(main())
