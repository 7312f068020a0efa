"""llama.cpp beside `bench speed`: on the same prompt ids, in a process and a Python of its own."""

import json
import os
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from radiance_jax.bench.config import SpeedConfig, words
from radiance_jax.bench.prompt_sets import Prompt
from radiance_jax.errors import RadianceError, UserError

LLAMA_CPP = Path(__file__).with_name("peer_llama_cpp.py")
LEAST_SHARE = 0.98  # of the CPU time wanted; with less, the peer's threads were waiting for another program


@dataclass(frozen=True, kw_only=True)
class LlamaCpp:
    python: str
    model: str
    threads: int

    def run(self, prompts: Sequence[Prompt], max_tokens: int, sequences: int) -> dict[str, Any]:
        """The peer's own JSON line, with the model's file name."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "prompts.jsonl"
            path.write_text("".join(json.dumps({"prompt_ids": list(each.ids), "max_tokens": max_tokens}) + "\n"
                                    for each in prompts))
            command = [self.python, str(LLAMA_CPP), "--model", self.model, "--prompts", str(path),
                       "--threads", str(self.threads), "--sequences", str(sequences)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        try:
            if done.returncode:
                raise ValueError(f"exit status {done.returncode}")
            figures = json.loads(done.stdout.strip().splitlines()[-1])
        except (ValueError, IndexError) as error:
            tail = "\n".join(done.stderr.strip().splitlines()[-5:])
            raise RadianceError(f"the peer {LLAMA_CPP.name} with {self.model} gave no figures ({error}):\n{tail}") from None
        return {"model": Path(self.model).name, **figures}


def peers_of(config: SpeedConfig) -> list[LlamaCpp]:
    """Those the flags name. Raises `UserError` for a Python or model that is not there."""
    if config.peer_llama_cpp is None:
        return []
    models = words("peer_models", config.peer_models)
    for name, path in (("peer_llama_cpp", config.peer_llama_cpp), *(("peer_models", model) for model in models)):
        if not Path(path).is_file():
            raise UserError(f"{name}: no such file: {path}", param=name)
    threads = config.peer_threads or len(os.sched_getaffinity(0))
    return [LlamaCpp(python=config.peer_llama_cpp, model=model, threads=threads) for model in models]
