"""A run from its first step, or from its last checkpoint, to a drafter in a folder.

    out/config.json      the configuration, by which a run is gone on with
    out/log.jsonl        a line every `log_every` steps and every look at the held-out answers
    out/checkpoints/     the last two states
    out/best/            the drafter that did best on the held-out answers
    out/drafter/         the same, published
    out/summary.json     what was done and reached
"""

import json
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np

from radiance_jax.container.conversion import convert
from radiance_jax.errors import RadianceError, UserError
from radiance_jax.training.blocks import Batch
from radiance_jax.training.checkpoints import Checkpoints, best_facts, best_tensors, save_best
from radiance_jax.training.config import TrainConfig, check_resumed
from radiance_jax.training.dataset_writer import write_whole
from radiance_jax.training.export import export
from radiance_jax.training.flops import peak, step_flops
from radiance_jax.training.held_out import HeldOut, expected_length
from radiance_jax.training.pace import Pace
from radiance_jax.training.pipeline import Batches
from radiance_jax.training.progress import Journal
from radiance_jax.training.programs import TrainState
from radiance_jax.training.summary import summary
from radiance_jax.training.trainer import Log, Subject, Trainer

CONFIG, LOG, SUMMARY, CHECKPOINTS, DRAFTER, BAD = (
    "config.json", "log.jsonl", "summary.json", "checkpoints", "drafter", "not_finite")
BEHIND = 2  # steps that are under way before the numbers of one are looked at
TIMED = 4  # steps by which the pace is measured


class TrainingFailed(RadianceError):
    """A run that cannot go on."""


def check_same(config: TrainConfig, flag: str) -> Path:
    """The folder of the run that `flag` is about. Raises `UserError` where there is none, or one of another configuration."""
    out = Path(config.out)
    if not (out / CONFIG).exists():
        raise UserError(f"--{flag} needs a run to go on with; {out} holds none", param=flag)
    check_resumed(_configuration(out / CONFIG), config, str(out))
    return out


def prepare(config: TrainConfig, resume: bool) -> Path:
    """The folder of the run. Raises `UserError` where it holds another run, or none to go on with."""
    out = Path(config.out)
    if resume:
        check_same(config, "resume")
    elif (out / CONFIG).exists():
        raise UserError(f"out must be a folder without a run; {out} holds one. Go on with it by --resume, or give another "
                        "folder.", param="out")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"out must be a folder that can be written; {out} cannot be made ({error.strerror or error})",
                        param="out") from None
    return out


def begin(config: TrainConfig, out: Path) -> None:
    """Writes the configuration: from here on the folder holds a run."""
    if jax.process_index() == 0:
        write_whole(out / CONFIG, lambda file: file.write(json.dumps(config.values(), indent=1).encode() + b"\n"))


def _configuration(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} must be the configuration of a run; it cannot be read ({error}). Start a new run in another "
                        "folder.", param="resume") from None
    if not isinstance(found, dict):
        raise UserError(f"{path} must be the configuration of a run, a JSON object; got {type(found).__name__}. Start a new run in "
                        "another folder.", param="resume")
    return found


@dataclass(kw_only=True)
class Window:
    """Numbers of the steps since the last line of the log."""

    steps: int = 0
    seconds: float = 0.0
    sums: dict[str, Any] = field(default_factory=dict)

    def add(self, numbers: dict[str, Any]) -> None:
        self.steps += 1
        for name, value in numbers.items():
            self.sums[name] = self.sums.get(name, 0) + value


