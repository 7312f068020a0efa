"""`python -m radiance_jax.bench http --url URL [--url NAME=URL] [flags]`: servers over HTTP, side by side.

Any server with OpenAI's `/v1/chat/completions` will do. All get the same user messages, greedily, streamed, over
connections of their own, so many at a time; servers take turns within every round, and only one is asked at a time. A
number in front of each message makes it new, so that no server answers from a cache of prompts it has seen.

TTFT: from asking for the connection to the first chunk with text. Inter-token latency: (last chunk - first chunk) /
(tokens - 1), one value an answer, so that a server which sends several tokens in a chunk is not taken for slower; the
gaps between chunks, which a reader sees, are beside it. tokens/s: all tokens of a pass over its time, prompts included.
"""

import asyncio
import os
import platform
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import SplitResult

from radiance_jax import __version__
from radiance_jax.bench import prompt_sets, record
from radiance_jax.bench.config import BENCH, SETS, numbers, words
from radiance_jax.bench.door import FAILED, door
from radiance_jax.bench.http_client import Reply, ask, first_model, split_url
from radiance_jax.bench.record import log
from radiance_jax.errors import RadianceError, UserError
from radiance_jax.fingerprint import cpu_model
from radiance_jax.flags import read_config
from radiance_jax.settings import Config, setting

PROG = "python -m radiance_jax.bench http"
Pass = tuple[float, list[Reply]]  # seconds, and every reply


@dataclass(frozen=True, kw_only=True)
class HttpConfig(Config):
    """What `bench http` asks, of whom, and how often."""

    url: tuple[str, ...] = setting(
        str, (), "server to measure, as http://HOST:PORT or NAME=http://HOST:PORT; may be repeated (default: "
        "http://127.0.0.1:8000)", BENCH, many=True)
    concurrency: str = setting(str, "1,8,32", "requests under way at once", BENCH)
    requests: int = setting(int, 32, "requests of a pass", BENCH, low=1)
    rounds: int = setting(int, 3, "passes at every concurrency", BENCH, low=1)
    sets: str = setting(str, "ordinary", "prompt sets of this package", BENCH)
    prompts: str | None = setting(str, None, "JSON lines of your own instead: prompt, a user message (default: those "
                                  "of --sets)", BENCH)
    limit: int | None = setting(int, None, "prompts of each set, at most (default: all)", BENCH, low=1)
    max_tokens: int = setting(int, 64, "longest answer, in tokens", BENCH, low=2)
    ignore_eos: bool = setting(bool, True, "ask for answers of exactly max_tokens; no: where it is refused", BENCH)
    extra_body: str | None = setting(str, None, "JSON object of further fields, as in {\"speculative\": {\"enabled\": "
                                     "false}} (default: none)", BENCH)
    api_key: str | None = setting(str, None, "key to send to every server (default: none)", BENCH, secret=True)
    timeout: int = setting(int, 300, "seconds after which a request has failed", BENCH, low=1)
    out: str | None = setting(str, None, "JSON file to write (default: none)", BENCH)

    def __post_init__(self) -> None:
        super().__post_init__()
        words("sets", self.sets, SETS)
        most = max(numbers("concurrency", self.concurrency))
        if most > self.requests:
            raise UserError(f"concurrency must be at most requests ({self.requests}), no more can be under way; got {most}",
                            param="concurrency")
        extra_fields(self)
        targets(self)


@dataclass(frozen=True)
class Target:
    name: str
    url: SplitResult


def targets(config: HttpConfig) -> list[Target]:
    found = []
    for text in config.url or ("http://127.0.0.1:8000",):
        name, equals, url = text.partition("=")
        if not equals or "://" in name:
            name, url = "", text
        parts = split_url(url)
        found.append(Target(name or parts.netloc, parts))
    if len({each.name for each in found}) < len(found):
        raise UserError("every url must have a name of its own: NAME=http://HOST:PORT", param="url")
    return found


def extra_fields(config: HttpConfig) -> dict[str, Any]:
    import json

    try:
        value = json.loads(config.extra_body or "{}")
    except ValueError as error:
        raise UserError(f"extra_body must be a JSON object: {error}", param="extra_body") from None
    if not isinstance(value, dict):
        raise UserError(f"extra_body must be a JSON object; got {config.extra_body}", param="extra_body")
    return value


