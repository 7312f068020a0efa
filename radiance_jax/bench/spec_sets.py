"""The evaluation sets of `bench spec` and `bench doctor`: samples of this package, or whole sets in a folder of the user's.

First turns only: Spec-Bench's conversations and MT-Bench have a second turn, which would be asked of an answer that differs
from model to model. For evaluation only: a drafter trained on these prompts measures its memory.
"""

import gzip
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from radiance_jax.bench.prompt_sets import FOLDER, Prompt, read
from radiance_jax.errors import UserError

SPEC_BENCH = {  # our name of a task -> its categories in Spec-Bench's file; the eight of MT-Bench are its conversations
    "multi-turn": ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities"),
    "translation": ("translation",), "summarisation": ("summarization",), "qa": ("qa",), "maths": ("math_reasoning",),
    "rag": ("rag",)}
SUITES = ("humaneval", "gsm8k", "mt-bench")
SETS = (*SPEC_BENCH, *SUITES)
FILES = {  # where a folder of whole sets has them
    **dict.fromkeys(SPEC_BENCH, "spec-bench/question.jsonl"), "humaneval": "humaneval/HumanEval.jsonl.gz",
    "gsm8k": "gsm8k/test.jsonl", "mt-bench": "mt-bench/question.jsonl"}
CODE = "Complete this Python function. Answer with the whole function.\n\n```python\n{}\n```"


def load(names: Sequence[str], folder: str | None, limit: int | None) -> list[Prompt]:
    """Prompts of the sets named, at most `limit` of each, evenly spaced. Raises `UserError` naming what cannot be read."""
    return [prompt for name in names for prompt in spaced(_whole(name, folder), limit)]


def spaced[T](items: Sequence[T], limit: int | None) -> list[T]:
    """In: "abcdef", 3    Out: a, c, e"""
    if limit is None or limit >= len(items):
        return list(items)
    return [items[i * len(items) // limit] for i in range(limit)]


def _whole(name: str, folder: str | None) -> list[Prompt]:
    if folder is not None:
        return list(_of_folder(name, Path(folder) / FILES[name]))
    file = name if name in SUITES else "tasks"
    return [each for each in read(FOLDER / f"{file}.jsonl", name) if each.set == name]


def _of_folder(name: str, path: Path) -> Iterator[Prompt]:
    try:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8") as file:
            lines = [json.loads(line) for line in file if line.strip()]
    except (OSError, ValueError) as error:
        raise UserError(f"data must be a folder with {FILES[name]}, one JSON object a line; {path} cannot be read: {error}",
                        param="data") from None
    try:
        found = [made for number, raw in enumerate(lines) if (made := _prompt(name, number, raw)) is not None]
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise UserError(f"{path} must have the fields of the published file; missing: {error}", param="data") from None
    if not found:
        raise UserError(f"{path} must hold prompts of {name!r}; it has none", param="data")
    yield from found


def _prompt(name: str, number: int, raw: Any) -> Prompt | None:
    """The prompt of a published line; None for one of another task."""
    if name == "humaneval":
        return Prompt(set=name, id=str(raw["task_id"]), text=CODE.format(raw["prompt"].strip()))
    if name == "gsm8k":
        return Prompt(set=name, id=f"GSM8K-test/{number}", text=raw["question"])
    if name == "mt-bench":
        return Prompt(set=name, id=f"MT-Bench/{raw['question_id']}", text=raw["turns"][0])
    if raw["category"] not in SPEC_BENCH[name]:
        return None
    return Prompt(set=name, id=f"Spec-Bench/{raw['question_id']}", text=raw["turns"][0])
