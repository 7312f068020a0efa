"""The page of `bench spec`: one HTML file with everything in it, made from the record alone."""

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from radiance_jax.bench import spec_pictures as pictures
from radiance_jax.bench.spec_figures import drafts, served
from radiance_jax.bench.spec_table import interval, number
from radiance_jax.container.draft_facts import rows as drafter_rows

STYLE = """
:root { color-scheme: light dark; --ink: #1c2026; --soft: #5c6470; --paper: #fcfcfb; --rule: #d5d8dd; --mark: #eef2f7; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e3e5e8; --soft: #9aa2ad; --paper: #15181c; --rule: #3a4048; --mark: #20262e; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 62rem; padding: 2.5rem 1.25rem 4rem; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
h1 { font-size: 1.5rem; line-height: 1.25; margin: 0 0 .25rem; } h2 { font-size: 1.15rem; margin: 2.75rem 0 .5rem; }
h3 { font-size: 1rem; margin: 1.75rem 0 .25rem; }
.lead { font-size: 1.08rem; margin: 1.25rem 0; padding: .85rem 1.1rem; background: var(--mark); border-left: 3px solid #3d7fc4; }
.soft, figcaption, caption { color: var(--soft); font-size: .9rem; }
figure { margin: 1.25rem 0 1.75rem; } figcaption { margin-top: .35rem; max-width: 54rem; }
svg { display: block; width: 100%; height: auto; } svg text { font-family: inherit !important; }
.wide { overflow-x: auto; } table { border-collapse: collapse; width: 100%; margin: .75rem 0 1.25rem; font-size: .9rem; }
caption { text-align: left; padding-bottom: .4rem; }
th, td { padding: .28rem .6rem; text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
th { font-weight: 600; border-bottom: 1px solid var(--ink); vertical-align: bottom; } td { border-bottom: 1px solid var(--rule); }
th:first-child, td:first-child, td.word, th.word { text-align: left; } td.word { white-space: normal; }
tr.first td { border-top: 1px solid var(--soft); } tr.served td { font-weight: 600; }
dt { font-weight: 600; margin-top: .6rem; } dd { margin: 0; }
"""


def write(path: str, result: dict[str, Any]) -> None:
    Path(path).write_text(page(result), encoding="utf-8")


def page(result: dict[str, Any]) -> str:
    """A record, as `--out` has it, to the whole page."""
    cells = result["cells"]
    name = escape(str(result["model"]))
    drafter = result["drafter"]
    with_ = f" with {escape(drafter['family'])}" if drafter else ", without a drafter"
    parts = [f"<h1>What drafting does: {name}{with_}</h1>",
             f"<p class=soft>{escape(result['date'])}, {escape(result['machine']['device'])}</p>",
             f"<p class=lead>{escape(result['headline'])}</p>"]
    if result["measured"]["units"] < result["measured"]["of"]:
        parts.append(f"<p><strong>Ended {escape(result['measured']['ended'])}</strong>, with {result['measured']['units']} of "
                     f"{result['measured']['of']} units measured: intervals are wide, and sets may be missing.</p>")
    for live in dict.fromkeys(one["live"] for one in cells):
        parts += _of_live(cells, result["summary"], live)
    parts += ["<h2>Time of a step</h2>", _picture(
        pictures.step_times(result["steps"]),
        "Mean time of a step by the rows that went through the model, prompts' steps included. Drafting pays where the line is "
        "flat: a step with drafts then costs little more than one without. Modes with a drafter carry its pass.")]
    parts += _exactness(result) + _circumstances(result)
    return (f"<!doctype html>\n<html lang=en>\n<head><meta charset=utf-8><meta name=viewport content='width=device-width, "
            f"initial-scale=1'><title>Drafting: {name}</title><style>{STYLE}</style></head>\n<body>\n" + "\n".join(parts)
            + "\n</body>\n</html>\n")


