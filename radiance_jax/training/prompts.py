"""The prompts that a target answers to make training data, in the order in which it does.

The order mixes all sources in proportion, so that a run that is stopped early has answered a smaller set of the same kind;
it is a function of the prompts' text and of nothing else.
"""

import hashlib
import json
import lzma
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from radiance_jax.errors import UserError
from radiance_jax.training import templates
from radiance_jax.training.contamination import EvaluationSets
from radiance_jax.training.dataset import SourceInfo, is_held_out, text_hash
from radiance_jax.training.sources import SOURCES, read_sources

TEXTS = templates.FOLDER / "texts.jsonl.xz"
EVALUATION = templates.FOLDER / "evaluation_runs.npz"
LONGEST = 6000  # characters; what is longer would not leave room for an answer
BEHIND = 0.06  # of the whole order: how far a prompt about an answer comes behind the prompt that makes it


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """A user message. `parents` are the places, in the same list, of the prompts whose answers it needs: they stand for
    `{passage}` in `text` or, if `turn`, come before it in the conversation. `prompt_hash` decides the split."""

    source: str
    text: str
    prompt_hash: int
    parents: tuple[int, ...] = ()
    turn: bool = False


@cache
def evaluation_sets() -> EvaluationSets:
    """What the package knows of the sets that must not be trained on."""
    return EvaluationSets.load(EVALUATION)


def source_infos(prompts: Sequence[Prompt]) -> tuple[SourceInfo, ...]:
    """Every source that these prompts name: where it is from, then what it asks for."""
    origins = {each.name: SourceInfo(name=each.name, licence=each.licence, origin=each.origin) for each in SOURCES}
    origins[templates.OWN] = SourceInfo(name=templates.OWN, licence="Apache-2.0",
                                        origin="templates of this package, and the target's own answers")
    origins["own"] = SourceInfo(name="own", licence="the user's", origin="a file of the user's")
    return tuple(replace(origins[name.split("/")[0]], name=name) for name in sorted({prompt.source for prompt in prompts}))


def clean(found: Iterable[tuple[str, str, str]], evaluation: EvaluationSets) -> tuple[list[tuple[str, str, str]], dict]:
    """(source, task, prompt) without what is too long, what occurs twice, and what the evaluation sets hold; and how many
    of each source and task went and stayed."""
    kept: list[tuple[str, str, str]] = []
    counts: dict[str, dict[str, int]] = {}
    seen: set[int] = set()
    for source, task, text in found:
        count = counts.setdefault(f"{source}/{task}", {"read": 0, "too_long": 0, "twice": 0, "in_evaluation_sets": 0, "kept": 0})
        mark = text_hash(text)
        why = ("too_long" if len(text) > LONGEST else "twice" if mark in seen
               else "in_evaluation_sets" if evaluation.shares(text) else "kept")
        count["read"] += 1
        count[why] += 1
        if why == "kept":
            seen.add(mark)
            kept.append((source, task, text))
    return kept, counts


def pack(texts: Iterable[tuple[str, str, str]]) -> bytes:
    """As in the package: one JSON list a line, compressed."""
    lines = "".join(json.dumps(each, ensure_ascii=False) + "\n" for each in texts)
    return lzma.compress(lines.encode("utf-8"), preset=9 | lzma.PRESET_EXTREME)


def packaged() -> list[tuple[str, str, str]]:
    """The cleaned prompts of all sources that are in the package."""
    text = lzma.decompress(TEXTS.read_bytes()).decode("utf-8")
    return [tuple(json.loads(line)) for line in text.split("\n") if line]


@cache
def load(sources: Path | None = None) -> tuple[Prompt, ...]:
    """All prompts in order: those of the package, or of a folder of sources, which is cleaned in the same way. What is in
    the package was held against the evaluation sets when it was put there."""
    texts = packaged() if sources is None else clean(read_sources(sources), evaluation_sets())[0]
    return order(_expanded(texts))


