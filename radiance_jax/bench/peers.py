"""`python -m radiance_jax.bench peers [MODEL] [flags]`: this engine beside Hugging Face transformers and any OpenAI server.

All answer the same prompts greedily, one at a time, with the same number of tokens, in one run: prompt by prompt, in an
order that changes each time. transformers runs the same weights in a process and a Python of its own (`--peer-python`),
with a static cache and with prompt lookup; servers are named by address (`--url`).

decode: tokens after the first ones, over the time after them. overall: all tokens over all time, prompts included. The
ratio is how many times longer one takes for the same answers than we do (`on`, if it is measured), prompts included, with an
interval from resampling prompts. A server is measured through HTTP, which costs it a millisecond or so an answer, and one
that keeps prompts it has seen finds each again in every round but the first: turn that off for a fair comparison.
"""

import os
import statistics
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from radiance_jax.bench import record
from radiance_jax.bench.config import BENCH, MODES, OFF, ON, SETS, words
from radiance_jax.bench.door import door
from radiance_jax.bench.http import targets
from radiance_jax.bench.peer_answers import Answer, Peer, Server, Transformers, TransformersMode, ours
from radiance_jax.bench.prompt_sets import Prompt, load
from radiance_jax.bench.record import log
from radiance_jax.bench.speed import WARM_UP_TOKENS, turn
from radiance_jax.config import EngineConfig
from radiance_jax.container.default_model import model_file
from radiance_jax.errors import UserError
from radiance_jax.flags import read_config
from radiance_jax.host_devices import ensure_host_devices
from radiance_jax.settings import setting

PROG = "python -m radiance_jax.bench peers"
PEERS = ("static", "lookup", "dynamic")


@dataclass(frozen=True, kw_only=True)
class PeersConfig(EngineConfig):
    """Who is measured, and on what."""

    modes: str = setting(str, "on,off", "of this engine: on, off: as configured, with and without drafting; off-fast: not "
                         "bit-exact, no drafting", BENCH)
    peers: str | None = setting(str, None, "of transformers: static (cache of a fixed size), lookup (prompt lookup decoding), "
                                "dynamic; separated by commas (default: none)", BENCH)
    peer_python: str = setting(str, sys.executable, "a Python that has torch and transformers", BENCH)
    peer_dtype: str | None = setting(str, None, "dtype of the peer's weights (default: this engine's)", BENCH,
                                     choices=("bf16", "f32"))
    peer_threads: int | None = setting(int, None, "the peer's threads (default: torch's own)", BENCH, low=1)
    peer_device: str = setting(str, "auto", "where the peer runs: auto, cpu, cuda, ...", BENCH)
    lookup_tokens: int = setting(int, 10, "tokens that transformers' prompt lookup proposes, at most", BENCH, low=1)
    url: tuple[str, ...] = setting(str, (), "OpenAI server to measure, as http://HOST:PORT or NAME=http://HOST:PORT; may be "
                                   "repeated (default: none)", BENCH, many=True)
    api_key: str | None = setting(str, None, "key to send to every server (default: none)", BENCH, secret=True)
    timeout: int = setting(int, 300, "seconds after which a server's answer has failed", BENCH, low=1)
    sets: str = setting(str, "ordinary,copy", "prompt sets of this package; tasks: Spec-Bench, a set for each task", BENCH)
    prompts: str | None = setting(str, None, "JSON lines of your own instead: prompt (a user message) or prompt_ids, and "
                                  "set, id if you like (default: those of --sets)", BENCH)
    limit: int | None = setting(int, None, "prompts of each set, at most (default: all)", BENCH, low=1)
    max_tokens: int = setting(int, 64, "tokens of every answer; the end token is ignored", BENCH, low=2)
    rounds: int = setting(int, 3, "times everything is measured", BENCH, low=1)
    out: str | None = setting(str, None, "JSON file to write (default: none)", BENCH)

    sequences = "1"  # as the engines of `bench speed` read it: one answer at a time
    fast_dtypes = None

    def __post_init__(self) -> None:
        super().__post_init__()
        words("modes", self.modes, MODES)
        words("sets", self.sets, SETS)
        if self.peers is not None:
            words("peers", self.peers, PEERS)
        if self.peers is None and not self.url:
            raise UserError("give --peers static,lookup (transformers) or --url http://HOST:PORT (a server), or both; to measure "
                            "this engine alone there is bench speed", param="peers")
        if self.url:
            targets(self)


@door
def main(argv: Sequence[str]) -> int:
    """A table on stdout, progress on stderr, everything in `--out`."""
    config, remarks = read_config(PeersConfig, argv, prog=PROG, environ=os.environ,
                                  description="This engine beside transformers and OpenAI servers, in one run.")
    for line in (config.describe(), *remarks):
        log(line)
    record.check_writable(config.out)
    prompts = load(config)
    if config.url and not all(each.text for each in prompts):
        raise UserError("prompts must hold user messages (prompt), not token ids, where servers are measured: they have "
                        "tokenizers of their own", param="prompts")
    ensure_host_devices(config.mesh_size)
    dtype = "bf16" if config.dtype == "auto" else config.dtype
    path = model_file(config.model, config.cache_dir, dtype, log)
    config = replace(config, model=str(path))
    hidden = argv if config.api_key is None else [word.replace(config.api_key, "***") for word in argv]
    result = record.environment(PROG, hidden, config)
    result["configuration"].pop("api_key", None)
    with ExitStack() as stack:
        peers = others(config, dtype, stack)
        measure(config, prompts, peers, result)
    if config.out is not None:
        record.write(config.out, result)
    from radiance_jax.bench.peers_report import show
    show(result)
    return 0