def _of_live(cells: Sequence[dict[str, Any]], summary: Sequence[dict[str, Any]], live: int) -> list[str]:
    title = "One answer at a time" if live == 1 else f"{live} answers at a time"
    parts = [f"<h2>{title}</h2>"]
    if pictures.pictured(cells, live):
        parts.append(_picture(pictures.by_set(cells, live, "speed-up"), (
            "Decoding speed over that of the fastest mode without drafting, by set, the worst on top. Right of the line drafting "
            "gains. Bars: 95 % over prompts; another choice of prompts would move the mark so far.")))
    parts.append(_picture(pictures.by_set(cells, live, "tokens"), (
        "Tokens committed by a verify step of the target (1: no draft was ever right). A mode without “fixed” leaves drafts "
        "that would not pay, so it may commit fewer and still be faster.")))
    if any(any(one["positions"]["accepted"]) for one in summary if one["live"] == live):
        parts.append(_picture(pictures.acceptance(cells, summary, live), (
            "Share of drafts accepted by place in the draft, over all sets. Full lines: of the drafts that all earlier ones were "
            "right for (conditional); dashed: of all drafts (cumulative). Thin lines: the sets one by one, conditional.")))
    if pictures.pictured(cells, live):
        parts.append(_picture(pictures.cost(cells, live), (
            "Speed-up S against tokens a verify step L; a mark is a set. c = L / S is what a step with drafts costs, counted in "
            "steps of the fastest off: on the line c = 1 drafting is free, below S = 1 it loses.")))
    for temperature in dict.fromkeys(one["temperature"] for one in cells if one["live"] == live):
        parts.append(_overall([one for one in summary if (one["live"], one["temperature"]) == (live, temperature)], temperature))
        parts.append(_table([one for one in cells if (one["live"], one["temperature"]) == (live, temperature)], temperature))
    return parts


def _picture(svg: str, caption: str) -> str:
    return f"<figure>{svg}<figcaption>{escape(caption)}</figcaption></figure>"


def _html_table(caption: str, columns: Sequence[str], rows: Sequence[tuple[str, Sequence[str]]],
                words: tuple[int, ...] = (0,)) -> str:
    """Rows of (class, cells). Columns with a number in `words` are set to the left."""
    def line(tag: str, cells: Sequence[str]) -> str:
        return "".join(f"<{tag}{' class=word' if i in words else ''}>{escape(text)}</{tag}>" for i, text in enumerate(cells))

    body = "\n".join(f"<tr{f' class={chr(34)}{kind}{chr(34)}' if kind else ''}>{line('td', cells)}</tr>" for kind, cells in rows)
    return (f"<div class=wide><table><caption>{escape(caption)}</caption><thead><tr>{line('th', columns)}</tr></thead>\n"
            f"<tbody>{body}</tbody></table></div>")


def _table(cells: Sequence[dict[str, Any]], temperature: float) -> str:
    rows = []
    for one in cells:
        for at, (name, mode) in enumerate(one["modes"].items()):
            found = one["against_fastest_off"].get(name)
            kind = " ".join((["first"] if at == 0 else []) + (["served"] if name == served(one) else []))
            rows.append((kind, (
                f"{one['set']} ({len(one['prompts'])})" if at == 0 else "", name + (" *" if name == one["fastest_off"] else ""),
                f"{mode['decode_tokens_per_s']:.1f}", number(found and found["ratio"]), interval(found and found["ratio_ci95"]),
                number(mode["tokens_per_verify"]) if drafts(name) else "", number(found and drafts(name) and found["cycle_cost"]),
                number(mode["accepted_share_of_drafted_tokens"]), *_sources(mode))))
    return _html_table(
        f"Temperature {temperature:g}, set by set, the worst first (prompts in brackets). * the fastest off; bold: the mode "
        "served.",
        ("set", "mode", "tokens/s", "speed-up", "95 %", "L", "c", "accepted", "by drafter", "by lookup"), rows, (0, 1))


def _sources(mode: dict[str, Any]) -> tuple[str, str]:
    """Accepted drafts by who made them."""
    made = mode["by_proposer"]
    return tuple(str(made[who]["accepted"]) if who in made else "" for who in ("neural", "lookup"))


