"""The pictures of `bench spec`, as SVG to stand in a page. Needs matplotlib (`pip install radiance-jax[plot]`).

Ink and grid have marker colours that become the page's own (`currentColor`, faint for the grid), so that one picture suits light
and dark; the series have colours of middle lightness that can be told apart without hue, too, by their marks.
"""

import io
from collections.abc import Sequence
from typing import Any

from radiance_jax.bench.spec_config import BOTH, DRAFTER, FIXED, LOOKUP
from radiance_jax.bench.spec_figures import drafts, gain, served
from radiance_jax.errors import UserError

INK, GRID = "#010203", "#040506"  # never seen: replaced in `_svg`
STYLES = {  # mode -> colour, mark
    BOTH: ("#3d7fc4", "o"), DRAFTER: ("#c4622d", "s"), LOOKUP: ("#4c9a5b", "^"), DRAFTER + FIXED: ("#b0862a", "D"),
    LOOKUP + FIXED: ("#7d9a3c", "v"), BOTH + FIXED: ("#5a6fb5", "P"), "off": ("#8a8f98", "x"), "off-fast": ("#8a6f8f", "+")}
WIDTH = 9.0  # inches
SETTINGS = {
    "svg.fonttype": "none", "font.family": "sans-serif", "font.size": 9.5, "text.color": INK, "axes.labelcolor": INK,
    "axes.edgecolor": GRID, "xtick.color": INK, "ytick.color": INK, "grid.color": GRID, "grid.linewidth": 0.6, "axes.grid": True,
    "axes.axisbelow": True, "axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False, "axes.titlesize": 10,
    "axes.titleweight": "bold", "lines.linewidth": 1.6, "lines.markersize": 5.5, "xtick.major.size": 0, "ytick.major.size": 0}


def require() -> None:
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise UserError("html needs matplotlib for its pictures; install it with `pip install 'radiance-jax[plot]'`, or leave "
                        "the flag out: --out has all figures", param="html") from None


def _style(mode: str) -> tuple[str, str]:
    return STYLES.get(mode, STYLES.get(mode.split(" ")[0], ("#8a8f98", ".")))


