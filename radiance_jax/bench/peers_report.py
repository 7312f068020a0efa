"""The table that `bench peers` prints."""

from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

COLUMNS = ("set", "who", "decode", "overall", "TTFT ms", "times as long", "95 %", "same answer")


def rows(cells: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    return [(cell["set"], cell["who"], f"{cell['decode_tokens_per_s']:.1f}", f"{cell['overall_tokens_per_s']:.1f}",
             f"{cell['ttft_median_s'] * 1000:.0f}", f"{cell['longer_than_first']['ratio']:.2f}",
             "{:.2f} - {:.2f}".format(*cell["longer_than_first"]["ratio_ci95"]),
             f"{cell['agreement']['equal']}/{cell['agreement']['of']}") for cell in cells]


def show(result: dict[str, Any]) -> None:
    made = Table(title=f"Tokens/s, greedy, {result['configuration']['max_tokens']} tokens an answer, one at a time",
                 box=box.SIMPLE_HEAD, title_justify="left")
    for name in COLUMNS:
        made.add_column(name, justify="left" if name in ("set", "who") else "right", no_wrap=name == "who")
    for row in rows(result["cells"]):
        made.add_row(*map(Text, row))
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 140
    console.print(made)
    machine = result["machine"]
    console.print(f"load average at start: {machine['load_average_at_start'][0]:.2f} on {machine['cores']} cores")