def _overall(summary: Sequence[dict[str, Any]], temperature: float) -> str:
    def places(one: dict[str, Any]) -> str:
        return " ".join(f"{rate:.2f}" if rate is not None else "–" for rate in one["positions"]["conditional"])

    rows = [("", (one["mode"], number(one["tokens_per_verify"]) if drafts(one["mode"]) else "", number(one["speedup"]),
                  one["worst_set"] or "", number(one["worst_speedup"]), places(one))) for one in summary]
    sets = max((one["sets"] for one in summary), default=0)
    return _html_table(
        f"Temperature {temperature:g}, over all {sets} sets: mean L, geometric mean of speed-ups, the worst set, and the "
        "conditional acceptance of draft 1, 2, ...", ("mode", "L", "speed-up", "worst set", "there", "acceptance by place"), rows,
        (0, 3, 5))


def _exactness(result: dict[str, Any]) -> list[str]:
    compared, differ = result["answers_compared"], result["differences"]
    said = ("This engine promises that drafting changes no bit." if result["bit_exact"] else
            "This engine does not promise it here (bit-exact: off): roundings depend on how many rows a step has.")
    parts = ["<h2>Same answers</h2>",
             f"<p>{said} {compared} answers were held against the first to the same prompt, over all modes but off-fast, "
             f"in token ids and logprob bits: {len(differ)} differ.</p>"]
    if differ:
        rows = [("", (each["set"], f"{each['temperature']:g}", each["prompt"], each["what"], each["in"], each["unlike"],
                      str(each["first_at"]))) for each in differ[:20]]
        parts.append(_html_table(f"Answers that differ{', the first 20' if len(differ) > 20 else ''}.", (
            "set", "T", "prompt", "what", "in", "unlike", "from token"), rows, (0, 2, 3, 4, 5)))
    return parts


def _engines(engines: dict[str, dict[str, Any]]) -> dict[str, str]:
    """What was decided at start-up, once for all modes that share it."""
    said: dict[str, list[str]] = {}
    for name, each in engines.items():
        text = (f"{each['dtype']}, bit-exact {'on' if each['exact'] else 'off'}, drafts of at most {each['depth']}, "
                f"of lookup {each['lookup']}")
        said.setdefault(text, []).append(name)
    return {", ".join(names): text for text, names in said.items()}


def _circumstances(result: dict[str, Any]) -> list[str]:
    parts = ["<h2>Circumstances</h2>"]
    if result["drafter"]:
        parts.append(_html_table("The drafter.", ("", ""), [("", row) for row in drafter_rows(result["drafter"])], (0, 1)))
    machine, busy = result["machine"], result["machine"].get("cores_busy_with_others")
    facts = {
        "command": result["command"],
        "machine": f"{machine['device']} x {machine['devices']}, {machine['cpu']}, {machine['cores']} cores",
        "versions": ", ".join(f"{name} {value}" for name, value in result["versions"].items()),
        "measured": f"{result['measured']['units']} of {result['measured']['of']} units, ended: {result['measured']['ended']}",
        **({} if busy is None else {"cores busy with other programs": f"{busy:g}"}),
        **_engines(result["engines"])}
    parts.append(_html_table("How this was measured.", ("", ""), [("", row) for row in facts.items()], (0, 1)))
    parts.append("""<h2>Words</h2><dl>
<dt>off, off-fast</dt><dd>Without drafts: in the engine as configured, and in one that is not bit-exact, in its faster dtype.
Speed-ups are over the faster of the two, chosen set by set on the same figures, which favours the base.</dd>
<dt>lookup, drafter, both</dt><dd>Prompt lookup alone (in an engine without the drafter), the drafter alone, and both as served:
copied spans where they promise more. Each drafts as deep as it pays; with <em>:fixed</em>, as deep as it may, always.</dd>
<dt>tokens/s</dt><dd>Tokens after each answer's first, over the time in which at least one answer was being decoded.</dd>
<dt>L, c, accepted</dt><dd>Tokens a verify step; the cost of such a step in steps of the fastest off, L over speed-up; the
share of drafted tokens that were accepted.</dd>
<dt>sets</dt><dd>Spec-Bench's six tasks, HumanEval, GSM8K test, MT-Bench: first turns, answered until the model ends or the
limit of tokens. None may be trained on.</dd></dl>""")
    return parts