def _figure(rows: float, columns: int, name: str, draw: Any, sharey: bool = False) -> str:
    """A figure `rows` inches high with so many axes side by side, drawn by `draw(axes)`, as SVG."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(SETTINGS | {"svg.hashsalt": name}):
        figure = Figure(figsize=(WIDTH, rows), layout="constrained")
        axes = figure.subplots(1, columns, sharey=sharey, squeeze=False)[0]
        draw(axes)
        handles, labels = {}, []
        for each in axes:
            for handle, label in zip(*each.get_legend_handles_labels(), strict=True):
                handles.setdefault(label, handle)
        labels = list(handles)
        if labels:
            figure.legend([handles[label] for label in labels], labels, loc="outside lower center", ncols=min(len(labels), 6))
        return _svg(figure, name)


def _svg(figure: Any, name: str) -> str:
    out = io.StringIO()
    figure.savefig(out, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = out.getvalue()
    text = text[text.index("<svg"):].replace(f"stroke: {GRID}", "stroke-opacity: 0.18; stroke: currentColor")
    text = text.replace(INK, "currentColor").replace(GRID, "currentColor")
    for kind in ('id="', "url(#", 'href="#'):  # ids are the page's: those of two pictures must not be the same
        text = text.replace(kind, f"{kind}{name}-")
    return text


def _panels(cells: Sequence[dict[str, Any]], live: int) -> list[tuple[float, list[dict[str, Any]]]]:
    temperatures = dict.fromkeys(one["temperature"] for one in cells if one["live"] == live)
    return [(t, [one for one in cells if (one["live"], one["temperature"]) == (live, t)]) for t in temperatures]


def by_set(cells: Sequence[dict[str, Any]], live: int, what: str) -> str:
    """`what`: "speed-up" over the fastest off, or "tokens a verify step"; a row a set, the worst on top, a mark a mode."""
    panels = _panels(cells, live)
    order = [one["set"] for one in panels[0][1]] + [one["set"] for _, mine in panels[1:] for one in mine]
    names = list(dict.fromkeys(order))
    speed = what == "speed-up"

    def draw(axes: Any) -> None:
        for each, (temperature, mine) in zip(axes, panels, strict=True):
            modes = list(dict.fromkeys(mode for one in mine for mode in one["modes"] if drafts(mode)))
            for at, mode in enumerate(modes):
                points = [(names.index(one["set"]), *value) for one in mine if (value := _value(one, mode, speed)) is not None]
                if not points:
                    continue
                colour, mark = _style(mode)
                height = (at - (len(modes) - 1) / 2) * 0.16
                y, x, low, high = (list(z) for z in zip(*points, strict=True))
                y = [i + height for i in y]
                below, above = ([abs(end - value) for value, end in zip(x, ends, strict=True)] for ends in (low, high))
                each.errorbar(x, y, xerr=[below, above], fmt=mark, color=colour, elinewidth=1.1, capsize=0, label=mode)
            each.axvline(1, color=INK, linewidth=0.9)
            each.set_yticks(range(len(names)), names)
            each.set_ylim(len(names) - 0.5, -0.5)
            each.grid(axis="y", visible=False)
            each.set_xlabel("times the fastest off" if speed else "tokens a verify step")
            each.set_title(f"temperature {temperature:g}", loc="left")

    return _figure(1.1 + 0.42 * len(names), len(panels), f"{'s' if speed else 'v'}{live}", draw, sharey=True)


def _value(one: dict[str, Any], mode: str, speed: bool) -> tuple[float, float, float] | None:
    if speed:
        found = one["against_fastest_off"].get(mode)
        return None if found is None else (found["ratio"], *_around(found["ratio"], found["ratio_ci95"]))
    found = one["modes"].get(mode)
    if not found or not found["tokens_per_verify"]:
        return None
    return found["tokens_per_verify"], *_around(found["tokens_per_verify"], found["tokens_per_verify_ci95"])


def _around(value: float, ends: Sequence[float] | None) -> tuple[float, float]:
    """The ends of an interval, never on the wrong side of its value."""
    return (value, value) if not ends else (min(ends[0], value), max(ends[1], value))


def acceptance(cells: Sequence[dict[str, Any]], summary: Sequence[dict[str, Any]], live: int) -> str:
    """By place of the draft: conditional (full) and cumulative (dashed), of each mode over all sets; grey: the single sets of the
    mode that drafts always, or else of the one served."""
    panels = _panels(cells, live)

    def draw(axes: Any) -> None:
        for each, (temperature, mine) in zip(axes, panels, strict=True):
            lines = [one for one in summary if (one["live"], one["temperature"]) == (live, temperature)
                     and any(one["positions"]["accepted"])]
            always = next((one["mode"] for one in lines if one["mode"].endswith(FIXED)), served(mine[0]))
            for one in mine:
                rates = one["modes"].get(always, {}).get("positions", {}).get("conditional", [])
                each.plot(range(1, len(rates) + 1), [_nan(rate) for rate in rates], color=GRID, linewidth=0.9, zorder=1)
            for line in lines:
                colour, mark = _style(line["mode"])
                for kind, style in (("conditional", "-"), ("cumulative", "--")):
                    rates = line["positions"][kind]
                    each.plot(range(1, len(rates) + 1), [_nan(rate) for rate in rates], style, marker=mark, color=colour,
                              label=line["mode"] if kind == "conditional" else None, markersize=4.5)
            each.set_ylim(0, 1.02)
            each.set_xlabel("place of the draft")
            each.set_ylabel("share accepted")
            each.set_title(f"temperature {temperature:g}", loc="left")
            places = max((len(line["positions"]["conditional"]) for line in lines), default=1)
            each.set_xlim(0.7, places + 0.3)
            each.xaxis.get_major_locator().set_params(integer=True)

    return _figure(3.4, len(panels), f"a{live}", draw, sharey=True)


def _nan(value: float | None) -> float:
    return float("nan") if value is None else value


def step_times(steps: dict[str, dict[str, dict[str, float]]], least: int = 3) -> str:
    """Mean milliseconds of a step by the rows that it computed; row counts met fewer than `least` times are left out."""
    def draw(axes: Any) -> None:
        (each,) = axes
        for mode, rows in steps.items():
            points = [(int(count), one["ms"]) for count, one in rows.items() if one["steps"] >= least and int(count) > 0]
            if points:
                colour, mark = _style(mode)
                each.plot(*zip(*sorted(points), strict=True), marker=mark, color=colour, label=mode, linewidth=1.1)
        each.set_xscale("log", base=2)
        each.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        each.set_ylim(0, each.get_ylim()[1])
        each.set_xlabel("rows computed in a step")
        each.set_ylabel("milliseconds")

    return _figure(3.2, 1, "steps", draw)


def cost(cells: Sequence[dict[str, Any]], live: int) -> str:
    """Speed-up against tokens a verify step: a point a set and mode, lines of equal cycle cost c = L / S."""
    panels = _panels(cells, live)

    def draw(axes: Any) -> None:
        for each, (temperature, mine) in zip(axes, panels, strict=True):
            most = 1.0
            for mode in dict.fromkeys(mode for one in mine for mode in one["modes"] if drafts(mode)):
                colour, mark = _style(mode)
                points = [(one["modes"][mode]["tokens_per_verify"], one["against_fastest_off"][mode]["ratio"]) for one in mine
                          if mode in one["against_fastest_off"] and one["modes"][mode]["tokens_per_verify"]]
                if points:
                    each.plot(*zip(*points, strict=True), mark, color=colour, label=mode)
                    most = max(most, *(x for x, _ in points))
            for c in (1, 1.5, 2, 3):
                each.plot([0, most * 1.06], [0, most * 1.06 / c], color=GRID, linewidth=0.9, zorder=1)
                each.annotate(f"c = {c:g}", (most * 1.06, most * 1.06 / c), (4, 0), textcoords="offset points", fontsize=8,
                              va="center", annotation_clip=False)
            each.axhline(1, color=INK, linewidth=0.9)
            each.set_xlim(0.9, most * 1.06)
            each.set_ylim(bottom=0)
            each.set_xlabel("tokens a verify step, L")
            each.set_ylabel("times the fastest off, S")
            each.set_title(f"temperature {temperature:g}", loc="left")

    return _figure(3.6, len(panels), f"c{live}", draw, sharey=True)


def pictured(cells: Sequence[dict[str, Any]], live: int) -> bool:
    """Whether anything of so many live answers has a speed."""
    return any(gain(one) is not None for one in cells if one["live"] == live)
