"""Oracles kept in a file, for every process that compares with them: the answers of one manifest, by request."""

import fcntl
import json
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from radiance_jax.bench import record
from radiance_jax.bench.exactness_asks import Ask, digest
from radiance_jax.errors import RadianceError, UserError
from radiance_jax.fingerprint import code_digest, cpu_model, instructions

Answers = dict[str, dict[str, Any]]


def name_of(ask: Ask) -> str:
    """All that an answer may depend on within a manifest."""
    return digest((ask.ids, ask.seed, ask.way, ask.max_tokens))


def manifest(fingerprint: str, engine: Any, chosen: Any, mesh: int) -> dict[str, Any]:
    """What the promise holds for (`docs/exactness.md`). `fingerprint` is the model file's."""
    import jax
    import jaxlib

    device = jax.devices()[0]
    return {"model": fingerprint, "dtype": chosen.dtype, "mesh": mesh, "bit_exact": engine.exact,
            "tiles": [list(each) if isinstance(each, tuple) else each for each in engine._tiles or ()],
            "page_size": engine.capacity.page_size, "code": code_digest(), "python": platform.python_version(),
            "jax": jax.__version__, "jaxlib": jaxlib.__version__, "platform": device.platform, "device": device.device_kind,
            "cpu": [cpu_model(), instructions()] if device.platform == "cpu" else []}


class Oracles:
    """The file at `path`, shared by several processes: each adds what it has found and reads what others have."""

    def __init__(self, path: str, manifest: Mapping[str, Any]):
        self.path, self.manifest = Path(path), dict(manifest)

    def read(self) -> Answers:
        """Raises `UserError` for a file of another manifest, or of another kind."""
        if not self.path.exists():
            return {}
        try:
            stored = json.loads(self.path.read_text(encoding="utf-8"))
            theirs, answers = dict(stored["manifest"]), dict(stored["answers"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(f"oracles must be a file written by --oracles; {self.path} is not ({error!r}). Name a new file.",
                            param="oracles") from None
        for part, mine in self.manifest.items():
            if theirs.get(part) != mine:
                raise UserError(f"the oracles in {self.path} are of another manifest: {part} is {theirs.get(part)!r} there and "
                                f"{mine!r} here. Name another file, or remove this one to have them made again.", param="oracles")
        return answers

    def add(self, asks: Sequence[Ask], answers: Sequence[dict[str, Any]]) -> None:
        """Raises `RadianceError` where another process has found another answer: that breaks the promise itself."""
        with open(f"{self.path}.lock", "a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            stored = self.read()
            for ask, answer in zip(asks, answers, strict=True):
                if stored.setdefault(name_of(ask), answer) != answer:
                    raise RadianceError(f"prompt {ask.name}, {ask.way}: alone and undrafted, two processes gave two answers "
                                        f"(one is in {self.path})")
            record.write(str(self.path), {"manifest": self.manifest, "answers": stored})