def others(config: PeersConfig, dtype: str, stack: ExitStack) -> list[Peer]:
    """Those who are measured beside this engine, ready."""
    found: list[Peer] = []
    if config.peers is not None:
        if Path(config.model).suffix == ".gguf":
            raise UserError("the model must be a folder or a .rad to be measured beside transformers; make one with python -m "
                            f"radiance_jax.convert {config.model} OUT.rad", param="model")
        if not Path(config.peer_python).is_file():
            raise UserError(f"peer_python: no such file: {config.peer_python}", param="peer_python")
        options = ["--dtype", config.peer_dtype or dtype, "--device", config.peer_device]
        options += ["--threads", str(config.peer_threads)] if config.peer_threads else []
        process = Transformers(config.peer_python, config.model, [*options, "--lookup-tokens", str(config.lookup_tokens)])
        stack.callback(process.close)
        found += [TransformersMode(process, mode) for mode in words("peers", config.peers)]
    servers = targets(config) if config.url else ()
    return found + [Server(each.name, each.url, config.api_key, config.timeout) for each in servers]


def measure(config: PeersConfig, prompts: Sequence[Prompt], peers: Sequence[Peer], result: dict[str, Any]) -> None:
    """Puts servers' and engines' facts, and the figures of all, into `result`."""
    from radiance_jax.bench.engines import modes, prepare  # after the environment is set

    prompts, engine = prepare(config, prompts)
    with modes(config, engine, log) as made:
        ranks = {ON: 0, OFF: 1}
        everyone: list[Peer] = [*map(Ours, sorted(made, key=lambda mode: ranks.get(mode.name, 2))), *peers]
        for each in everyone:
            each.answer(prompts[:1], WARM_UP_TOKENS)
        answers: dict[tuple[str, str], list[Answer]] = {}
        watch = record.Neighbours()
        for round in range(config.rounds):
            for number, prompt in enumerate(prompts):
                if number == 0 or prompt.set != prompts[number - 1].set:
                    log(f"round {round + 1} of {config.rounds}: {prompt.set}")
                for each in turn(everyone, round + number):
                    answers.setdefault((prompt.set, each.name), []).extend(each.answer([prompt], config.max_tokens))
        result["machine"]["cores_busy_with_peers_and_others"] = watch.cores()
        result["who"] = {each.name: each.facts for each in everyone}
        tokenizer, first = made[0].engine.tokenizer, everyone[0].name
        result["cells"] = [cell(name, each.name, answers[name, first], answers[name, each.name], tokenizer, config.seed)
                           for name in dict.fromkeys(prompt.set for prompt in prompts) for each in everyone]


class Ours:
    """A mode of this engine as one of those measured."""

    def __init__(self, mode: Any):
        self.name, self.facts, self._mode = f"radiance_jax {mode.name}", mode.facts, mode

    def answer(self, prompts: Sequence[Prompt], max_tokens: int) -> list[Answer]:
        from radiance_jax.bench.measure import greedy, serve
        params = replace(greedy(max_tokens, self._mode.max_draft_tokens, self._mode.window), logprobs=None)
        return ours(serve(self._mode.engine, prompts, params, live=1, round=0))


def cell(name: str, who: str, first: Sequence[Answer], answers: Sequence[Answer], tokenizer: Any, seed: int) -> dict[str, Any]:
    """The figures of one on a prompt set, beside those of the first."""
    from radiance_jax.bench.figures import speedup

    def seconds(of: Sequence[Answer]) -> list[float]:
        return [sum(each.seconds for each in of if each.prompt == prompt) for prompt in dict.fromkeys(each.prompt for each in of)]

    later = sum(each.tokens - each.first_tokens for each in answers)
    decoding = sum(each.seconds - each.first_seconds for each in answers)
    return {
        "set": name, "who": who, "answers": len(answers), "tokens": sum(each.tokens for each in answers),
        "seconds": sum(each.seconds for each in answers),
        "decode_tokens_per_s": later / max(decoding, 1e-9),
        "overall_tokens_per_s": sum(each.tokens for each in answers) / max(sum(each.seconds for each in answers), 1e-9),
        "ttft_median_s": statistics.median(each.first_seconds for each in answers),
        "longer_than_first": speedup(seconds(answers), seconds(first), seed=seed),
        "agreement": agreement(first, answers, tokenizer),
        "seconds_of_each": [(each.prompt, each.seconds) for each in answers],
    }


def agreement(first: Sequence[Answer], answers: Sequence[Answer], tokenizer: Any) -> dict[str, Any]:
    """In how many answers ids (of a server: the text) are those of the first's answer to the same prompt, and after how many
    tokens they part otherwise."""
    reference = {each.prompt: each.ids for each in first}
    equal, before = 0, []
    for each in answers:
        wanted = reference[each.prompt]
        if each.ids is None:
            equal += each.text == tokenizer.decode(list(wanted))
            continue
        equal += each.ids == wanted
        before.append(next((i for i, (a, b) in enumerate(zip(each.ids, wanted, strict=False)) if a != b), len(wanted)))
    return {"equal": equal, "of": len(answers),
            "mean_tokens_before_the_first_difference": statistics.fmean(before) if before else None}
