"""What the policy simulator replays: answers as they were given, and what steps cost.

An answer does not depend on how it was drafted, so prompt and answer ids are the whole trace of prompt lookup: at each
place the proposal and its verdict follow from them. A file is JSON lines: one `{"prices": ...}` (written by an engine) and
one object a request; `bench speed --trace-out FILE` writes it.
"""

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from radiance_jax.errors import UserError, nearest

DEAR_ROW = 0.34  # of a one-row step, that each further row costs in `dear`


@dataclass(frozen=True, kw_only=True)
class Trace:
    set: str
    id: str
    prompt: tuple[int, ...]
    answer: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Prices:
    """`seconds` [n]: of a step of n rows; `charge` as in `spec/cost.py`; `as_planned`: planned rows are paid, found or not."""

    name: str
    seconds: np.ndarray
    charge: tuple[int, ...]
    as_planned: bool = False


def write(path: str, prices: dict[str, Any], traces: Sequence[Trace]) -> None:
    lines = [{"prices": prices}] + [
        {"set": each.set, "id": each.id, "prompt_ids": list(each.prompt), "answer_ids": list(each.answer)} for each in traces]
    Path(path).write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def read(path: str) -> tuple[list[Trace], Prices | None]:
    """Raises `UserError` with the line that is wrong."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read --traces {path}: {error}", param="traces") from None
    traces, prices = [], None
    for number, line in enumerate(lines, 1):
        try:
            raw = json.loads(line)
            if "prices" in raw:
                prices = _prices(raw["prices"])
            else:
                traces.append(Trace(set=str(raw["set"]), id=str(raw["id"]), prompt=tuple(map(int, raw["prompt_ids"])),
                                    answer=tuple(map(int, raw["answer_ids"]))))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{path}, line {number}: not a trace of `bench speed --trace-out`: {error!r}",
                            param="traces") from None
    if not traces or any(not each.prompt or not each.answer for each in traces):
        raise UserError(f"--traces {path} must hold requests with prompt_ids and answer_ids", param="traces")
    return traces, prices


def _prices(raw: dict[str, Any]) -> Prices:
    from radiance_jax.spec.cost import CostTable

    table = CostTable(raw["charge"])
    for rows, seconds in raw["seconds"].items():
        table.observe(int(rows), float(seconds))
    return Prices(name="recorded", seconds=table.curve(4 * len(table.charge)), charge=table.charge,
                  as_planned=bool(raw["as_planned"]))


# ---- made up ----------------------------------------------------------------------------------------------------


def _rows(most: int, seconds: Callable[[int], float], name: str) -> Prices:
    return Prices(name=name, seconds=np.array([seconds(n) for n in range(most)]), charge=tuple(range(most)))


# Not measured: shapes that policies must cope with. Each row of `dear` costs a third of a step, as experts or attention over
# a long context make it: drafting 15 deep at a middling acceptance then costs more than half the speed.
MADE_UP: dict[str, Callable[[int], Prices]] = {
    "dear": lambda most: _rows(most, lambda n: 1 + DEAR_ROW * (n - 1) if n else 1.0, "dear"),
    "flat": lambda most: _rows(most, lambda n: 1 + 0.001 * n, "flat"),
    "knee": lambda most: _rows(most, lambda n: 1.0 if n <= 8 else 1 + 0.25 * (n - 8), "knee"),
}


def prices(name: str, recorded: Prices | None, most: int) -> Prices:
    """By name, or as recorded with the traces."""
    if name == "recorded":
        if recorded is None:
            raise UserError("prices 'recorded' need a --traces file that holds them", param="prices")
        return recorded
    if name not in MADE_UP:
        known = ("recorded", *MADE_UP)
        raise UserError(f"prices are {', '.join(known)}; got {name!r}{nearest(name, known)}", param="prices")
    return MADE_UP[name](most)


def made_up(count: int, tokens: int, seed: int) -> list[Trace]:
    """Texts over few words that repeat themselves a little (`chatter`: lookup proposes nearly everywhere and is seldom
    right for long) or all the time (`copy`: the prompt over again, with a slip now and then), and texts that turn from one
    into the other half way (`turn`)."""
    chance = random.Random(seed)
    traces = []
    for number in range(count):
        words = 24
        habit = {a: chance.choices(range(words), k=3) for a in range(words)}

        def chatter(text: list[int], length: int, habit=habit, words=words) -> None:
            for _ in range(length):
                text.append(chance.choice(habit[text[-1]]) if chance.random() < 0.8 else chance.randrange(words))

        def copy(text: list[int], prompt: Sequence[int], length: int) -> None:
            at = 0
            for _ in range(length):
                text.append(prompt[at % len(prompt)] if chance.random() < 0.98 else 1000 + chance.randrange(50))
                at += 1

        prompt = [100 + chance.randrange(400) for _ in range(tokens)]
        for name in ("chatter", "copy", "turn"):
            start = [chance.randrange(words)]
            chatter(start, 40)
            given, answer = [*prompt, *start], [start[-1]]
            if name in ("chatter", "turn"):
                chatter(answer, tokens // (1 if name == "chatter" else 2))
            if name in ("copy", "turn"):
                copy(answer, prompt, tokens // (1 if name == "copy" else 2))
            traces.append(Trace(set=name, id=str(number), prompt=tuple(given), answer=tuple(answer[1:])))
    return traces
