"""`python -m radiance_jax.bench wires [MODEL] [flags]`: all-reduces between devices, by size and wire.

First the bits: every form on every rank against NumPy (`wires_oracle.py`), odd sizes included. Then microseconds inside one
program: two programs of unlike length are timed in turns, and the difference of their medians is divided by the difference of
their lengths, so that dispatch is not in it. Then relative errors. A form that gives a wrong bit makes the status 1.
Something that hangs on a device ends the process after `--cell-timeout`; the file then holds what was measured before.
"""

import faulthandler
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np

from radiance_jax.bench import record
from radiance_jax.bench.config import numbers, words
from radiance_jax.bench.door import FAILED, door
from radiance_jax.bench.record import log
from radiance_jax.bench.wires_config import WiresConfig
from radiance_jax.flags import read_config
from radiance_jax.host_devices import ensure_host_devices
from radiance_jax.wire import LOSSY_FORMS, WHT6

PROG = "python -m radiance_jax.bench wires"
SLOW_ORACLE = 1 << 16  # elements beyond which the tiered oracle, a loop in Python, is left out
ERROR_SIZE = 1 << 16  # elements of a message whose relative error is taken
TEXT = 128  # tokens that make the real messages


@door
def main(argv: Sequence[str]) -> int:
    """Tables on stdout, progress on stderr, everything in `--out`."""
    config, remarks = read_config(WiresConfig, argv, prog=PROG, environ=os.environ,
                                  description="All-reduces by size and wire: bits, bytes, microseconds, relative error.")
    for line in (config.describe(), *remarks):
        log(line)
    for path in (config.out, config.picture):
        record.check_writable(path)
    if config.picture is not None:
        from radiance_jax.bench import wires_picture
        wires_picture.require()
    ensure_host_devices(config.mesh_size)
    result = measure(config, argv)
    show(result)
    if config.picture is not None:
        wires_picture.draw(result, config.picture)
    wrong = [each for each in result["bits"] if not each["as_promised"]]
    for each in wrong:
        log(f"error: {each['form']} of {each['elements']} elements: {each['wrong']} elements have wrong bits")
    return FAILED if wrong else 0


class Progress:
    """The record, on disk after every measurement; and a watch that ends the process when one takes too long."""

    def __init__(self, config: WiresConfig, result: dict[str, Any]):
        self.config, self.result = config, result

    @contextmanager
    def cell(self, what: str, patience: int = 1, **facts: Any) -> Iterator[None]:
        """`patience`: time-outs it may take."""
        self.result["unfinished"] = {"doing": what} | facts
        self.save()
        faulthandler.dump_traceback_later(self.config.cell_timeout * patience, exit=True, file=sys.__stderr__)
        try:
            yield
        finally:
            faulthandler.cancel_dump_traceback_later()
        self.result["unfinished"] = None

    def save(self) -> None:
        if self.config.out is not None:
            record.write(self.config.out, self.result)


def measure(config: WiresConfig, argv: Sequence[str]) -> dict[str, Any]:
    import jax

    from radiance_jax.mesh import make_mesh

    result = record.environment(PROG, argv, config)
    mesh, watch = make_mesh(config.mesh_size), record.Neighbours()
    gpu = jax.default_backend() == "gpu"
    result |= {"tp": mesh.size, "lossy": LOSSY_FORMS.get(mesh.size), "bits": [], "times": [], "errors": [], "left_out": []}
    progress = Progress(config, result)
    made = _programs(config, mesh, progress, config.lengths(gpu))
    check_bits(config, mesh, made, progress)
    take_times(config, mesh, made, progress, config.repeats or (40 if gpu else 5), config.lengths(gpu))
    take_errors(config, mesh, progress)
    result["machine"]["cores_busy_with_others"] = watch.cores()
    result["unfinished"] = None
    progress.save()
    return result


