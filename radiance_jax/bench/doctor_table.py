"""What `bench doctor` prints: the readings by what they get accepted, the diagnosis, and what became of planted faults."""

from typing import Any

from rich.console import Console

from radiance_jax.bench.speed_report import table

Row = tuple[str, ...]


def rows(result: dict[str, Any]) -> list[Row]:
    """The declared reading, then its neighbours, the best first: figures in drafts an anchor and a step, tokens a verify step."""
    def figures(each: dict[str, Any]) -> Row:
        return f"{each['accepted_an_anchor']:.3f}", f"{each['accepted_a_step']:.3f}", f"{each['tokens_per_verify']:.2f}"

    first = result["declared"]
    return [(first["kind"], first["what"], *figures(first), "", "", "")] + [
        (each["kind"], each["what"], *figures(each), f"{each['gain']:+.3f}",
         "" if each["error"] is None else f"{each['error']:.3f}", "clearly better" if each["clearly_better"] else "")
        for each in result["neighbours"]]


def show(result: dict[str, Any]) -> None:
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 140
    console.print(table("Drafts accepted under each reading (an anchor: over all places of all answers)",
                        ("reading", "what", "an anchor", "a step", "tokens/verify", "gain", "std. error", ""), rows(result)))
    apart = result["replay_and_engine_apart"]
    console.print(f"the engine: {result['engine']['accepted_a_step']:.3f} a step, {result['engine']['tokens_per_verify']:.2f} "
                  f"tokens a verify step; {apart['steps']:g} of {apart['of']} steps unlike the replay's"
                  + ("" if result["agrees"] else ": they DISAGREE, so the engine does not read the drafter as declared"))
    console.print(f"\n{result['diagnosis']['text']}\n")
    if result["planted"]:
        console.print(table("Planted faults", ("fault", "result", "planted", "an anchor, sound", "planted", "named"), [
            (each["plant"], each["result"], each.get("what", "").removeprefix("planted: "), _number(each.get("sound")),
             _number(each.get("planted")), each.get("named") or "") for each in result["planted"]]))


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"
