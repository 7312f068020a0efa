"""`python -m radiance_jax.convert SRC OUT.rad`: a Hugging Face folder or GGUF file to one `.rad` file."""

import argparse
import signal
import sys
from pathlib import Path

from radiance_jax.container.conversion import PRECISIONS, Converted, convert
from radiance_jax.container.hub import locate_model
from radiance_jax.errors import UserError

__all__ = ["PRECISIONS", "Converted", "convert", "main"]


def main(arguments: list[str] | None = None) -> int:
    """The command line. Returns the exit status: 0, or 2 for an error the user can mend."""
    parser = argparse.ArgumentParser(prog="python -m radiance_jax.convert", description=__doc__)
    parser.add_argument("source", help="Hugging Face folder, .gguf or .rad file, or a hub id such as org/name")
    parser.add_argument("out", help="the .rad file to write")
    parser.add_argument("--dtype", default="bf16", choices=tuple(PRECISIONS), help="type of the weights (bf16)")
    parser.add_argument("--force", action="store_true", help="overwrite the output if it exists")
    parser.add_argument("--draft-model", metavar="DIR",
                        help="folder or hub id of a drafter to merge, which the container then drafts with")
    options = parser.parse_args(arguments)
    # A plain kill must clean up like Ctrl-C does.
    before = signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        source = locate_model(options.source, log=lambda line: print(line, file=sys.stderr))
        draft = options.draft_model and locate_model(options.draft_model, log=lambda line: print(line, file=sys.stderr))
        result = _with_bar(source, options.out, options.dtype, options.force, draft)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; nothing was left behind", file=sys.stderr)
        return 130
    finally:
        signal.signal(signal.SIGTERM, before)
    print(f"{result.path}: {result.nbytes} bytes, {result.tensors} tensors, {result.seconds:.1f} seconds")
    return 0


def _with_bar(source: Path, out: str, dtype: str, force: bool, draft: Path | None) -> Converted:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("reading headers", total=None)
        return convert(source, out, dtype, overwrite=force, draft_path=draft, progress=lambda name, done, total: bar.update(
            task, description=name, completed=done, total=total))


if __name__ == "__main__":
    sys.exit(main())
