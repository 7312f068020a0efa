"""`python -m radiance_jax.generate [model] --prompt TEXT | --chat TEXT [flags]`: one answer on the terminal."""

import os
import queue
import sys
import time
from collections.abc import Sequence
from typing import Any

from radiance_jax.config import GenerateConfig
from radiance_jax.engine.request import Delta, RequestStats
from radiance_jax.errors import RadianceError, UserError
from radiance_jax.flags import read_config
from radiance_jax.host_devices import ensure_host_devices
from radiance_jax.text.chat import no_template

WRONG_CONFIGURATION, FAILED = 2, 1


def main(argv: Sequence[str] | None = None) -> int:
    """The answer goes to stdout, everything else to stderr. Exit status as in `serve`."""
    try:
        config, remarks = read_config(
            GenerateConfig, sys.argv[1:] if argv is None else argv, prog="python -m radiance_jax.generate",
            environ=os.environ, description="Answers one prompt and says how fast.")
        if (config.prompt is None) == (config.chat is None):
            raise UserError("give either --prompt or --chat", param="prompt")
        if config.system is not None and config.chat is None:
            raise UserError("--system goes with --chat", param="system")
        for line in (config.describe(), *remarks):
            log(line)
        ensure_host_devices(config.mesh_size)
        from radiance_jax.engine.engine import Engine  # after the environment is set
        engine = Engine.load(config, log)
        try:
            answer(engine, config)
        finally:
            engine.close()
        return 0
    except RadianceError as error:
        log(f"error: {error}")
        return WRONG_CONFIGURATION if isinstance(error, UserError) else FAILED
    except KeyboardInterrupt:
        return 130


def log(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def prompt_ids(engine: Any, config: GenerateConfig) -> list[int]:
    if config.prompt is not None:
        return engine.tokenizer.encode(config.prompt, add_special_tokens=True)
    if engine.chat is None:
        raise no_template("use --prompt")
    system = [] if config.system is None else [{"role": "system", "content": config.system}]
    text = engine.chat.render([*system, {"role": "user", "content": config.chat}], add_generation_prompt=True)
    return engine.tokenizer.encode(text, add_special_tokens=False)


def answer(engine: Any, config: GenerateConfig) -> None:
    """Streams the answer and sums it up."""
    news: queue.SimpleQueue[Delta] = queue.SimpleQueue()
    start = time.monotonic()
    sequence = engine.submit(prompt_ids(engine, config), config.sampling(engine.defaults), news.put)
    delta = Delta()
    try:
        while delta.finish_reason is None:
            delta = news.get()
            sys.stdout.write(delta.text)
            sys.stdout.flush()
    except BaseException:
        engine.abort(sequence)
        raise
    print(flush=True)
    if delta.finish_reason == "error":
        raise RadianceError(delta.error or "the engine failed on this request")
    if delta.stats is not None:
        for line in summary(delta.stats, delta.finish_reason, time.monotonic() - start):
            log(line)


def summary(stats: RequestStats, reason: str, seconds: float) -> list[str]:
    """Speed of decoding leaves out the prompt; `tokens per verify` leaves out the token that prefill emits."""
    lines = [f"{stats.prompt_tokens} prompt tokens ({stats.cached_tokens} cached), {stats.completion_tokens} tokens in "
             f"{seconds:.2f} s, ended by {reason}"]
    decoded = stats.completion_tokens - 1
    if stats.first_token is not None and stats.finished is not None and decoded > 0:
        decoding = max(stats.finished - stats.first_token, 1e-9)
        wait = stats.first_token - stats.arrival
        lines.append(f"first token after {wait:.3f} s, then {decoded / decoding:.1f} tok/s")
    if stats.num_decode_steps and decoded > 0:
        lines.append(f"{decoded / stats.num_decode_steps:.2f} tokens per verify over {stats.num_decode_steps} steps, "
                     f"{stats.num_accepted_draft_tokens} of {stats.num_draft_tokens} drafts accepted")
    return lines


if __name__ == "__main__":
    sys.exit(main())
