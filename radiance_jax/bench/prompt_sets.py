"""The prompts of a benchmark: the sets of this package, or a file of the user's own."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from radiance_jax.bench.config import SpeedConfig, words
from radiance_jax.errors import UserError, nearest

FOLDER = Path(__file__).with_name("prompts")
KEYS = ("prompt", "prompt_ids", "set", "id")


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """`ids` is empty until `encode`, unless the file gave ids instead of text."""

    set: str
    id: str
    text: str = ""
    ids: tuple[int, ...] = ()


def load(config: SpeedConfig) -> list[Prompt]:
    """What the flags ask for, at most `limit` of each set, each `repeat` times."""
    if config.prompts is not None:
        prompts = read(Path(config.prompts), "own")
    else:
        prompts = [each for name in words("sets", config.sets) for each in read(FOLDER / f"{name}.jsonl", name)]
    sets = {prompt.set: [each for each in prompts if each.set == prompt.set] for prompt in prompts}
    chosen = [prompt for members in sets.values() for prompt in members[:config.limit]]
    if len({(prompt.set, prompt.id) for prompt in chosen}) < len(chosen):
        raise UserError(f"every prompt of {config.prompts} must have its own id", param="prompts")
    again = [replace(each, id=f"{each.id}#{copy}") for copy in range(2, getattr(config, "repeat", 1) + 1) for each in chosen]
    return chosen + again


def read(path: Path, default_set: str) -> list[Prompt]:
    """One JSON object a line."""
    try:
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read --prompts {path}: {error}", param="prompts") from None
    if not lines:
        raise UserError(f"--prompts {path} must hold at least one prompt", param="prompts")
    return [_prompt(line, f"{path}, prompt {number}", number, default_set) for number, line in enumerate(lines, 1)]


def _prompt(line: str, where: str, number: int, default_set: str) -> Prompt:
    def wrong(what: str) -> UserError:
        return UserError(f"{where}: {what}", param="prompts")

    try:
        raw = json.loads(line)
    except ValueError as error:
        raise wrong(f"not JSON: {error}") from None
    if not isinstance(raw, dict):
        raise wrong("must be an object with prompt or prompt_ids")
    for key in raw:
        if key not in KEYS:
            raise wrong(f"unknown key {key!r}{nearest(key, KEYS)}")
    text, ids = raw.get("prompt", ""), raw.get("prompt_ids", [])
    if not isinstance(text, str) or not isinstance(ids, list) or not all(type(each) is int and each >= 0 for each in ids):
        raise wrong("prompt must be a string, prompt_ids a list of token ids")
    if bool(text) == bool(ids):
        raise wrong("must hold either prompt or prompt_ids")
    return Prompt(set=str(raw.get("set", default_set)), id=str(raw.get("id", number)), text=text, ids=tuple(ids))


def encode(prompts: Sequence[Prompt], tokenizer: Any, chat: Any) -> list[Prompt]:
    """Fills `ids`: a text is a user message where the model has a chat template, else text to continue."""
    def ids_of(prompt: Prompt) -> tuple[int, ...]:
        if prompt.ids:
            return prompt.ids
        if chat is None:
            return tuple(tokenizer.encode(prompt.text, add_special_tokens=True))
        text = chat.render([{"role": "user", "content": prompt.text}], add_generation_prompt=True)
        return tuple(tokenizer.encode(text, add_special_tokens=False))

    return [Prompt(set=each.set, id=each.id, text=each.text, ids=ids_of(each)) for each in prompts]
