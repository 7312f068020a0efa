"""`python -m radiance_jax.bench speed [MODEL] [flags]`: what drafting gains, against this engine's fastest mode without.

All modes answer the same prompts greedily, with a fixed number of tokens, in one run: prompt by prompt (answers live
one at a time) or pass by pass (several), in an order that changes each time. Where the engine is bit-exact, every answer
of `on`, `off` and `fixed` to a prompt must have the same ids and the same logprob bits, whatever the round and however many
were live: otherwise the exit status is 1. What the figures mean is in `figures.py`.
"""

import os
import sys
from collections.abc import Sequence
from typing import Any

from radiance_jax.bench import record
from radiance_jax.bench.config import FAST, FIXED, OFF, ON, SpeedConfig, numbers
from radiance_jax.bench.door import FAILED, door
from radiance_jax.bench.llama_cpp import LlamaCpp, peers_of
from radiance_jax.bench.prompt_sets import Prompt, load
from radiance_jax.bench.record import log
from radiance_jax.flags import read_config
from radiance_jax.host_devices import ensure_host_devices

PROG = "python -m radiance_jax.bench speed"
WARM_UP_TOKENS = 8


@door
def main(argv: Sequence[str]) -> int:
    """Tables go to stdout, progress to stderr, everything to `--out`. Status 1: bit-exact was promised and not kept."""
    config, remarks = read_config(SpeedConfig, argv, prog=PROG, environ=os.environ,
                                  description="Speed with drafting on against off, in one run.")
    for line in (config.describe(), *remarks):
        log(line)
    record.check_writable(config.out)
    record.check_writable(config.trace_out)
    result = measure(config, argv, load(config), peers_of(config))
    from radiance_jax.bench.speed_report import show
    show(result)
    if config.out is not None:
        record.write(config.out, result)
    for each in result["differences"] if result["bit_exact"] else ():
        log(f"error: bit-exact was not kept: prompt {each['prompt']} of {each['set']}: {each['what']} in {each['in']} "
            f"unlike {each['unlike']}, from token {each['first_at']} on")
    return FAILED if result["bit_exact"] and result["differences"] else 0


def measure(config: SpeedConfig, argv: Sequence[str], prompts: Sequence[Prompt], peers: Sequence[LlamaCpp]) -> dict[str, Any]:
    """Loads, warms up, measures; the whole record."""
    ensure_host_devices(config.mesh_size)
    from radiance_jax.bench.engines import modes, prepare  # after the environment is set
    result = record.environment(PROG, argv, config)
    prompts, engine = prepare(config, prompts)
    with modes(config, engine, log) as made:
        passes, peer_lines, neighbours = _rounds(config, made, prompts, peers)
        result["machine"]["cores_busy_with_others"] = neighbours
        result["engines"] = {mode.name: mode.facts | {
            "compiles_after_warmup": mode.engine.stats().compiles_after_warmup, "prices": mode.engine.prices()} for mode in made}
        if config.trace_out is not None:
            _write_traces(config.trace_out, made[-1].engine.prices(), prompts, passes)
    result["bit_exact"] = any(mode.exact for mode in made if not mode.name.startswith(FAST))
    result["prompts"] = {name: {each.id: len(each.ids) for each in prompts if each.set == name}
                         for name in dict.fromkeys(each.set for each in prompts)}
    result["cells"] = [cell(name, live, {mode.name: passes[name, live, mode.name] for mode in made}, config.seed)
                       for name in result["prompts"] for live in numbers("sequences", config.sequences)]
    result["differences"] = _differences(passes)
    result["peers"] = peer_lines
    return result


def _rounds(config: SpeedConfig, made: Sequence[Any], prompts: Sequence[Prompt], peers: Sequence[LlamaCpp]) -> tuple:
    from radiance_jax.bench.measure import greedy, serve

    for mode in made:
        serve(mode.engine, prompts[:1], greedy(WARM_UP_TOKENS, mode.max_draft_tokens, mode.window), live=1, round=0)
    passes: dict[tuple[str, int, str], list] = {}
    lines, watch = [], record.Neighbours()
    for round in range(config.rounds):
        for name in dict.fromkeys(each.set for each in prompts):
            members = [each for each in prompts if each.set == name]
            for live in numbers("sequences", config.sequences):
                log(f"round {round + 1} of {config.rounds}: {name}, {live} live")
                units = [[each] for each in members] if live == 1 else [members]
                for number, unit in enumerate(units):
                    for mode in turn(made, round + number):
                        params = greedy(config.max_tokens, mode.max_draft_tokens, mode.window)
                        done = serve(mode.engine, unit, params, live=live, round=round)
                        passes.setdefault((name, live, mode.name), []).append(done)
                for peer in turn(peers, round):
                    lines.append({"set": name, "live": live, "round": round,
                                  **peer.run(members, config.max_tokens, live)})
    return passes, lines, watch.cores()


