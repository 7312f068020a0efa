"""What `bench spec` prints: a table for each temperature and number of live answers, the worst set first."""

from collections.abc import Sequence
from typing import Any

from rich.console import Console

from radiance_jax.bench.spec_figures import drafts, served
from radiance_jax.bench.speed_report import table

Row = tuple[str, ...]


def rows(cells: Sequence[dict[str, Any]]) -> list[Row]:
    """A row for each mode of each cell: set, prompts, mode, tokens/s, speed-up with interval, tokens a verify, cycle cost."""
    out = []
    for one in cells:
        for name, mode in one["modes"].items():
            found = one["against_fastest_off"].get(name)
            star = " *" if name == one["fastest_off"] else " <" if name == served(one) else ""
            out.append((one["set"], str(len(one["prompts"])), name + star, f"{mode['decode_tokens_per_s']:.1f}",
                        number(found and found["ratio"]), interval(found and found["ratio_ci95"]),
                        number(mode["tokens_per_verify"]) if drafts(name) else "",
                        number(found and drafts(name) and found["cycle_cost"]),
                        number(mode["accepted_share_of_drafted_tokens"])))
    return out


def number(value: float | None) -> str:
    return f"{value:.2f}" if value else ""


def interval(ends: Sequence[float] | None) -> str:
    return f"{ends[0]:.2f} - {ends[1]:.2f}" if ends else ""


def show(result: dict[str, Any]) -> None:
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 140
    console.print(result["headline"] + "\n")
    cells = result["cells"]
    for live, temperature in dict.fromkeys((one["live"], one["temperature"]) for one in cells):
        mine = [one for one in cells if (one["live"], one["temperature"]) == (live, temperature)]
        console.print(table(
            f"Temperature {temperature:g}, {live} live, worst set first (* the fastest off, < the mode served)",
            ("set", "prompts", "mode", "tokens/s", "speed-up", "95 %", "tokens/verify", "cycle cost", "accepted share"),
            rows(mine)))
    measured = result["measured"]
    console.print(f"{measured['units']} of {measured['of']} units measured, ended {measured['ended']}; "
                  f"{result['answers_compared']} answers compared, {len(result['differences'])} differ "
                  f"(bit-exact: {'on' if result['bit_exact'] else 'off'})")
