"""Answers of a target on disk: what drafters are trained on.

A folder holds `manifest.json` and `part-00000.npz`, `part-00001.npz`, ... Each part is a NumPy archive (which has a
checksum for every array) with, for its n answers:

    ids            [tokens] uint16 where the vocabulary allows, else int32: prompt and answer, one after the other
    starts         [n + 1] int64: answer i is ids[starts[i]:starts[i + 1]]
    answer_starts  [n] int32: tokens of its prompt, so where the target's own words begin
    prompt_hash    [n] uint64: of the text behind the prompt (`text_hash`); decides the split
    source         [n] int16: index into the manifest's sources
    number         [n] int64: which piece of the plan of work it is; unique in a folder
    temperature    [n] float32: 0 where the target's likeliest tokens were taken
    folder_id      [] uint64: the same in the manifest and in all parts of a folder

The split is a function of the text alone: no shuffle, seed, number of parts or order of work moves an answer across.
"""

import hashlib
import json
import secrets
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np

from radiance_jax.container.source import Source, combined_fingerprint
from radiance_jax.errors import UserError
from radiance_jax.training.contamination import words_of

FORMAT, FORMAT_VERSION = "radiance_jax answers", 1
MANIFEST = "manifest.json"
HELD_OUT_ONE_IN = 32

Split = Literal["train", "held_out", "all"]
SPLITS = ("train", "held_out", "all")
PER_ANSWER = {"answer_starts": np.int32, "prompt_hash": np.uint64, "source": np.int16, "number": np.int64,
               "temperature": np.float32}


@dataclass(frozen=True, kw_only=True)
class SourceInfo:
    """Where prompts are from, and on what terms."""

    name: str
    licence: str
    origin: str = ""


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What all answers of a folder have in common. The counts are those of the last save."""

    target: str  # `target_fingerprint` of the model that answered
    target_description: str
    vocab_size: int
    sampling: Mapping[str, Any]
    sources: tuple[SourceInfo, ...]
    folder_id: int = field(default_factory=lambda: secrets.randbits(63))
    parts: int = 0
    answers: int = 0
    tokens: int = 0
    answers_by_source: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Answer:
    """Prompt and answer of one request. `ids` [tokens] int32; the answer is `ids[answer_start:]`."""

    ids: np.ndarray
    answer_start: int
    source: str
    temperature: float = 0.0
    prompt_hash: int = 0
    number: int = 0


def target_fingerprint(source: Source) -> str:
    """Equal for one model in all its forms: GGUF, `.rad` in bf16 or f32, with or without a drafter merged in. It names the
    files that the target was made from; a `.rad` that does not know them has its own."""
    hashes = source.source_hashes()
    return combined_fingerprint("target", hashes) if hashes else source.fingerprint


def text_hash(text: str) -> int:
    """64 bits of the words of a text: case, punctuation and spaces do not count, so that a text and its twin fall on one side
    of the split. A text without words counts as it stands."""
    words = " ".join(words_of(text)) or text
    return int.from_bytes(hashlib.blake2b(words.encode("utf-8"), digest_size=8).digest(), "little")


def is_held_out(prompt_hash: np.ndarray | int) -> np.ndarray | bool:
    """Whether answers to prompts of these hashes are kept from training: one in 32."""
    return prompt_hash % HELD_OUT_ONE_IN == 0


def part_name(number: int) -> str:
    return f"part-{number:05d}.npz"


class Answers:
    """The answers of one split, in memory, by number: in whichever order they were made. Open with `Answers.open`."""

    def __init__(self, folder: Path, manifest: Manifest, columns: Mapping[str, np.ndarray], chosen: np.ndarray):
        self.folder, self.manifest = folder, manifest
        self.sources = tuple(each.name for each in manifest.sources)
        self._columns, self._chosen = columns, chosen

    @classmethod
    def open(cls, folder: Path | str, split: Split = "train", *, target: str | None = None) -> Self:
        """Reads a folder. `target` is the `target_fingerprint` that the answers must be of. Raises `UserError` for
        another target, another format, and for parts that are missing, damaged or from elsewhere."""
        folder = Path(folder)
        if split not in SPLITS:
            raise UserError(f"split must be one of {', '.join(SPLITS)}; got {split!r}", param="split")
        manifest = read_manifest(folder)
        if target is not None and manifest.target != target:
            raise UserError(f"{folder} must hold answers of the model that is trained for ({target}); it holds those of "
                            f"{manifest.target} ({manifest.target_description}). Generate answers with this model.", param="data")
        columns = read_parts(folder, manifest)
        hashes = columns["prompt_hash"]
        held_out = is_held_out(hashes)
        chosen = np.flatnonzero({"train": ~held_out, "held_out": held_out}.get(split, np.ones(len(hashes), bool)))
        if not len(chosen):
            raise UserError(f"the split {split} of {folder} must not be empty; it has none of its {len(hashes)} answers. "
                            "Generate more.", param="data")
        return cls(folder, manifest, columns, chosen[np.argsort(columns["number"][chosen])])

    def __len__(self) -> int:
        return len(self._chosen)

    def __getitem__(self, index: int) -> Answer:
        row, columns = int(self._chosen[index]), self._columns
        first, last = columns["starts"][row:row + 2]
        return Answer(columns["ids"][first:last].astype(np.int32), int(columns["answer_starts"][row]),
                      self.sources[columns["source"][row]], float(columns["temperature"][row]),
                      int(columns["prompt_hash"][row]), int(columns["number"][row]))

    def __iter__(self) -> Iterator[Answer]:
        return (self[index] for index in range(len(self)))

    @property
    def lengths(self) -> np.ndarray:
        """[answers] int64: tokens of prompt and answer."""
        return np.diff(self._columns["starts"])[self._chosen]

    @property
    def answer_lengths(self) -> np.ndarray:
        """[answers] int64: tokens that the target wrote."""
        return self.lengths - self._columns["answer_starts"][self._chosen]


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a folder. Raises `UserError` where there is none that this version reads."""
    path = folder / MANIFEST
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{folder} must be a folder of answers; {path} cannot be read ({error.strerror or error}). Make one "
                        "with python -m radiance_jax.training.generate.", param="data") from None
    except ValueError as error:
        raise UserError(f"{path} must be JSON: {error}", param="data") from None
    if not isinstance(raw, dict) or (raw.pop("format", None), raw.pop("format_version", None)) != (FORMAT, FORMAT_VERSION):
        raise UserError(f"{path} must be of the format {FORMAT!r}, version {FORMAT_VERSION}; generate the answers again with "
                        "this version", param="data")
    if raw.pop("held_out_one_in", None) != HELD_OUT_ONE_IN:
        raise UserError(f"{path} must hold out one prompt in {HELD_OUT_ONE_IN}", param="data")
    try:
        sources = tuple(SourceInfo(**each) for each in raw.pop("sources"))
        return Manifest(sources=sources, **raw)
    except (KeyError, TypeError) as error:
        raise UserError(f"{path} lacks or has too many fields: {error}", param="data") from None


