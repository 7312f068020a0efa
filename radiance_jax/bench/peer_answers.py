"""What `bench peers` knows of an answer, whoever gave it, and those who give them: this engine, transformers, servers."""

import asyncio
import json
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import SplitResult

from radiance_jax.bench.figures import Pass
from radiance_jax.bench.http_client import ask, first_model
from radiance_jax.bench.prompt_sets import Prompt
from radiance_jax.errors import RadianceError, UserError

TRANSFORMERS = Path(__file__).with_name("peer_transformers.py")


@dataclass(frozen=True, kw_only=True)
class Answer:
    """`first_seconds` after the request `first_tokens` were there, after `seconds` all. A server gives text, the others ids."""

    prompt: str
    tokens: int
    seconds: float
    first_seconds: float
    first_tokens: int = 1
    ids: tuple[int, ...] | None = None
    text: str | None = None


class Peer(Protocol):
    """Someone who answers prompts greedily, one after the other, with exactly `max_tokens` tokens each."""

    name: str
    facts: dict[str, Any]

    def answer(self, prompts: Sequence[Prompt], max_tokens: int) -> list[Answer]:
        """Raises `RadianceError` where it fails."""


def ours(done: Pass) -> list[Answer]:
    """This engine's answers, by its own clock."""
    return [Answer(prompt=each.prompt, tokens=len(each.ids), seconds=each.stats.finished - each.stats.arrival,
                   first_seconds=each.stats.first_token - each.stats.arrival, ids=each.ids) for each in done.answers]


class Transformers:
    """A process that has loaded the model and waits for tasks; several modes share it. Close it."""

    def __init__(self, python: str, model: str, options: Sequence[str] = ()):
        self._errors = tempfile.TemporaryFile("w+")
        try:
            self._process = subprocess.Popen([python, str(TRANSFORMERS), "--model", model, *options], stdin=subprocess.PIPE,
                                             stdout=subprocess.PIPE, stderr=self._errors, text=True)
        except OSError as error:
            raise UserError(f"peer_python must be a Python that can be started; {python} cannot ({error.strerror})",
                            param="peer_python") from None
        self.facts: dict[str, Any] = self._read()

    def ask(self, task: dict[str, Any]) -> dict[str, Any]:
        try:
            self._process.stdin.write(json.dumps(task) + "\n")
            self._process.stdin.flush()
        except OSError:
            pass  # it has ended: reading says why
        return self._read()

    def _read(self) -> dict[str, Any]:
        line = self._process.stdout.readline()
        try:
            return json.loads(line)
        except ValueError:
            status = self._process.wait()
            self._errors.seek(0)
            tail = "\n".join(self._errors.read().strip().splitlines()[-3:])
            raise RadianceError(f"the peer {TRANSFORMERS.name} ended with status {status}:\n{tail}") from None

    def close(self) -> None:
        with suppress(OSError):  # it has ended, with a task on the way to it
            self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()
        self._errors.close()


class TransformersMode:
    def __init__(self, process: Transformers, mode: str):
        self.name, self._process, self._mode = f"transformers {mode}", process, mode
        self.facts = process.facts | {"mode": mode}

    def answer(self, prompts: Sequence[Prompt], max_tokens: int) -> list[Answer]:
        task = {"mode": self._mode, "prompts": [each.ids for each in prompts], "max_tokens": max_tokens}
        return [Answer(prompt=prompt.id, tokens=len(each["ids"]), seconds=each["seconds"], first_seconds=each["first_s"],
                       first_tokens=each["first_tokens"], ids=tuple(each["ids"]))
                for prompt, each in zip(prompts, self._process.ask(task)["answers"], strict=True)]


class Server:
    """An OpenAI-compatible server. It puts the user message through its own chat template; its times hold the HTTP too."""

    def __init__(self, name: str, url: SplitResult, key: str | None, timeout: float):
        self.name, self._url, self._key, self._timeout = name, url, key, timeout
        self._model = asyncio.run(first_model(url, key))
        self.facts = {"url": url.geturl(), "model": self._model}

    def answer(self, prompts: Sequence[Prompt], max_tokens: int) -> list[Answer]:
        return [self._one(prompt, max_tokens) for prompt in prompts]

    def _one(self, prompt: Prompt, max_tokens: int) -> Answer:
        body = {"model": self._model, "messages": [{"role": "user", "content": prompt.text}], "max_tokens": max_tokens,
                "temperature": 0, "stream": True, "stream_options": {"include_usage": True}, "ignore_eos": True}
        reply = asyncio.run(ask(self._url, body, self._key, self._timeout))
        if reply.error or not reply.at:
            raise RadianceError(f"{self.name} failed on prompt {prompt.id}: {reply.error or 'it gave no text'}")
        if reply.counted and reply.tokens != max_tokens:  # less work takes less time: no ratio of the two would mean anything
            raise RadianceError(f"{self.name} gave {reply.tokens} tokens on prompt {prompt.id} where {max_tokens} were asked "
                                "for. It must know ignore_eos; for servers that do not there is bench http --no-ignore-eos.")
        return Answer(prompt=prompt.id, tokens=reply.tokens, seconds=reply.ended - reply.started,
                      first_seconds=reply.at[0] - reply.started, text=reply.text)