def turn[T](items: Sequence[T], number: int) -> list[T]:
    """The order of `items` at their turn `number`: each comes first, and before and after each other, equally often (a
    mode that always followed the same engine would find the machine's caches as that one left them).

    In:  "abc", 0 to 3    Out: abc, cba, bca, acb
    """
    start = number // 2 % len(items) if items else 0
    order = [*items[start:], *items[:start]]
    return order[::-1] if number % 2 else order


def cell(name: str, live: int, passes: dict[str, list], seed: int) -> dict[str, Any]:
    """The figures of one prompt set with so many answers live: by mode, and mode against mode."""
    from radiance_jax.bench import figures

    answers = {mode: [answer for each in done for answer in each.answers] for mode, done in passes.items()}
    by_mode = {mode: figures.speeds(done) | figures.acceptance([each.stats for each in answers[mode]])
               for mode, done in passes.items()}
    seconds = {mode: figures.seconds_by_prompt(done) for mode, done in passes.items()}
    bases = [mode for mode in by_mode if mode != ON]
    offs = [mode for mode in bases if not mode.startswith(FIXED)]
    fastest = max(offs, key=lambda mode: by_mode[mode]["decode_tokens_per_s"], default=None)
    ratios = {f"{ON}/{base}": _against(base, seconds, passes, seed) for base in bases if ON in by_mode}
    if f"{ON}/{OFF}" in ratios:
        ratios[f"{ON}/{OFF}"]["implied_cycle_cost"] = by_mode[ON]["tokens_per_verify"] / ratios[f"{ON}/{OFF}"]["ratio"]
    exact = next((mode for mode in (OFF, ON) if mode in by_mode), None)
    return {
        "set": name, "live": live, "modes": by_mode, "fastest_off": fastest, "ratios": ratios,
        "ids_as_off_fast": {mode: figures.agreement(answers[exact], answers[mode])
                            for mode in bases if mode.startswith(FAST) and exact},
        "decode_seconds_by_prompt_and_round": seconds,
    }


def _write_traces(path: str, prices: dict[str, Any], prompts: Sequence[Prompt], passes: dict[tuple[str, int, str], list]) -> None:
    """Each prompt's first answer of the engine as configured, for `bench policy`."""
    from radiance_jax.bench import policy_traces

    answers: dict[tuple[str, str], tuple[int, ...]] = {}
    for (name, _, mode), done in passes.items():
        if not mode.startswith(FAST):
            for answer in (answer for each in done for answer in each.answers):
                answers.setdefault((name, answer.prompt), answer.ids)
    policy_traces.write(path, prices, [
        policy_traces.Trace(set=each.set, id=each.id, prompt=each.ids, answer=answers[each.set, each.id])
        for each in prompts if (each.set, each.id) in answers])


def _against(base: str, seconds: dict[str, dict[str, list[float]]], passes: dict[str, list], seed: int) -> dict[str, Any]:
    from radiance_jax.bench import figures

    names = list(seconds[base])
    before, after = ([sum(seconds[mode][each]) for each in names] for mode in (base, ON))
    rounds = sorted({each.round for each in passes[base]})
    by_round = [[figures.speeds([each for each in passes[mode] if each.round == round])["overall_tokens_per_s"]
                 for mode in (base, ON)] for round in rounds]
    return figures.speedup(before, after, seed=seed) | figures.of_rounds([on / off for off, on in by_round], seed=seed)


def _differences(passes: dict[tuple[str, int, str], list]) -> list[dict[str, Any]]:
    """Between all answers of `off`, `on` and `fixed` to the same prompt of the same set."""
    from radiance_jax.bench import figures

    found = []
    for name in dict.fromkeys(key[0] for key in passes):
        answers = [(f"{mode}, {live} live, round {each.round + 1}", answer)
                   for (own, live, mode), done in passes.items() if own == name and not mode.startswith(FAST)
                   for each in done for answer in each.answers]
        found += [{"set": name, **each} for each in figures.differences(answers)]
    return found


if __name__ == "__main__":
    sys.exit(main())
