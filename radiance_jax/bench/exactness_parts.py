"""Records of parts of one `bench exactness` to one record: parts are other prompts, other axes, or both."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from radiance_jax.errors import UserError

# Flags that parts may differ in. (one_in: every circumstance says how many cases it had.)
OWN = ("axes", "soak", "one_in", "part", "cores", "processes", "oracles", "limit_minutes", "merge", "out")
LARGEST = ("longest_run", "different_depths", "pages")  # of activity: not sums
WHOLE = "1/1"


def part_of(text: str) -> tuple[int, int]:
    """In: "3/8"  Out: (3, 8). Raises `UserError`."""
    number, slash, count = text.partition("/")
    if not (slash and all(each.isascii() and each.isdigit() for each in (number, count)) and 1 <= int(number) <= int(count)):
        raise UserError(f"part must be like 3/8, the third of eight; got {text!r}", param="part")
    return int(number), int(count)


def share(count: int, part: tuple[int, int]) -> int:
    """Of `count` things, as many as fall to this part."""
    return (count + part[1] - part[0]) // part[1]


def read(path: str) -> dict[str, Any]:
    try:
        record = json.loads(Path(path).read_text(encoding="utf-8"))
        if not {"asked", "covered", "axes", "unfinished", "manifest", "requests", "seconds"} <= record.keys():
            raise ValueError("keys are missing")
    except (OSError, ValueError, AttributeError) as error:
        raise UserError(f"merge takes files written by `bench exactness --out`; {path}: {error}", param="merge") from None
    return record


def merge(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Cases and differences are added up, axis by axis. Raises `UserError` for records that do not belong together, or
    that hold the same part of an axis twice."""
    first = records[0]
    for other in records[1:]:
        for name in ("manifest", "versions", "configuration"):
            mine, theirs = (_shared(each) if name == "configuration" else each[name] for each in (first, other))
            if mine != theirs:
                what = sorted(key for key in mine.keys() | theirs.keys() if mine.get(key) != theirs.get(key))
                raise UserError(f"merge takes records of one {name}; these differ in {', '.join(what)}", param="merge")
    covered: dict[str, list[str]] = {}
    for each in records:
        for axis, parts in each["covered"].items():
            twice = set(parts) & set(covered.get(axis, ()))
            if twice:
                raise UserError(f"part {min(twice)} of axis {axis} is in two of the records; give each once", param="merge")
            covered[axis] = sorted([*covered.get(axis, ()), *parts], key=part_of)
    asked = list(dict.fromkeys(axis for each in records for axis in each["asked"]))
    made = {key: value for key, value in first.items() if key not in ("stopped", "seconds")}
    made["configuration"] = _shared(first)
    stopped = sorted({each["stopped"] for each in records if each.get("stopped")})
    unfinished = [one for each in records for one in each["unfinished"] if one["part"] not in covered.get(one["axis"], ())]
    requests = {(one["prompt"], one["way"]): one for each in records for one in each["requests"]}
    missing = [axis for axis in asked if not is_whole(covered.get(axis, ()))]
    return made | {
        "complete": not missing, "missing": missing, "asked": asked, "covered": covered,
        "compiles_after_warmup": sum(each["compiles_after_warmup"] for each in records),
        "seconds": max(each["seconds"] for each in records), "requests": list(requests.values()),
        "axes": _added([one for each in records for one in each["axes"]], asked), "unfinished": unfinished,
    } | ({"stopped": "; ".join(stopped)} if stopped and missing else {})


def is_whole(parts: Sequence[str]) -> bool:
    """Whether these are all parts of one division."""
    return bool(parts) and sorted(map(part_of, parts)) == [(i + 1, part_of(parts[0])[1]) for i in range(part_of(parts[0])[1])]


def _shared(record: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in record["configuration"].items() if key not in OWN}


def _added(outcomes: Sequence[dict[str, Any]], asked: Sequence[str]) -> list[dict[str, Any]]:
    """One outcome for each circumstance, in the order of the axes; the seconds are the slowest part's."""
    sums: dict[tuple[str, str], dict[str, Any]] = {}
    for each in outcomes:
        key = each["axis"], each["circumstance"]
        if key not in sums:
            sums[key] = {**each, "differences": list(each["differences"]), "activity": dict(each["activity"])}
            continue
        mine = sums[key]
        mine["cases"] += each["cases"]
        mine["differences"] += each["differences"]
        mine["proven"] = mine["proven"] and each["proven"]
        mine["seconds"] = max(mine["seconds"], each["seconds"])
        for name, value in each["activity"].items():
            had = mine["activity"].get(name, 0)
            mine["activity"][name] = max(had, value) if name in LARGEST else had + value
    return sorted(sums.values(), key=lambda each: asked.index(each["axis"]))