@dataclass(kw_only=True)
class Run:
    """The loop. `total`: steps of the whole run, fixed at its beginning; `seconds` and `tokens` of training so far."""

    trainer: Trainer
    out: Path
    journal: Journal
    checkpoints: Checkpoints
    state: TrainState
    batches: Batches
    pace: Pace
    total: int
    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    first: dict[str, Any] | None = None  # the held-out answers before the first step
    last: dict[str, Any] | None = None
    stop_after: int | None = None  # for tests: as if killed there

    def go(self) -> None:
        """To the last step or the end of the time. Raises `TrainingFailed` at a loss that is not finite."""
        config, under_way, window = self.trainer.config, deque(), Window()
        if self.first is None:
            self.first = self.look()
        began = time.monotonic()
        while self.step < self.total and not self.pace.time_is_up:
            batch = next(self.batches)
            self.state, numbers = self.trainer.step(self.state, batch, self.total)
            self.step += 1
            under_way.append((self.step, batch, numbers))
            looks, saves = self.step % config.eval_every == 0, self.step % config.save_every == 0
            speaks = self.step % config.log_every == 0
            stops = looks or saves or speaks or self.step == self.total
            while len(under_way) > (0 if stops else BEHIND):
                window.add(self.check(*under_way.popleft()))
            if stops:
                window.seconds += time.monotonic() - began
            if speaks:
                self.speak(window)
                window = Window()
            if looks and self.step < self.total:
                self.last = self.look()
            if saves:
                self.save(window.seconds)
            if stops:
                began = time.monotonic()
            if self.step == self.stop_after:
                return
        while under_way:
            window.add(self.check(*under_way.popleft()))
        if window.steps:
            self.seconds += window.seconds + time.monotonic() - began
        self.last = self.look()
        self.save()

    def check(self, step: int, batch: Batch, numbers: dict[str, Any]) -> dict[str, Any]:
        numbers = {name: np.asarray(value) for name, value in jax.device_get(numbers).items()}
        self.tokens += int(numbers["tokens"])
        if numbers["finite"]:
            return numbers
        answers = [self.trainer.rows.answers[int(i)] for i in batch.index]
        facts = {"step": step, "loss": str(numbers["loss"]), "norm": str(numbers["norm"]),
                 "answers": [int(i) for i in batch.index],
                 "numbers": [a.number for a in answers], "prompt_hash": [a.prompt_hash for a in answers]}
        where = self.out / f"{BAD}-{jax.process_index()}.json"
        where.write_text(json.dumps(facts, indent=1))
        np.savez(where.with_suffix(".npz"), tokens=batch.tokens, answer_start=batch.answer_start, length=batch.length)
        raise TrainingFailed(f"the loss or its gradient was not finite in step {step} (loss {facts['loss']}, gradient "
                             f"{facts['norm']}); the batch is in {where}. Earlier weights are in the last checkpoint: look at "
                             "the answers, or train with a lower rate.")

    def speak(self, window: Window) -> None:
        self.seconds += window.seconds
        sums, each = window.sums, window.seconds / window.steps
        losses = {name: float(value) / window.steps for name, value in sums.items() if name.startswith(("loss", "norm"))}
        top = peak(jax.devices()[0].device_kind, self.trainer.mesh.size)
        used = None if top is None else self.flops / each / top
        accepted = expected_length(sums["reached"], sums["accepted"])
        rate = float(sums["rate"]) / window.steps
        record = {"step": self.step, "seconds": round(self.seconds, 3), **losses, "rate": rate, "tokens_per_verify": accepted,
                  "acceptance": (sums["accepted"] / np.maximum(sums["reached"], 1)).round(4).tolist(),
                  "tokens_per_second": float(sums["tokens"]) / window.seconds, "step_seconds": each, "mfu": used}
        self.journal.write(record)
        held = f" ({self.last['tokens_per_verify']:.2f} held out)" if self.last else ""
        self.journal.progress(self.step, f"loss {losses['loss']:.4f}  rate {rate:.2e}  accepted {accepted:.2f}{held}  "
                                         f"{record['tokens_per_second']:,.0f} tokens/s  "
                                         + (f"MFU {used:.1%}" if used is not None else f"{each * 1e3:.0f} ms a step"))

    @property
    def flops(self) -> float:
        programs = self.trainer.programs
        return step_flops(self.trainer.config, programs.target, programs.drafter, programs.objective.wants_target)

    def look(self) -> dict[str, Any]:
        """Walks the held-out answers; a drafter that does better than any before is put aside."""
        began, found = time.monotonic(), self.trainer.look(self.state)
        report, best = found.report(), best_facts(self.out)
        if best is None or found.every.tokens_per_verify > best["exact"]:
            save_best(self.out, self.trainer.tensors(self.state),
                      {"step": self.step, "exact": found.every.tokens_per_verify, "held_out": report})
        self.journal.write({"step": self.step, "held_out": report, "look_seconds": round(time.monotonic() - began, 3)})
        self.journal.say(said(self.step, found))
        return report

    def save(self, seconds: float = 0.0) -> None:
        """`seconds`: of the steps since the last line of the log, which `tokens` has already."""
        self.checkpoints.save(self.state, {"step": self.step, "total": self.total, "tokens": self.tokens,
                                           "seconds": self.seconds + seconds, "data": self.batches.state, "first": self.first},
                              self.step)


