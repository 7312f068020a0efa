"""Readers of the prompt sources and of the evaluation sets: a folder each, under one that the user names.

Prompts only: answers in these files were written by people or by other models, and drafters learn from the target's own.
"""

import gzip
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from radiance_jax.errors import UserError

# (task, prompt)
Pairs = Iterator[tuple[str, str]]


@dataclass(frozen=True, kw_only=True)
class PromptSource:
    """`files` are where its text is, relative to the folder of all sources; `read` gives tasks and prompts."""

    name: str
    licence: str
    origin: str
    files: tuple[str, ...]
    read: Callable[[list[Any]], Pairs]


def records(path: Path) -> list[Any]:
    """The objects of a `.json` (one list), `.jsonl` or `.jsonl.gz` file. Raises `UserError` for anything else."""
    try:
        data = path.read_bytes()
        text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8")
        found = json.loads(text) if path.suffix == ".json" else [json.loads(line) for line in text.split("\n") if line.strip()]
    except (OSError, EOFError, ValueError) as error:
        raise UserError(f"{path} must be a readable .json or .jsonl file: {error}", param="sources") from None
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise UserError(f"{path} must hold objects", param="sources")
    return found


def _joined(instruction: str, given: str) -> str:
    return f"{instruction.strip()}\n\n{given.strip()}" if given.strip() else instruction.strip()


def _gsm8k(rows: list[Any]) -> Pairs:
    for row in rows:
        yield "maths", row["question"].strip()


_SIGNATURE = re.compile(r"^def \w+\s*\(.*\)\s*:", re.MULTILINE)


def _mbpp(rows: list[Any]) -> Pairs:
    """Each task in three forms: as it is, with its tests, and as a function to complete; and its code, to be edited."""
    for row in rows:
        code, tests = row["code"].replace("\r\n", "\n").strip(), row["test_list"]
        yield "coding", row["text"].strip()
        yield "coding", f"{row['text'].strip()} Your code should pass these tests:\n" + "\n".join(tests)
        signature = _SIGNATURE.search(code)
        if signature:
            yield "completion", f'{signature[0]}\n    """{row["text"].strip()}\n    """'
        yield "code", code


def _instructions(task: str) -> Callable[[list[Any]], Pairs]:
    def read(rows: list[Any]) -> Pairs:
        for row in rows:
            yield task, _joined(row["instruction"], row["input"])
    return read


def _self_instruct(rows: list[Any]) -> Pairs:
    for row in rows:
        for instance in row["instances"]:
            yield "chat", _joined(row["instruction"], instance["input"])


def _ifeval(rows: list[Any]) -> Pairs:
    for row in rows:
        yield "format", row["prompt"].strip()


def _editeval(rows: list[Any]) -> Pairs:
    for row in rows:
        given = "\n\n".join(each.strip("\n") for each in (row.get("context", ""), row["input"]) if each.strip())
        yield "editing", f"{row['instruction'].strip()}\n\n```python\n{given}\n```"


SOURCES = (
    PromptSource(name="gsm8k", licence="MIT", origin="OpenAI, grade-school-math, train split",
                 files=("gsm8k/train.jsonl",), read=_gsm8k),
    PromptSource(name="mbpp", licence="CC-BY-4.0", origin="Google Research, Mostly Basic Python Problems",
                 files=("mbpp/mbpp.jsonl",), read=_mbpp),
    PromptSource(name="self-instruct", licence="Apache-2.0", origin="Wang et al., Self-Instruct: seed tasks and user-oriented "
                 "instructions", files=("self-instruct/seed_tasks.jsonl", "self-instruct/user_oriented_instructions.jsonl"),
                 read=_self_instruct),
    PromptSource(name="gpteacher-code", licence="MIT", origin="Teknium, GPTeacher: codegen, prompts only",
                 files=("gpteacher/codegen-instruct.json",), read=_instructions("coding")),
    PromptSource(name="gpteacher-roleplay", licence="MIT", origin="Teknium, GPTeacher: roleplay, prompts only",
                 files=("gpteacher/roleplay-simple.json",), read=_instructions("chat")),
    PromptSource(name="ifeval", licence="Apache-2.0", origin="Google Research, IFEval", files=("ifeval/input_data.jsonl",),
                 read=_ifeval),
    PromptSource(name="editeval", licence="MIT", origin="EditEval", files=("editeval/edit_eval.jsonl",), read=_editeval),
)


def read_sources(folder: Path) -> Iterator[tuple[str, str, str]]:
    """(source, task, prompt) of all prompts, in the order of the files."""
    for source in SOURCES:
        for name in source.files:
            rows = records(folder / name)
            try:
                for task, prompt in source.read(rows):
                    yield source.name, task, prompt
            except (KeyError, TypeError, AttributeError) as error:
                raise UserError(f"{folder / name} must have the fields of {source.name}; {error!r}", param="sources") from None


EVALUATION_FILES = ("spec-bench/question.jsonl", "mt-bench/question.jsonl", "humaneval/HumanEval.jsonl.gz", "gsm8k/test.jsonl")


def evaluation_texts(folder: Path) -> Iterator[tuple[str, str]]:
    """(file, text) of everything in the evaluation sets that must not be trained on: questions, solutions, references."""
    for name in EVALUATION_FILES:
        for row in records(folder / name):
            for key in ("turns", "reference", "prompt", "canonical_solution", "question", "answer"):
                yield from ((name, text) for text in _strings(row.get(key)))


def _strings(value: Any) -> Iterator[str]:
    """The strings in nested lists."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for each in value:
            yield from _strings(each)
