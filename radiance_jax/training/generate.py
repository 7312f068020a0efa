"""`python -m radiance_jax.training.generate [MODEL] --out DIR [flags]`: the target answers the training prompts.

The engine answers many prompts at once, without drafting and without logprobs. A run that is killed goes on where its last
save was, a run that is done is left alone. Prompts about earlier answers wait for them. The order of work is that of
`prompts.load`, once for every temperature: prompt i is first answered at temperature i modulo their number.
"""

import os
import queue
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from radiance_jax.bench.door import door
from radiance_jax.bench.record import log
from radiance_jax.config import EngineConfig
from radiance_jax.container.default_model import model_file
from radiance_jax.container.source import open_model
from radiance_jax.engine.request import SamplingParams
from radiance_jax.errors import RadianceError, UserError
from radiance_jax.flags import read_config
from radiance_jax.llm import LLM
from radiance_jax.models.config import parse_config
from radiance_jax.settings import MEMORY, MODEL, SPEC, setting
from radiance_jax.training import conversations
from radiance_jax.training.dataset import Answer, Answers, Manifest, target_fingerprint
from radiance_jax.training.dataset_writer import AnswersWriter
from radiance_jax.training.prompts import Prompt, fingerprint, prompts_of, source_infos

DATA = "answers"
WHOLE = ("stop", "length")  # how an answer ends that is kept
PROG = "python -m radiance_jax.training.generate"
SWITCH = 5e-4  # seconds: this thread prepares prompts, and must not keep the engine's waiting for Python's lock
QUEUED = 128  # answers handed to the engine beyond those that can be live: it never waits while a part is written


@dataclass(frozen=True, kw_only=True)
class AnswersConfig(EngineConfig):
    """The engine's configuration, and what to have answered."""

    max_num_seqs: int = setting(int, 256, "answers under way together", MEMORY, low=1, high=4096, flags=("--sequences",))
    max_model_len: int = setting(int, 1024, "longest prompt plus answer, in tokens, at most the model's; prompts that leave no "
                                 "room for an answer are left out", MODEL, low=2)
    num_speculative_tokens: int | str = setting(int, 0, "draft tokens verified at once; with many answers under way none pay, so "
                                                "auto is 0 too", SPEC, low=0, high=0, word="auto")
    out: str | None = setting(str, None, "folder of answers to make, or to go on with; must be given", DATA)
    sources: str | None = setting(str, None, "folder of prompt sources (default: the prompts in the package)", DATA)
    prompts: str | None = setting(str, None, "JSON lines of your own instead, each with a prompt (default: none)", DATA)
    limit_prompts: int | None = setting(int, None, "prompts to answer, the first in order (default: all)", DATA, low=1)
    max_tokens: int = setting(int, 384, "longest answer, in tokens", DATA, low=1)
    temperatures: str = setting(str, "0,0.7", "temperatures, separated by commas; every prompt is answered at each", DATA)
    limit_minutes: float | None = setting(float, None, "stop after so many minutes of answering (default: when all is done)",
                                          DATA, low=0.001)
    limit_tokens: int | None = setting(int, None, "stop after so many answer tokens in this run (default: when all is done)",
                                       DATA, low=1)
    save_seconds: float = setting(float, 60.0, "time between saves: what a kill may cost", DATA, low=0.1)

    def __post_init__(self) -> None:
        super().__post_init__()
        degrees(self.temperatures)
        if self.max_tokens >= self.max_model_len:
            raise UserError(f"max_tokens must be less than max_model_len ({self.max_model_len}), which the prompt is part of; "
                            f"got {self.max_tokens}", param="max_tokens")
        if self.sources is not None and self.prompts is not None:
            raise UserError("give --sources or --prompts, not both", param="prompts")

    def engine(self) -> dict[str, Any]:
        """The engine's part. Half the rows of a step are for prompts, so that answers that end are soon replaced."""
        values = {item.name: getattr(self, item.name) for item in fields(EngineConfig)} | {"num_speculative_tokens": 0}
        if values["max_num_batched_tokens"] is None and self.max_num_seqs >= 32:
            values["max_num_batched_tokens"] = 2 * self.max_num_seqs
        return values


