"""A fresh process of `bench exactness`: answers what a job file asks, and prints records as JSON."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from radiance_jax.config import EngineConfig
from radiance_jax.host_devices import ensure_host_devices


def write(folder: Path, options: EngineConfig, asks: Sequence[Any], live: int, knobs: dict[str, np.ndarray],
          forced: bool) -> None:
    """What to ask, and what is proposed to it; without `forced` an engine as it is served, that proposes for itself."""
    job = {"options": asdict(options), "asks": [asdict(each) for each in asks], "live": live, "forced": forced}
    (folder / "job.json").write_text(json.dumps(job))
    np.savez(folder / "knobs.npz", **knobs)


def read(text: str) -> dict[str, Any]:
    return json.loads(text.splitlines()[-1])


def main(folder: str) -> None:
    job = json.loads((Path(folder) / "job.json").read_text())
    with np.load(Path(folder) / "knobs.npz") as stored:
        knobs = dict(stored)
    options = EngineConfig(**job["options"])
    ensure_host_devices(options.mesh_size)
    import jax  # after the environment is set

    from radiance_jax.bench import forced
    from radiance_jax.bench.exactness_asks import Ask, ask_all
    from radiance_jax.bench.record import log
    from radiance_jax.engine.engine import Engine
    from radiance_jax.engine.hooks import NO_HOOKS
    from radiance_jax.engine.shelf import CACHE_HIT

    hits: list[str] = []
    jax.monitoring.register_event_listener(lambda event, **_: hits.append(event) if event == CACHE_HIT else None)
    asks = [Ask(**each | {"ids": tuple(each["ids"])}) for each in job["asks"]]
    engine = Engine.load(options, log, forced.hooks(*knobs["drafts"].shape) if job["forced"] else NO_HOOKS)
    try:
        if job["forced"]:
            engine._device.turn(knobs)
        told = ask_all(engine, asks, job["live"])
    finally:
        engine.close()
    print(json.dumps({"records": [each.record() for each in told], "compile_cache_hits": len(hits),
                      "programs_kept": engine.info()["programs_kept"],
                      "draft_tokens": sum(each.stats.num_draft_tokens for each in told),
                      "accepted": sum(each.stats.num_accepted_draft_tokens for each in told)}))


if __name__ == "__main__":
    main(sys.argv[1])
