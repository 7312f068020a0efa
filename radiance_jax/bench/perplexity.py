"""`python -m radiance_jax.bench perplexity [MODEL] [flags]`: what lossy wires do to a model's perplexity.

The same texts are scored in bf16 at each width, over the exact wire and over the lossy one, every message of every layer
going by it (`--tp-wire-min-kb` does not count here; embeddings are always exact). Differences are taken text by text.
"""

import math
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from radiance_jax.bench import prompt_sets, record
from radiance_jax.bench.config import BENCH, numbers
from radiance_jax.bench.door import door
from radiance_jax.bench.record import log
from radiance_jax.config import EngineConfig
from radiance_jax.errors import UserError
from radiance_jax.flags import read_config
from radiance_jax.host_devices import ensure_host_devices
from radiance_jax.settings import setting
from radiance_jax.wire import LOSSY_FORMS

PROG = "python -m radiance_jax.bench perplexity"
TEXTS = "spec_bench_100"


@dataclass(frozen=True, kw_only=True)
class PerplexityConfig(EngineConfig):
    """What `bench perplexity` scores. `mesh` and `tp_wire` are not used: `widths` says where, and both wires run."""

    widths: str = setting(str, "2,4", "numbers of devices", BENCH)
    texts: int = setting(int, 50, "Spec-Bench prompts of this package, read as plain text", BENCH, low=2)
    out: str | None = setting(str, None, "JSON file to write (default: none)", BENCH)

    def __post_init__(self) -> None:
        super().__post_init__()
        for ranks in numbers("widths", self.widths):
            if ranks not in LOSSY_FORMS:
                raise UserError(f"widths must be numbers of devices with a lossy wire, {', '.join(map(str, LOSSY_FORMS))}; "
                                f"got {ranks}", param="widths")


@door
def main(argv: Sequence[str]) -> int:
    """A table on stdout, progress on stderr, everything in `--out`."""
    config, remarks = read_config(PerplexityConfig, argv, prog=PROG, environ=os.environ,
                                  description="Perplexity under the exact and the lossy wire.")
    for line in (config.describe(), *remarks):
        log(line)
    record.check_writable(config.out)
    ensure_host_devices(max(numbers("widths", config.widths)))
    result = measure(config, argv)
    show(result)
    if config.out is not None:
        record.write(config.out, result)
    return 0


def measure(config: PerplexityConfig, argv: Sequence[str]) -> dict[str, Any]:
    from radiance_jax.bench import wires_network
    from radiance_jax.wire import Wire

    result = record.environment(PROG, argv, config)
    model, tokenizer = wires_network.open_for(config, log)
    prompts = prompt_sets.read(prompt_sets.FOLDER / f"{TEXTS}.jsonl", TEXTS)[: config.texts]
    texts = [np.asarray(tokenizer.encode(each.text, add_special_tokens=True), np.int32) for each in prompts]
    page = wires_network.PAGE
    length = -(-max(map(len, texts)) // page) * page
    result["texts"], result["tokens"] = len(texts), sum(len(ids) - 1 for ids in texts)
    result["widths"] = []
    for ranks in numbers("widths", config.widths):
        network = wires_network.Network.load(model, ranks, length)
        scores, best = {}, {}
        for name in ("exact", "wht6"):
            log(f"tp={ranks}, {name} wire")
            run = network.compile(Wire(name=name, least_bytes=0), keep=False)
            told = [run(ids) for ids in texts]
            scores[name], best[name] = [each[0] for each in told], np.concatenate([each[1] for each in told])
        result["widths"].append({"tp": ranks, "lossy": LOSSY_FORMS[ranks]} | figures(scores, best))
    return result


def figures(scores: dict[str, list[np.ndarray]], best: dict[str, np.ndarray]) -> dict[str, Any]:
    """Perplexities over all tokens; the change with a 95 % interval over texts (normal, from the spread of their own
    differences); how many places keep their likeliest token."""
    loss = {name: -np.concatenate(each).astype(np.float64) for name, each in scores.items()}
    change = loss["wht6"] - loss["exact"]
    sums = np.array([(-(lossy.astype(np.float64) - exact.astype(np.float64))).sum()
                     for lossy, exact in zip(scores["wht6"], scores["exact"], strict=True)])
    counts = np.array([len(each) for each in scores["exact"]])
    middle = change.mean()
    spread = math.sqrt(((sums - middle * counts) ** 2).sum() * len(counts) / (len(counts) - 1)) / counts.sum()
    return {
        "perplexity": {name: math.exp(each.mean()) for name, each in loss.items()},
        "change_percent": (math.exp(middle) - 1) * 100,
        "change_percent_95": [(math.exp(middle + sign * 1.96 * spread) - 1) * 100 for sign in (-1, 1)],
        "mean_absolute_logprob_change": float(np.abs(change).mean()),
        "same_likeliest_token": float((best["wht6"] == best["exact"]).mean()),
    }


def show(result: dict[str, Any]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    made = Table(title=f"Perplexity of {result['texts']} texts ({result['tokens']} tokens)", box=box.SIMPLE_HEAD,
                 title_justify="left")
    for name in ("tp", "lossy wire", "exact", "lossy", "change (95 %)", "same likeliest token"):
        made.add_column(name, justify="right")
    for each in result["widths"]:
        low, high = each["change_percent_95"]
        made.add_row(str(each["tp"]), each["lossy"], f"{each['perplexity']['exact']:.3f}", f"{each['perplexity']['wht6']:.3f}",
                     f"{each['change_percent']:+.2f} % ({low:+.2f} to {high:+.2f})", f"{each['same_likeliest_token']:.1%}")
    Console(highlight=False, width=120).print(made)


if __name__ == "__main__":
    sys.exit(main())
