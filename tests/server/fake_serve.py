"""Runs the real server over the fake engine: `python fake_serve.py '{json}' [serve's flags]`.

The JSON object holds arguments of `FakeEngine`, and `load_seconds` or `load_error` for what loading does.
"""

import json
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from fake_engine import FakeEngine  # noqa: E402

from radiance_jax.config import ServeConfig  # noqa: E402
from radiance_jax.errors import ModelError  # noqa: E402
from radiance_jax.flags import read_config  # noqa: E402
from radiance_jax.server.run import serve  # noqa: E402

options = json.loads(sys.argv[1])
load_seconds, load_error = options.pop("load_seconds", 0), options.pop("load_error", None)
config, _ = read_config(ServeConfig, sys.argv[2:], prog="fake_serve", description="", environ=os.environ)


def load() -> FakeEngine:
    time.sleep(load_seconds)
    if load_error:
        raise ModelError(load_error)
    return FakeEngine(**options)


try:
    finished = serve(config, load, lambda line: print(line, flush=True))
except ModelError as error:
    print(f"error: {error}", flush=True)
    sys.exit(2)
print("closed" if finished else "cut short", flush=True)
os._exit(0 if finished else 1)