def _programs(config: WiresConfig, mesh: Any, progress: Progress, lengths: Sequence[int]) -> dict[tuple[str, int, int], Any]:
    """(form, elements, length) to a compiled program: of length 1 for the bits, of `lengths` for the times."""
    from radiance_jax.bench import wires_forms
    from radiance_jax.engine.compile import compile_all

    timed = [kib * 512 for kib in numbers("sizes", config.sizes)]
    programs = {}
    for form in words("forms", config.forms):
        for size in (*numbers("odd_sizes", config.odd_sizes), *timed):
            why = wires_forms.missing(form, size, mesh)
            if why:
                progress.result["left_out"].append({"form": form, "elements": size, "why": why})
                continue
            shape = wires_forms.abstract(size, mesh)
            for count in dict.fromkeys((1, *(lengths if size in timed else ()))):
                programs[form, size, count] = partial(wires_forms.program(form, mesh, count).lower, shape, shape)
    log(f"compiling {len(programs)} programs")
    return compile_all(programs.items(), threads=min(os.cpu_count() or 1, 16))


def check_bits(config: WiresConfig, mesh: Any, made: dict, progress: Progress) -> None:
    """Every form that promises bits gives NumPy's, on every rank. Of psum it is only said how many differ."""
    from radiance_jax.bench import wires_forms
    from radiance_jax.bench import wires_oracle as oracle

    for form, size, count in [key for key in made if key[2] == 1]:
        name = form.removesuffix("+add")
        rng = np.random.default_rng(size)
        parts = (rng.standard_normal((mesh.size, size)) * 2.0 ** rng.integers(-6, 7, (mesh.size, size))).astype(oracle.BF16)
        residual = np.tile(rng.standard_normal((1, size)).astype(oracle.BF16), (mesh.size, 1))
        with progress.cell("bits", form=form, elements=size):
            got = np.asarray(made[form, size, count](wires_forms.on_mesh(parts, mesh), wires_forms.on_mesh(residual, mesh)))
        expected = _expected(name, parts, mesh.size)
        if expected is not None and form != name:
            expected = (residual[0].astype(np.float32) + expected.astype(np.float32)).astype(oracle.BF16)
        bits = got.view(np.uint16)
        entry = {"form": form, "elements": size, "ranks_agree": bool((bits == bits[:1]).all()),
                 "wrong": None if expected is None else int((bits[0] != expected.view(np.uint16)).sum())}
        entry["as_promised"] = name == "psum" or (entry["ranks_agree"] and not entry["wrong"])
        progress.result["bits"].append(entry)
    progress.save()


def _expected(name: str, parts: np.ndarray, ranks: int) -> np.ndarray | None:
    from radiance_jax.bench import wires_oracle as oracle

    if name != "lossy":
        return oracle.exact(parts)
    if LOSSY_FORMS[ranks] == WHT6:
        return oracle.wht6(parts)
    return oracle.tiered(parts) if parts.shape[1] <= SLOW_ORACLE else None