def degrees(text: str) -> tuple[float, ...]:
    """`"0,0.7"` to `(0.0, 0.7)`."""
    try:
        found = tuple(float(part) for part in text.split(","))
    except ValueError:
        found = ()
    if not found or not all(0 <= each <= 2 for each in found) or len(set(found)) < len(found):
        raise UserError(f"temperatures must be numbers from 0 to 2, separated by commas, none twice; got {text!r}",
                        param="temperatures")
    return found


@door
def main(argv: Sequence[str]) -> int:
    """Everything for people goes to stderr. A limit that is reached is no error."""
    config, remarks = read_config(AnswersConfig, argv, prog=PROG, environ=os.environ,
                                  description="Has the target answer the training prompts.")
    if config.out is None:
        raise UserError("--out must name the folder of answers", param="out")
    for line in (config.describe(), *remarks):
        log(line)
    prompts = prompts_of(config.sources, config.prompts)[:config.limit_prompts]
    dtype = "bf16" if config.dtype == "auto" else config.dtype
    path = model_file(config.model, config.cache_dir, dtype, log)
    model = open_model(path)
    length = min(config.max_model_len, parse_config(model.config).max_position)
    sys.setswitchinterval(SWITCH)
    with LLM(log=log, **config.engine() | {"model": str(path), "max_model_len": length}) as llm:
        manifest = Manifest(
            target=target_fingerprint(model), target_description=model.description, vocab_size=llm.engine.model_config.vocab_size,
            sampling={"temperatures": list(degrees(config.temperatures)), "max_tokens": config.max_tokens,
                      "max_model_len": llm.engine.max_model_len, "prompts": fingerprint(prompts)},
            sources=source_infos(prompts))
        Run(llm.engine, config, prompts, AnswersWriter(config.out, manifest)).go()
    return 0


@dataclass
class Job:
    """One answer to make. `ids` grows as tokens come."""

    number: int
    prompt: Prompt
    temperature: float
    prompt_length: int = 0
    ids: list[int] = field(default_factory=list)
    sequence: int = -1


