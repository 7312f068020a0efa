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
                        number(found and found["ratio"]), interval(found),
                        number(mode["tokens_per_verify"]) if drafts(name) else "", cost(name, found),
                        number(mode["accepted_share_of_drafted_tokens"])))
    return out


def number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def interval(found: dict[str, Any] | None) -> str:
    """That of a speed-up; a single prompt has none."""
    return "" if found is None or found["prompts"] < 2 else "{:.2f} - {:.2f}".format(*found["ratio_ci95"])


def cost(mode: str, found: dict[str, Any] | None) -> str:
    """The cycle cost of a mode that drafts."""
    return number(found["cycle_cost"]) if found is not None and drafts(mode) else ""


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
