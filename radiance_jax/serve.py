"""`python -m radiance_jax.serve [model] [flags]`: an OpenAI-compatible server."""

import logging
import os
import sys
from collections.abc import Sequence
from typing import Any

from radiance_jax.config import ServeConfig
from radiance_jax.errors import RadianceError, UserError
from radiance_jax.flags import read_config
from radiance_jax.host_devices import ensure_host_devices

WRONG_CONFIGURATION, FAILED = 2, 1


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: 0 after a signal, 2 for a wrong flag, file or model, 1 for any other failure."""
    try:
        config, remarks = read_config(
            ServeConfig, sys.argv[1:] if argv is None else argv, prog="python -m radiance_jax.serve",
            environ=os.environ, description="Serves a model over OpenAI's HTTP API.")
        logging.basicConfig(format="%(levelname)s %(name)s: %(message)s")  # others speak up from warnings on
        logging.getLogger("radiance_jax").setLevel(config.log_level.upper())
        for line in (config.describe(), *remarks):
            log(line)
        return _serve(config)
    except RadianceError as error:
        print(f"error: {error}", file=sys.stderr)
        return WRONG_CONFIGURATION if isinstance(error, UserError) else FAILED


def log(line: str) -> None:
    print(line, flush=True)


def _serve(config: ServeConfig) -> int:
    ensure_host_devices(config.mesh_size)
    from radiance_jax.server.run import serve  # after the environment is set

    def load() -> Any:
        from radiance_jax.engine.engine import Engine
        return Engine.load(config, log)

    if not serve(config, load, log):
        sys.stdout.flush()
        os._exit(FAILED)  # a signal came while XLA was compiling
    return 0


if __name__ == "__main__":
    sys.exit(main())