class Run:
    """One run of the generate stage: keeps the engine busy, writes what it answers."""

    def __init__(self, engine: Any, config: AnswersConfig, prompts: Sequence[Prompt], writer: AnswersWriter):
        self.engine, self.config, self.prompts, self.writer = engine, config, prompts, writer
        self._degrees = degrees(config.temperatures)
        self._parents = {parent for prompt in prompts for parent in prompt.parents}
        self._texts: dict[int, str] = {}  # answers that other prompts are about, by number
        self._left_out: set[int] = set()  # numbers: too long, or about an answer that was left out
        self._finished: queue.SimpleQueue[tuple[Job, str, str | None]] = queue.SimpleQueue()
        self._running: dict[int, Job] = {}
        self._held: list[Job] = []  # waiting for the answers they are about
        self._work = self._jobs()

    def go(self) -> None:
        """Answers until all is done or a limit is reached. What is finished is saved however it ends."""
        self._recall()
        total = len(self.prompts) * len(self._degrees)
        log(f"answers: {len(self.writer.done)} of {total} are there")
        before, start = self.engine.stats(), time.monotonic()
        saved = told = start
        try:
            while True:
                while len(self._running) < self.config.max_num_seqs + QUEUED and (job := self._next()) is not None:
                    self._submit(job)
                if not self._running:
                    break
                try:
                    self._take(*self._finished.get(timeout=1.0))
                except queue.Empty:
                    pass  # long answers: the clock must still be looked at
                now = time.monotonic()
                tokens = self.engine.stats().generation_tokens - before.generation_tokens if now - told >= 10 else None
                if tokens is not None:
                    told = now
                    log(f"answers: {len(self.writer.done)} of {total}, {tokens} tokens, {tokens / (now - start):.0f} tokens/s")
                if now - saved >= self.config.save_seconds:
                    self.writer.save()
                    saved = time.monotonic()
                if self._limit_reached(now - start, before.generation_tokens):
                    break
        finally:
            for job in self._running.values():
                self.engine.abort(job.sequence)
            while not self._finished.empty():
                job, reason, error = self._finished.get()
                if reason in WHOLE:
                    self._take(job, reason, error)
            self.writer.save()
        self._sum_up(before, time.monotonic() - start, total)

    def _limit_reached(self, seconds: float, tokens_before: int) -> bool:
        limits = self.config.limit_minutes, self.config.limit_tokens
        return bool(limits[0] is not None and seconds >= 60 * limits[0] or limits[1] is not None
                    and self.engine.stats().generation_tokens - tokens_before >= limits[1])

    def _sum_up(self, before: Any, seconds: float, total: int) -> None:
        stats = self.engine.stats()
        tokens, steps = (getattr(stats, name) - getattr(before, name) for name in ("generation_tokens", "steps"))
        prompt_tokens = stats.prompt_tokens - before.prompt_tokens
        log(f"answers: {len(self.writer.done)} of {total} are there, {len(self._left_out)} left out; {tokens} answer tokens and "
            f"{prompt_tokens} prompt tokens in {seconds:.1f} s, {tokens / max(seconds, 1e-9):.0f} tokens/s, {steps} steps of "
            f"{1e3 * seconds / max(steps, 1):.2f} ms")

    def _jobs(self) -> Iterator[Job]:
        for epoch in range(len(self._degrees)):
            for index, prompt in enumerate(self.prompts):
                number = epoch * len(self.prompts) + index
                if number not in self.writer.done:
                    yield Job(number, prompt, self._degrees[(index + epoch) % len(self._degrees)])

    def _parents_of(self, job: Job) -> list[int]:
        first = job.number - job.number % len(self.prompts)
        return [first + parent for parent in job.prompt.parents]

    def _recall(self) -> None:
        """The text of the answers of earlier runs that prompts are about."""
        if self.writer.done:
            for answer in Answers.open(self.writer.folder, "all"):
                self._remember(answer.number, answer.ids[answer.answer_start:].tolist())

    def _remember(self, number: int, ids: list[int]) -> None:
        if number % len(self.prompts) in self._parents:
            self._texts[number] = self.engine.tokenizer.decode(ids, skip_special_tokens=True)

    def _next(self) -> Job | None:
        """The first job that can be done now."""
        for place, job in enumerate(self._held):
            if all(parent in self._texts or parent in self._left_out for parent in self._parents_of(job)):
                return self._held.pop(place)
        for job in self._work:
            if all(parent in self._texts or parent in self._left_out for parent in self._parents_of(job)):
                return job
            self._held.append(job)
        return None

    def _submit(self, job: Job) -> None:
        parents = self._parents_of(job)
        ids = None
        if not self._left_out.intersection(parents):
            before = self.prompts[job.prompt.parents[0]] if job.prompt.turn else None
            ids = conversations.encode(self.engine, job.prompt, [self._texts[parent] for parent in parents], before)
        if ids is None or len(ids) + self.config.max_tokens > self.engine.max_model_len:
            self._left_out.add(job.number)
            return
        job.prompt_length, job.ids = len(ids), list(ids)
        self._running[job.number] = job
        params = SamplingParams(max_tokens=self.config.max_tokens, temperature=job.temperature, seed=job.number,
                                max_draft_tokens=0)
        job.sequence = self.engine.submit(ids, params, self._listener(job))

    def _listener(self, job: Job) -> Callable[[Any], None]:
        extend, finished = job.ids.extend, self._finished

        def hear(delta: Any) -> None:  # on the engine's thread, for every answer at every step: as little as can be
            extend(delta.token_ids)
            if delta.finish_reason is not None:
                finished.put((job, delta.finish_reason, delta.error))
        return hear

    def _take(self, job: Job, reason: str, error: str | None) -> None:
        del self._running[job.number]
        if reason not in WHOLE:
            raise RadianceError(error or f"answer {job.number} ended by {reason}")
        if len(job.ids) > job.prompt_length:
            self.writer.add(Answer(np.array(job.ids, np.int32), job.prompt_length, job.prompt.source, job.temperature,
                                   job.prompt.prompt_hash, job.number))
            self._remember(job.number, job.ids[job.prompt_length:])
        else:
            self._left_out.add(job.number)


if __name__ == "__main__":
    raise SystemExit(main())
