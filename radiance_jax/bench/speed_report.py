"""The tables that `bench speed` prints: one of speeds, one of ratios, one of peers."""

import statistics
from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from radiance_jax.bench.llama_cpp import LEAST_SHARE

Row = tuple[str, ...]


def speed_rows(cells: Sequence[dict[str, Any]]) -> list[Row]:
    return [(cell["set"], str(cell["live"]), mode + (" *" if mode == cell["fastest_off"] else ""),
             f"{m['decode_tokens_per_s']:.1f}", f"{m['stream_tokens_per_s']:.1f}", f"{m['overall_tokens_per_s']:.1f}",
             f"{m['ttft_median_s'] * 1000:.0f}", _number(m["tokens_per_verify"]), _number(m["accepted_per_draft_plus_1"]),
             f"{m['accepted_draft_tokens']}/{m['draft_tokens']}" if m["draft_tokens"] else "")
            for cell in cells for mode, m in cell["modes"].items()]


def ratio_rows(cells: Sequence[dict[str, Any]]) -> list[Row]:
    return [(cell["set"], str(cell["live"]), name + (" *" if name.partition("/")[2] == cell["fastest_off"] else ""),
             f"{r['ratio']:.2f}", _interval(r["ratio_ci95"]), f"{r['geometric_mean']:.2f}",
             _interval(r["geometric_mean_ci95"]), f"{r['slowest_prompt']:.2f} - {r['fastest_prompt']:.2f}",
             " ".join(f"{each:.2f}" for each in r["overall_by_round"]))
            for cell in cells for name, r in cell["ratios"].items()]


def peer_rows(lines: Sequence[dict[str, Any]]) -> list[Row]:
    """Medians over rounds, for each prompt set, number of answers live, and model."""
    groups: dict[tuple, list[dict[str, Any]]] = {}
    for line in lines:
        groups.setdefault((line["set"], str(line["live"]), line["model"]), []).append(line)

    def middle(group: Sequence[dict[str, Any]], name: str, digits: int = 1) -> str:
        return f"{statistics.median(each[name] for each in group):.{digits}f}"

    return [(*key, middle(group, "decode_tokens_per_s"), middle(group, "overall_tokens_per_s"),
             middle(group, "cpu_share", 2) + (" (busy machine)" if any(g["cpu_share"] < LEAST_SHARE for g in group) else ""))
            for key, group in groups.items()]


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _interval(ends: Sequence[float]) -> str:
    return f"{ends[0]:.2f} - {ends[1]:.2f}"


def table(title: str, columns: Sequence[str], rows: Sequence[Row]) -> Table:
    """Words to the left, figures to the right."""
    made = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left")
    for i, name in enumerate(columns):
        made.add_column(name, justify="left" if i in (0, 2) else "right", no_wrap=i == 2)
    for row in rows:
        made.add_row(*map(Text, row))
    return made


def show(result: dict[str, Any]) -> None:
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 140
    tokens = result["configuration"]["max_tokens"]
    console.print(table(f"Tokens/s, greedy, {tokens} tokens an answer (* the fastest off)",
                        ("set", "live", "mode", "decode", "stream", "overall", "TTFT ms", "tokens/verify", "1+acc./draft",
                         "accepted"), speed_rows(result["cells"])))
    ratios = ratio_rows(result["cells"])
    if ratios:
        console.print(table("Speed-up of decoding (summed seconds; mean of prompts), 95 % intervals over prompts",
                            ("set", "live", "ratio", "sums", "95 %", "mean", "95 %", "prompts", "overall, by round"), ratios))
    if result["peers"]:
        console.print(table("Peers, same prompts, medians of the rounds",
                            ("set", "live", "model", "decode", "overall", "CPU share"), peer_rows(result["peers"])))
    for cell in result["cells"]:
        for mode, same in cell["ids_as_off_fast"].items():
            console.print(f"{cell['set']}, {cell['live']} live: ids as {mode} for {same['equal']} of {same['prompts']} prompts")
    kept = "all equal" if not result["differences"] else f"{len(result['differences'])} differ"
    console.print(f"ids and logprob bits of on and off: {kept} (bit-exact: {'on' if result['bit_exact'] else 'off'})")
    busy = result["machine"]["cores_busy_with_others"]
    if busy is not None:
        console.print(f"cores busy with other programs: {busy:.2f} of {result['machine']['cores']}")
