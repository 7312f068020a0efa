"""`python -m radiance_jax.bench NAME [flags]`: the benchmarks by name."""

import sys
from collections.abc import Sequence
from importlib import import_module

from radiance_jax.errors import nearest

BENCHMARKS = {
    "speed": "drafting on against off and against the fastest off, interleaved in one run; peers beside them",
    "tile": "what a step costs by row tile and live rows (CPU), beside engines that are not bit-exact",
    "kernels": "the Mosaic kernels one by one on a Hopper GPU: right, row-invariant, and their time over the floor",
    "step": "a whole step of a model's shape on a Hopper GPU: time, floor, bits by row count, beside non-exact products",
    "spec": "what drafting does to answers, task by task: acceptance, speed-up, cycle cost; JSON and a page with pictures",
    "doctor": "why acceptance is low: a drafter read otherwise than its file says, in taps, slots, mask, window, rope, template",
    "drafter": "propose and observe of a drafter's shape (random weights), over what its bytes cost",
    "exactness": "the promise, checked axis by axis: answers under other circumstances against the same alone, bit for bit",
    "policy": "drafting policies over recorded answers and prices of steps, in seconds and without a model",
    "wires": "all-reduces between devices by size and wire: bits, bytes sent, microseconds, relative error",
    "perplexity": "what lossy wires do to a model's perplexity",
    "peers": "the same prompts and model through transformers and OpenAI servers, beside ours in one run",
    "http": "latency and tokens/s over HTTP: our server beside any OpenAI-compatible one, interleaved in one run",
}
PROG = "python -m radiance_jax.bench"
WRONG_COMMAND = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Hands over to the benchmark named first. Returns the exit status."""
    name, *rest = list(sys.argv[1:] if argv is None else argv) or [""]
    if name in ("-h", "--help"):
        print(usage())
        return 0
    if name not in BENCHMARKS:
        what = f"unknown benchmark {name!r}{nearest(name, BENCHMARKS)}" if name else "name a benchmark"
        print(f"error: {what}\n\n{usage()}", file=sys.stderr)
        return WRONG_COMMAND
    return import_module(f"radiance_jax.bench.{name}").main(rest)


def usage() -> str:
    lines = [f"  {name:<11}{text}" for name, text in BENCHMARKS.items()]
    return "\n".join([f"usage: {PROG} NAME [MODEL] [flags]", "", *lines, "", f"{PROG} NAME --help lists the flags."])


if __name__ == "__main__":
    sys.exit(main())
