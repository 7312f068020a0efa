"""The picture of `bench wires`: time by size, one line a form. Needs matplotlib (`pip install radiance-jax[plot]`)."""

from typing import Any

from radiance_jax.errors import UserError


def require() -> None:
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise UserError("picture needs matplotlib; install it with `pip install 'radiance-jax[plot]'`, or leave the flag out",
                        param="picture") from None


def draw(result: dict[str, Any], path: str) -> None:
    """Microseconds, and the ratio to psum, by message size. Writes `path`."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.5), layout="constrained")
    times, ratios = figure.subplots(1, 2)
    base = {each["kib"]: each["us"] for each in result["times"] if each["form"] == "psum"}
    for form in dict.fromkeys(each["form"] for each in result["times"]):
        cells = sorted((each["kib"], each["us"]) for each in result["times"] if each["form"] == form)
        style = "--" if form.endswith("+add") else "-"
        (line,) = times.plot(*zip(*cells, strict=True), style, marker=".", label=form)
        shared = [(kib, us / base[kib]) for kib, us in cells if base.get(kib, 0) > 0]
        if shared and form != "psum":
            ratios.plot(*zip(*shared, strict=True), style, marker=".", color=line.get_color())
    for axes, name in ((times, "microseconds"), (ratios, "time / psum's")):
        axes.set_xscale("log", base=2)
        axes.set_xlabel("message, KiB of bf16")
        axes.set_ylabel(name)
        axes.grid(alpha=0.3)
        axes.set_yscale("log")
    ratios.axhline(1, color="black", linewidth=0.8)
    times.legend(fontsize="small")
    machine = result["machine"]
    figure.suptitle(f"One all-reduce over {result['tp']} devices ({machine['device']}), inside one program")
    figure.savefig(path, dpi=150)
