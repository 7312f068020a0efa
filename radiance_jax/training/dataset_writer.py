"""Writing answers to a folder, a kill at any time forgiven."""

import json
import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import BinaryIO

import numpy as np

from radiance_jax.errors import UserError
from radiance_jax.training.dataset import (
    FORMAT,
    FORMAT_VERSION,
    HELD_OUT_ONE_IN,
    MANIFEST,
    PER_ANSWER,
    Answer,
    Manifest,
    count_parts,
    part_name,
    read_manifest,
    read_part,
)

MAX_PART_BYTES = 12 << 20  # of ids before compression; the other arrays add a few percent


class AnswersWriter:
    """Adds answers to a folder; what `save` has written survives a kill, what it has not is lost and done again.

    The last part is written anew until it is full, each file under another name and then renamed: a reader finds every
    file whole at any time. Opening a folder that exists goes on with it, if its manifest says the same as this one's.
    """

    def __init__(self, folder: Path | str, manifest: Manifest, *, max_part_bytes: int = MAX_PART_BYTES):
        self.folder = Path(folder)
        self._dtype = np.uint16 if manifest.vocab_size <= 1 << 16 else np.int32
        self._part_tokens = max(max_part_bytes // np.dtype(self._dtype).itemsize, 1)
        self._codes = {each.name: code for code, each in enumerate(manifest.sources)}
        self._counts = dict.fromkeys(self._codes, 0)
        self._open: list[Answer] = []  # of the part not yet full
        self._open_tokens, self._full_parts, self._tokens = 0, 0, 0
        self.done: set[int] = set()  # the numbers of all answers here
        if (self.folder / MANIFEST).exists():
            manifest = self._resume(manifest)
        self.manifest = manifest
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"out must be a folder that can be written; {self.folder} cannot be made "
                            f"({error.strerror or error})", param="out") from None
        if not self.done:
            self._write_manifest()

    def _resume(self, wanted: Manifest) -> Manifest:
        found = read_manifest(self.folder)
        for name in ("target", "vocab_size", "sampling", "sources"):
            here, there = getattr(wanted, name), getattr(found, name)
            if here != there:
                raise UserError(f"{self.folder} must be a folder of the same work to go on with it; its {name} is {there}, this "
                                f"one's is {here}. Take another folder, or the same settings.", param="out")
        parts = count_parts(self.folder, found)
        for number in range(parts):
            part = read_part(self.folder / part_name(number), found)
            answers = [Answer(part["ids"][part["starts"][i]:part["starts"][i + 1]].astype(np.int32),
                              int(part["answer_starts"][i]), found.sources[part["source"][i]].name,
                              float(part["temperature"][i]), int(part["prompt_hash"][i]), int(part["number"][i]))
                       for i in range(len(part["number"]))]
            for each in answers:
                self._count(each)
            last = number == parts - 1
            if last and len(part["ids"]) < self._part_tokens:
                self._open, self._open_tokens = answers, len(part["ids"])
            else:
                self._full_parts += 1
        return found

    def _count(self, answer: Answer) -> None:
        if answer.number in self.done:
            raise UserError(f"answer {answer.number} must be in {self.folder} once; it is there already", param="out")
        self.done.add(answer.number)
        self._counts[answer.source] += 1
        self._tokens += len(answer.ids)

    def add(self, answer: Answer) -> None:
        """Takes one answer. A part that is full is written at once, others with `save`. Raises `UserError` for an answer
        that this folder cannot hold."""
        ids = np.asarray(answer.ids)
        if answer.source not in self._codes:
            raise UserError(f"source must be one of {', '.join(self._codes)}; got {answer.source!r}", param="source")
        if not 0 <= answer.answer_start < len(ids) or ids.min() < 0 or ids.max() >= self.manifest.vocab_size:
            raise UserError(f"an answer must have at least a token after its prompt and ids below {self.manifest.vocab_size}; "
                            f"answer {answer.number} has {len(ids)} tokens from {ids.min(initial=0)} to {ids.max(initial=0)}, "
                            f"{answer.answer_start} of them prompt", param="ids")
        self._count(answer)
        self._open.append(answer)
        self._open_tokens += len(ids)
        if self._open_tokens >= self._part_tokens:
            self.save()
            self._open, self._open_tokens, self._full_parts = [], 0, self._full_parts + 1

    def save(self) -> None:
        """Writes the part that is not full and the manifest."""
        if self._open:
            write_whole(self.folder / part_name(self._full_parts), lambda file: np.savez_compressed(file, **self._arrays()))
        self._write_manifest()

    def _arrays(self) -> dict[str, np.ndarray]:
        rows = self._open
        starts = np.concatenate([[0], np.cumsum([len(each.ids) for each in rows])]).astype(np.int64)
        values = {"answer_starts": [each.answer_start for each in rows], "prompt_hash": [each.prompt_hash for each in rows],
                  "source": [self._codes[each.source] for each in rows], "number": [each.number for each in rows],
                  "temperature": [each.temperature for each in rows]}
        return {"ids": np.concatenate([each.ids for each in rows]).astype(self._dtype), "starts": starts,
                "folder_id": np.uint64(self.manifest.folder_id),
                **{name: np.array(values[name], dtype) for name, dtype in PER_ANSWER.items()}}

    def _write_manifest(self) -> None:
        parts = self._full_parts + bool(self._open)
        record = asdict(self.manifest) | {"parts": parts, "answers": len(self.done), "tokens": self._tokens,
                                          "answers_by_source": self._counts}
        text = json.dumps({"format": FORMAT, "format_version": FORMAT_VERSION,
                           "held_out_one_in": HELD_OUT_ONE_IN, **record}, indent=1)
        write_whole(self.folder / MANIFEST, lambda file: file.write(text.encode("utf-8")))


def write_whole(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """What `write` puts into the file stands at `path` once it is on the disk; until then the old file does."""
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("wb") as file:
        write(file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