@door
def main(argv: Sequence[str]) -> int:
    """A table on stdout, progress on stderr, everything in `--out`. Status 1: some request failed."""
    config, remarks = read_config(HttpConfig, argv, prog=PROG, environ=os.environ,
                                  description="Latency and tokens/s of servers over HTTP.")
    for line in (config.describe(), *remarks):
        log(line)
    record.check_writable(config.out)
    result = asyncio.run(measure(config, argv))
    show(result)
    if config.out is not None:
        record.write(config.out, result)
    errors = sum(cell["errors"] for cell in result["cells"])
    return FAILED if errors else 0


async def measure(config: HttpConfig, argv: Sequence[str]) -> dict[str, Any]:
    servers, messages = targets(config), messages_of(config)
    models = {}
    for server in servers:
        models[server.name] = await first_model(server.url, config.api_key)
        hello = body_of(config, models[server.name], "Say hello.", 8)
        reply = await ask(server.url, hello, config.api_key, config.timeout)
        if reply.error:
            raise RadianceError(f"{server.name} does not answer: {reply.error}")
    result = environment(argv, config)
    result["servers"] = {server.name: {"url": server.url.geturl(), "model": models[server.name]} for server in servers}
    passes: dict[tuple[int, str], list[Pass]] = {}
    watch, number = record.Neighbours(), 0
    for round in range(config.rounds):
        for at_once in numbers("concurrency", config.concurrency):
            texts = [f"({number + i}) {messages[i % len(messages)]}" for i in range(config.requests)]
            number += config.requests
            start = round % len(servers)
            for server in servers[start:] + servers[:start]:
                log(f"round {round + 1} of {config.rounds}: {at_once} at once, {server.name}")
                done = await one_pass(config, server, models[server.name], texts, at_once)
                passes.setdefault((at_once, server.name), []).append(done)
    result["machine"]["cores_busy_with_servers_and_others"] = watch.cores()
    first = servers[0].name
    result["cells"] = [figures(at_once, server.name, passes[at_once, server.name], passes[at_once, first])
                       for at_once in numbers("concurrency", config.concurrency) for server in servers]
    return result


def messages_of(config: HttpConfig) -> list[str]:
    prompts = prompt_sets.load(config)
    if not all(each.text for each in prompts):
        raise UserError("prompts must hold user messages (prompt), not token ids: servers have tokenizers of their own",
                        param="prompts")
    return [each.text for each in prompts]


def body_of(config: HttpConfig, model: str, text: str, max_tokens: int) -> dict[str, Any]:
    body = {"model": model, "messages": [{"role": "user", "content": text}], "max_tokens": max_tokens, "temperature": 0,
            "stream": True, "stream_options": {"include_usage": True}}
    return body | ({"ignore_eos": True} if config.ignore_eos else {}) | extra_fields(config)


async def one_pass(config: HttpConfig, server: Target, model: str, texts: Sequence[str], at_once: int) -> Pass:
    """Every reply, in the order of `texts`. When one ends the next is sent."""
    waiting, replies = list(reversed(list(enumerate(texts)))), {}

    async def worker() -> None:
        while waiting:
            place, text = waiting.pop()
            body = body_of(config, model, text, config.max_tokens)
            replies[place] = await ask(server.url, body, config.api_key, config.timeout)

    start = time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(min(at_once, len(texts)))))
    return time.perf_counter() - start, [replies[place] for place in range(len(texts))]


def percentiles(values: Sequence[float]) -> dict[str, float] | None:
    """Median, and the values that 90 and 99 % do not exceed; None of nothing."""
    if not values:
        return None
    ordered = sorted(values)
    return {name: ordered[min(int(share * len(ordered)), len(ordered) - 1)] for name, share in
            (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))}