def count_parts(folder: Path, manifest: Manifest) -> int:
    """Parts in a folder, all of the manifest's and those saved after it was. Raises `UserError` for a gap."""
    found = {path.name for path in folder.glob("part-*.npz")}
    expected = [part_name(number) for number in range(max(manifest.parts, len(found)))]
    missing = [name for name in expected if name not in found]
    if missing:
        raise UserError(f"{folder} must have the parts {expected[0]} to {expected[-1]}; {', '.join(missing[:5])} "
                        f"{'is' if len(missing) == 1 else 'are'} missing", param="data")
    return len(expected)


def read_part(path: Path, manifest: Manifest) -> dict[str, np.ndarray]:
    """The arrays of a part. Raises `UserError` for a file that is damaged or from another folder."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            part = {name: archive[name] for name in ("ids", "starts", "folder_id", *PER_ANSWER)}
    except (OSError, ValueError, KeyError, EOFError, NotImplementedError, zipfile.BadZipFile, zlib.error) as error:
        raise UserError(f"{path} is damaged ({error}); remove it and what follows it, and generate again", param="data") from None
    starts, count = part["starts"], len(part["number"])
    if int(part["folder_id"]) != manifest.folder_id:
        raise UserError(f"{path} must belong to the manifest beside it; it is from another folder", param="data")
    whole = (all(part[name].shape == (count,) for name in PER_ANSWER) and starts.shape == (count + 1,) and starts[0] == 0
             and starts[-1] == len(part["ids"]) and bool(np.all(np.diff(starts) > part["answer_starts"]))
             and bool(np.all((part["source"] >= 0) & (part["source"] < len(manifest.sources))))
             and int(part["ids"].max(initial=0)) < manifest.vocab_size)
    if not whole:
        raise UserError(f"{path} must hold arrays that fit together and ids below {manifest.vocab_size}; it does not",
                        param="data")
    return part


def read_parts(folder: Path, manifest: Manifest) -> dict[str, np.ndarray]:
    """All parts of a folder as one. Raises `UserError` as `read_part` does, and where answers are lost."""
    parts = [read_part(folder / part_name(number), manifest) for number in range(count_parts(folder, manifest))]
    if not parts:
        raise UserError(f"{folder} must hold answers; it has none yet", param="data")
    columns = {name: np.concatenate([part[name] for part in parts]) for name in ("ids", *PER_ANSWER)}
    lengths = np.concatenate([np.diff(part["starts"]) for part in parts])
    columns["starts"] = np.concatenate([[0], np.cumsum(lengths)])
    if len(lengths) < manifest.answers:
        raise UserError(f"{folder} must hold the {manifest.answers} answers of its manifest; it has {len(lengths)}", param="data")
    return columns