def prompts_of(sources: str | None, own: str | None) -> tuple[Prompt, ...]:
    """The prompts of the package, of a folder of sources, or of a user's own file."""
    return read_own(Path(own)) if own is not None else load(None if sources is None else Path(sources))


def _expanded(texts: Sequence[tuple[str, str, str]]) -> list[Prompt]:
    """Prompts of the sources and of the templates, in any order."""
    code = [each for each in texts if each[1] == "code"]
    made = [Prompt(source=f"{source}/{task}", text=text, prompt_hash=text_hash(text))
            for source, task, text in texts if task != "code"]
    made += [Prompt(source=f"{code[index][0]}/{each.task}", text=each.text, prompt_hash=text_hash(code[index][2]))
             for index, each in templates.edits([text for _, _, text in code])]
    made += [Prompt(source=f"{templates.OWN}/{each.task}", text=each.text, prompt_hash=text_hash(each.text))
             for each in [*templates.plain(), *templates.articles()]]
    made = list({each.text: each for each in made}.values())
    made.sort(key=lambda each: (each.prompt_hash, each.text))
    articles = [index for index, each in enumerate(made) if each.source == f"{templates.OWN}/article"]

    def same_side(left: int, right: int) -> bool:
        return is_held_out(made[left].prompt_hash) == is_held_out(made[right].prompt_hash)

    first = [(index, each.source.split("/")[1]) for index, each in enumerate(made)]
    made += [Prompt(source=f"{templates.OWN}/{each.task}", text=each.text, parents=each.parents, turn=each.turn,
                    prompt_hash=made[each.parents[0]].prompt_hash)
             for each in [*templates.passages(articles, same_side), *templates.turns(first)]]
    return made


def order(prompts: Sequence[Prompt]) -> tuple[Prompt, ...]:
    """Mixes the sources in proportion and puts prompts about answers behind those they are about."""
    by_source: dict[str, list[int]] = {}
    for index, prompt in enumerate(prompts):
        if not prompt.parents:
            by_source.setdefault(prompt.source, []).append(index)
    place: dict[int, float] = {}
    for members in by_source.values():
        members.sort(key=lambda index: _mixed(prompts[index].text))
        place |= {index: (rank + 0.5) / len(members) for rank, index in enumerate(members)}
    for index, prompt in enumerate(prompts):
        if prompt.parents:
            place[index] = max(place[parent] for parent in prompt.parents) + BEHIND
    ordered = sorted(place, key=lambda index: (place[index], _mixed(prompts[index].text), index))
    number = {index: rank for rank, index in enumerate(ordered)}
    return tuple(replace(prompts[index], parents=tuple(number[parent] for parent in prompts[index].parents)) for index in ordered)


def _mixed(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8"), digest_size=8, person=b"order").digest()


def fingerprint(prompts: Sequence[Prompt]) -> str:
    """Changes with any prompt and with their order."""
    digest = hashlib.sha256()
    for each in prompts:
        digest.update(json.dumps([each.source, each.text, each.prompt_hash, each.parents, each.turn]).encode())
    return digest.hexdigest()[:16]


def read_own(path: Path) -> tuple[Prompt, ...]:
    """A user's own prompts: one JSON object a line with `prompt`, a user message. Raises `UserError` for another form and for
    prompts that the evaluation sets hold."""
    try:
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line.strip()]
        texts = [row["prompt"] for row in rows]
        whole = bool(texts) and all(isinstance(text, str) and text for text in texts)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} must hold one JSON object a line, with a prompt: {error!r}", param="prompts") from None
    if not whole:
        raise UserError(f"{path} must hold prompts that are strings, none empty", param="prompts")
    found = [number for number, text in enumerate(texts, 1) if evaluation_sets().shares(text)]
    if found:
        lines = ", ".join(map(str, found[:10]))
        raise UserError(f"{path} must share no run of words with the evaluation sets; lines {lines} do. Remove them.",
                        param="prompts")
    return tuple(Prompt(source="own", text=text, prompt_hash=text_hash(text)) for text in texts)