def figures(at_once: int, name: str, passes: Sequence[Pass], first: Sequence[Pass]) -> dict[str, Any]:
    """All rounds of one server at one concurrency together; tokens/s by round as well, and how many answers have the
    same text as the first server's."""
    replies = [reply for _, each in passes for reply in each]
    good = [reply for reply in replies if reply.error is None and reply.at]
    seconds = sum(taken for taken, _ in passes)
    same = [mine.text == other.text for (_, ours), (_, theirs) in zip(passes, first, strict=True)
            for mine, other in zip(ours, theirs, strict=True)]
    errors = [reply.error or "no text" for reply in replies if reply.error is not None or not reply.at]
    return {
        "server": name, "concurrency": at_once, "requests": len(replies), "errors": len(errors),
        "first_errors": errors[:3],
        "seconds": seconds, "tokens": sum(reply.tokens for reply in good),
        "counted_by_server": all(reply.counted for reply in good),
        "prompt_tokens": sum(reply.prompt_tokens for reply in good),
        "tokens_per_s": sum(reply.tokens for reply in good) / max(seconds, 1e-9),
        "tokens_per_s_by_round": [sum(reply.tokens for reply in each if reply.error is None) / max(taken, 1e-9)
                                  for taken, each in passes],
        "ttft_s": percentiles([reply.at[0] - reply.started for reply in good]),
        "inter_token_s": percentiles([(reply.at[-1] - reply.at[0]) / (reply.tokens - 1) for reply in good
                                      if reply.tokens > 1 and len(reply.at) > 1]),
        "chunk_gap_s": percentiles([b - a for r in good for a, b in zip(r.at, r.at[1:], strict=False)]),
        "latency_s": percentiles([reply.ended - reply.started for reply in good]),
        "text_as_first": sum(same),
    }


def environment(argv: Sequence[str], config: HttpConfig) -> dict[str, Any]:
    """As `record.environment`, without jax: this process measures, and should weigh nothing."""
    def hidden(word: str) -> str:
        return word if config.api_key is None else word.replace(config.api_key, "***")

    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join([*PROG.split(), *map(hidden, argv)]),
        "machine": {"cpu": cpu_model(), "cores": len(os.sched_getaffinity(0)),
                    "system": platform.platform(),
                    "load_average_at_start": [round(each, 2) for each in os.getloadavg()]},
        "versions": {"python": platform.python_version(), "radiance_jax": __version__, "git": record.git_commit()},
        "configuration": {name: value for name, value in vars(config).items()
                          if value is not None and name != "api_key"},
    }


def show(result: dict[str, Any]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    made = Table(title=f"Greedy, {result['configuration']['max_tokens']} tokens an answer, streamed",
                 box=box.SIMPLE_HEAD, title_justify="left")
    for name in ("at once", "server", "tokens/s", "by round", "TTFT p50 ms", "p99", "inter-token p50 ms", "p99",
                 "chunk gap p99", "errors", "same text"):
        made.add_column(name, justify="left" if name == "server" else "right", no_wrap=name == "server")

    def ms(values: dict[str, float] | None, name: str) -> str:
        return "" if values is None else f"{values[name] * 1000:.1f}"

    for cell in result["cells"]:
        made.add_row(
            str(cell["concurrency"]), cell["server"], f"{cell['tokens_per_s']:.1f}",
            " ".join(f"{each:.0f}" for each in cell["tokens_per_s_by_round"]),
            ms(cell["ttft_s"], "p50"), ms(cell["ttft_s"], "p99"),
            ms(cell["inter_token_s"], "p50"), ms(cell["inter_token_s"], "p99"), ms(cell["chunk_gap_s"], "p99"),
            f"{cell['errors']}/{cell['requests']}", f"{cell['text_as_first']}/{cell['requests']}")
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 140
    console.print(made)
    for cell in result["cells"]:
        if cell["errors"]:
            console.print(f"{cell['server']}, {cell['concurrency']} at once: {cell['first_errors'][0]}", markup=False)
    guessed = {cell["server"] for cell in result["cells"] if not cell["counted_by_server"]}
    for name in sorted(guessed):
        console.print(f"{name} gives no usage in streams: its tokens are counted as chunks", markup=False)
    machine = result["machine"]
    console.print(f"load average at start: {machine['load_average_at_start'][0]:.2f} on {machine['cores']} cores")


if __name__ == "__main__":
    sys.exit(main())
