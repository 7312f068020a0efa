"""`python -m radiance_jax.serve` over a real engine whose device breaks at its next step after SIGUSR1."""

import signal
import sys
from typing import Any

from radiance_jax import serve
from radiance_jax.engine.engine import Engine

load, loaded = Engine.load.__func__, []


def remember(cls: type, *arguments: Any) -> Engine:
    loaded.append(load(cls, *arguments))
    return loaded[-1]


def break_device(*_: Any) -> None:
    def read(pending: Any) -> Any:
        raise RuntimeError("the device is gone")

    loaded[0]._device.read = read


Engine.load = classmethod(remember)
signal.signal(signal.SIGUSR1, break_device)
sys.exit(serve.main())
