"""What a run was made of and what it reached, as one JSON object."""

import platform
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

import jax

from radiance_jax.training.checkpoints import best_facts
from radiance_jax.training.flops import peak
from radiance_jax.training.parameters import count

if TYPE_CHECKING:
    from radiance_jax.training.run import Run

PACKAGES = ("radiance-jax", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain", "numpy")


def summary(run: "Run", nbytes: int, command: str, seconds: float) -> dict[str, Any]:
    trainer, config = run.trainer, run.trainer.config
    answers, device = trainer.rows.answers, jax.devices()[0]
    top, best = peak(device.device_kind, trainer.mesh.size), best_facts(run.out)
    steps = max(run.step, 1)
    return {
        "target": {"description": trainer.subject.source.description, "fingerprint": answers.manifest.target},
        "data": {"answers": len(trainer.rows), "share": config.share, "held_out": len(trainer.held_out),
                 "tokens": int(answers.lengths[trainer.rows.chosen].clip(max=config.length).sum()),
                 "sampling": dict(answers.manifest.sampling), "sources": [each.name for each in answers.manifest.sources],
                 "folder": {"answers": answers.manifest.answers, "tokens": answers.manifest.tokens}},
        "drafter": {"family": config.family, "objective": config.objective, "parameters": count(trainer.subject.drafter),
                    "bytes": nbytes, "config": trainer.subject.raw},
        "steps": run.step, "planned_steps": run.total, "epochs": round(run.step * config.batch / len(trainer.rows), 2),
        "seconds": round(seconds, 1), "training_seconds": round(run.seconds, 1), "tokens": run.tokens,
        "tokens_per_second": round(run.tokens / max(run.seconds, 1e-9), 1),
        "flops_per_step": run.flops, "mfu": None if top is None else round(run.flops * steps / max(run.seconds, 1e-9) / top, 4),
        "held_out": {"untrained": run.first, "best": best["held_out"], "best_step": best["step"], "last": run.last},
        "device": {"kind": device.device_kind, "platform": device.platform, "count": trainer.mesh.size,
                   "mesh": config.mesh, "attention": trainer.programs.target.attention},
        "versions": {"python": platform.python_version()} | {name: _version(name) for name in PACKAGES},
        "command": command, "config": config.values()}


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
