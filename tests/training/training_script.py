"""A target that writes a known script, and answers of it on disk: each prompt of random words is gone on with by the script."""

from pathlib import Path

import numpy as np

from radiance_jax.container.source import open_model
from radiance_jax.training.config import TrainConfig
from radiance_jax.training.dataset import Answer, Manifest, SourceInfo, target_fingerprint, text_hash
from radiance_jax.training.dataset_writer import AnswersWriter
from tests.exactness import targets
from tests.tiny_model import VOCAB

PROMPT, ANSWER = 5, 24
TINY = {"dtype": "f32", "length": 32, "batch": 4, "anchors": 4, "layers": 1, "block_size": 4, "rank": 8, "ff_width": 32,
        "num_heads": 2, "num_kv_heads": 1, "head_size": 16, "eval_answers": 6, "eval_every": 4, "save_every": 3, "log_every": 2,
        "steps": 8, "rate": 3e-3}


def make(folder: Path, count: int = 300, answer: int = ANSWER) -> tuple[Path, Path]:
    """Target and answers. Prompts end in any word of the script, so held-out answers are of the same language."""
    target = targets.make(folder / "target", "untied", scripted=True)
    rng = np.random.default_rng(1)
    writer = AnswersWriter(folder / "answers", Manifest(
        target=target_fingerprint(open_model(target)), target_description="a script", vocab_size=VOCAB, sampling={},
        sources=(SourceInfo(name="script", licence="none"),)))
    for number in range(count):
        prompt = rng.integers(targets.END + 1, VOCAB, PROMPT).tolist()
        ids = prompt + targets.script(prompt[-1], answer)
        writer.add(Answer(np.array(ids, np.int32), PROMPT, "script", 0.0, text_hash(str(prompt)), number))
    writer.save()
    return target, folder / "answers"


def config(target: Path, answers: Path, out: Path, **changes) -> TrainConfig:
    return TrainConfig(**TINY | {"model": str(target), "data": str(answers), "out": str(out)} | changes)
