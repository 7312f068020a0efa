"""`python -m radiance_jax.train CONFIG.yaml [--set key=value ...]`: trains a drafter on a target's answers and writes it."""

import argparse
import os
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from radiance_jax.container.default_model import default_cache_dir
from radiance_jax.errors import RadianceError, UserError
from radiance_jax.host_devices import ensure_host_devices
from radiance_jax.training.config import read_config

PROG = "python -m radiance_jax.train"
WRONG_CONFIGURATION, FAILED, INTERRUPTED = 2, 1, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: 0, 2 for what the user can mend, 1 for a run that failed, 130 for one that was interrupted."""
    began, argv = time.monotonic(), list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(prog=PROG, description=__doc__)
    parser.add_argument("config", help="YAML file of the run (docs/training.md)")
    parser.add_argument("--set", metavar="KEY=VALUE", action="append", default=[], help="over the file; may be repeated")
    parser.add_argument("--resume", action="store_true", help="go on with the run in the folder `out`")
    parser.add_argument("--export-only", action="store_true", help="write the best drafter of the run in `out` again")
    options = parser.parse_args(argv)
    try:
        cache = f"cache_dir={default_cache_dir(os.environ)}"
        config = read_config(options.config, [cache, *options.set])
        if config.unused():
            log(f"keys that {config.family} with the objective {config.objective} does not use: {', '.join(config.unused())}")
        ensure_host_devices(config.axes[0] * config.axes[1])
        try:
            from radiance_jax.training.run import check_same, publish, train
            from radiance_jax.training.trainer import Subject
        except ImportError as error:
            raise UserError(f"training needs more packages than serving ({error}): pip install 'radiance-jax[train]'") from None
        if options.export_only:
            out = check_same(config, "export-only")
            folder, nbytes = publish(Subject.of(config, log), out)
            log(f"{folder}: {nbytes:,} bytes")
            return 0
        keep_compiled(config.cache_dir)
        train(config, resume=options.resume, command=shlex.join([*PROG.split(), *argv]), log=log, began=began)
        return 0
    except RadianceError as error:
        log(f"error: {error}")
        return WRONG_CONFIGURATION if isinstance(error, UserError) else FAILED
    except KeyboardInterrupt:
        log("interrupted; --resume goes on from the last checkpoint")
        return INTERRUPTED


def keep_compiled(folder: str) -> None:
    """Compiled programs are kept on disk, so that a run that is gone on with starts at once."""
    import jax

    jax.config.update("jax_compilation_cache_dir", str(Path(folder) / "compiled"))


def log(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