def take_times(config: WiresConfig, mesh: Any, made: dict, progress: Progress, repeats: int, lengths: Sequence[int]) -> None:
    """Form by form, the riskiest ones last, so that a hang costs the least."""
    import jax

    from radiance_jax.bench import wires_forms

    short, long = lengths
    risky = lambda key: key[0].startswith("remote")  # noqa: E731
    for form, size, _ in sorted((key for key in made if key[2] == long), key=risky):
        rng = np.random.default_rng(0)
        x = wires_forms.on_mesh((rng.standard_normal((mesh.size, size)) * 2.0**-40).astype(jax.numpy.bfloat16), mesh)

        def seconds(count: int, form=form, size=size, x=x) -> float:
            start = time.perf_counter()
            jax.block_until_ready(made[form, size, count](x, x))
            return time.perf_counter() - start

        with progress.cell("times", form=form, elements=size):
            entry = {"form": form, "elements": size, "kib": size // 512, "bytes_sent": wires_forms.sent(form, size, mesh.size)}
            entry |= per_all_reduce(seconds, short, long, repeats)
        if entry["bytes_sent"] is not None and entry["us"] > 0:
            entry["gb_per_s"] = entry["bytes_sent"] / entry["us"] / 1e3
        progress.result["times"].append(entry)
        log(f"{form}, {entry['kib']} KiB: {entry['us']:.1f} us")
    progress.save()


def per_all_reduce(seconds: Callable[[int], float], short: int, long: int, repeats: int) -> dict[str, float]:
    """Microseconds of one: from the medians, and from the least times seen."""
    for count in (short, long):
        seconds(count)
    times: dict[int, list[float]] = {short: [], long: []}
    for _ in range(repeats):
        for count in times:
            times[count].append(seconds(count))
    scale = 1e6 / (long - short)
    return {"us": (statistics.median(times[long]) - statistics.median(times[short])) * scale,
            "us_of_least": (min(times[long]) - min(times[short])) * scale}


def take_errors(config: WiresConfig, mesh: Any, progress: Progress) -> None:
    """Relative error of the exact sum (its one rounding), psum and the lossy one, by kind of input."""
    from radiance_jax.bench import wires_forms
    from radiance_jax.bench import wires_oracle as oracle

    inputs = {kind: oracle.inputs(kind, mesh.size, ERROR_SIZE - ERROR_SIZE % (64 * mesh.size)) for kind in oracle.KINDS}
    if config.activations:
        with progress.cell("activations", patience=5):  # a model is loaded and compiled
            inputs["activations"] = activations(config, mesh.size)
    for form in ("psum", "one-shot", "lossy"):
        for kind, parts in inputs.items():
            if form not in words("forms", config.forms) or wires_forms.missing(form, parts.shape[1], mesh):
                continue
            with progress.cell("errors", form=form, input=kind):
                x = wires_forms.on_mesh(parts, mesh)
                got = np.asarray(wires_forms.program(form, mesh, 1)(x, x))[0]
            progress.result["errors"].append({"form": form, "input": kind, "elements": parts.shape[1],
                                              "relative_error": oracle.relative_error(got, parts)})


def activations(config: WiresConfig, ranks: int) -> np.ndarray:
    """What the layers of the model send while it reads a prompt of this package: bf16 [W, n], all layers, live rows alone."""
    from radiance_jax.bench import prompt_sets, wires_network
    from radiance_jax.wire import EXACT

    model, tokenizer = wires_network.open_for(config, log)
    text = "\n".join(each.text for each in prompt_sets.read(prompt_sets.FOLDER / "spec_bench_100.jsonl", "")[:20])
    ids = np.asarray(tokenizer.encode(text, add_special_tokens=True)[:TEXT], np.int32)
    sent = wires_network.Network.load(model, ranks, TEXT).compile(EXACT, keep=True)(ids)[2]
    flat = sent[:, :, : len(ids)].reshape(ranks, -1)
    return np.ascontiguousarray(flat[:, : flat.shape[1] // (64 * ranks) * 64 * ranks])


def show(result: dict[str, Any]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 140
    sizes = list(dict.fromkeys(each["kib"] for each in result["times"]))
    made = Table(title=f"Microseconds of one all-reduce over {result['tp']} devices, inside one program, by KiB",
                 box=box.SIMPLE_HEAD, title_justify="left")
    made.add_column("form")
    for size in sizes:
        made.add_column(str(size), justify="right")
    for form in dict.fromkeys(each["form"] for each in result["times"]):
        cells = {each["kib"]: each for each in result["times"] if each["form"] == form}
        made.add_row(form, *(f"{cells[size]['us']:.1f}" if size in cells else "-" for size in sizes))
    console.print(made)
    checked = [each for each in result["bits"] if each["form"].removesuffix("+add") != "psum"]
    console.print(f"bits: {sum(each['as_promised'] for each in checked)} of {len(checked)} checks as promised; psum: "
                  f"{sum(each['wrong'] for each in result['bits'] if each['form'] == 'psum')} elements unlike rank order")
    for each in result["errors"]:
        console.print(f"relative error of {each['form']} on {each['input']}: {each['relative_error']:.3%}")


if __name__ == "__main__":
    sys.exit(main())