def said(step: int, found: HeldOut) -> str:
    rates = " ".join(f"{x:.2f}" for x in found.report()["acceptance"])
    return f"step {step}: held-out answers: {found.every.tokens_per_verify:.3f} tokens a verification; by draft {rates}"


def start(trainer: Trainer, out: Path, resume: bool, deadline: float | None, log: Log) -> Run:
    """A run at its beginning, or where its last checkpoint left it."""
    config, checkpoints = trainer.config, Checkpoints(out / CHECKPOINTS)
    batches, facts = trainer.batches(), {}
    if resume and checkpoints.latest is not None:
        state, facts = checkpoints.restore(trainer.abstract)
        batches.state = facts["data"]
        log(f"resumed at step {facts['step']} of {facts['total']}")
    else:
        state = trainer.first_state()
    pace = measure(trainer, deadline) if deadline is not None else Pace(deadline=None, step_seconds=0, look_seconds=0)
    total = facts.get("total") or config.steps or pace.steps(config.eval_every)
    if deadline is not None:
        log(f"pace: {pace.step_seconds * 1e3:.1f} ms a step, {pace.look_seconds:.1f} s a look; {total} steps")
    return Run(trainer=trainer, out=out, journal=Journal(out / LOG, total, facts.get("step", 0)), checkpoints=checkpoints,
               state=state, batches=batches, pace=pace, total=total,
               **{name: facts[name] for name in ("step", "tokens", "seconds", "first") if name in facts})


def measure(trainer: Trainer, deadline: float | None) -> Pace:
    """Some steps and a look, of weights that are thrown away."""
    state, batch = trainer.first_state(), next(trainer.batches())
    state, numbers = trainer.step(state, batch, 1)
    jax.block_until_ready(numbers)
    began = time.monotonic()
    for _ in range(TIMED):
        state, numbers = trainer.step(state, batch, 1)
    jax.block_until_ready(numbers)
    each = (time.monotonic() - began) / TIMED
    trainer.look(state)
    began = time.monotonic()
    trainer.look(state)
    return Pace(deadline=deadline, step_seconds=each, look_seconds=time.monotonic() - began)


def train(config: TrainConfig, *, resume: bool, command: str, log: Log, began: float) -> Path:
    """The whole run; returns the drafter's folder. `began`: when the process did, by time.monotonic."""
    subject = Subject.of(config, log)
    out = prepare(config, resume)
    trainer = Trainer.of(subject, log)
    begin(config, out)  # not before: what is refused leaves no run behind
    log(f"programs: compiled {time.monotonic() - began:.1f} s after the start")
    deadline = None if config.limit_minutes is None else began + 60 * config.limit_minutes
    run = start(trainer, out, resume, deadline, log)
    try:
        run.go()
    finally:
        run.journal.close()
        run.checkpoints.close()
    folder, nbytes = publish(subject, out)
    record = summary(run, nbytes, command, time.monotonic() - began)
    if jax.process_index() == 0:
        (out / SUMMARY).write_text(json.dumps(record, indent=1) + "\n")
    log(f"{folder}: {nbytes:,} bytes, {best_facts(out)['held_out']['tokens_per_verify']:.3f} tokens a verification on held-out "
        f"answers ({run.first['tokens_per_verify']:.3f} untrained); {run.step} steps, {time.monotonic() - began:.0f} s in all")
    return folder


def publish(subject: Subject, out: Path) -> tuple[Path, int]:
    """Writes the best drafter of a run in the public layout, and merged if the configuration says so; returns folder and bytes.
    Raises `UserError` where there is none."""
    if best_facts(out) is None:
        raise UserError(f"{out} must hold a run that has looked at its held-out answers; it holds none", param="out")
    nbytes = export(out / DRAFTER, subject.raw, best_tensors(out), subject.model)
    if subject.config.rad is not None:
        convert(subject.path, subject.config.rad, subject.config.dtype, overwrite=True, draft_path=out / DRAFTER)
    return out / DRAFTER, nbytes
