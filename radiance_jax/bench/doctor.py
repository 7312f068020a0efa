"""`python -m radiance_jax.bench doctor MODEL.rad [flags]`: why is a drafter's acceptance low?

The target answers a few prompts once. Over those texts the drafter is read as its file declares, and in every neighbouring
way: other taps, slots, mask, window, rope, causality, and prompts put otherwise. A reading that gets clearly more accepted
(`doctor_verdict.py` has the rule) names the fault. With `--plant` faults are planted first, to see that they are found.
"""

import math
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from radiance_jax.bench import doctor_readings as readings
from radiance_jax.bench import doctor_verdict as verdict
from radiance_jax.bench import prompt_sets, record, spec_sets
from radiance_jax.bench.config import BENCH, engine_values, words
from radiance_jax.bench.door import FAILED, door
from radiance_jax.bench.record import log
from radiance_jax.config import EngineConfig
from radiance_jax.errors import UserError
from radiance_jax.flags import read_config
from radiance_jax.settings import setting

PROG = "python -m radiance_jax.bench doctor"
SETS = tuple(name for name in spec_sets.SETS if name not in ("summarisation", "rag"))  # their prompts are long
ALL = "all"


@dataclass(frozen=True, kw_only=True)
class DoctorConfig(EngineConfig):
    """What `bench doctor` asks and tries. Lookup is off, the window fixed, whatever the engine's flags say."""

    sets: str = setting(str, ",".join(SETS), "evaluation sets the prompts are from", BENCH)
    data: str | None = setting(str, None, "folder of whole sets, as for bench spec (default: those of this package)", BENCH)
    limit: int = setting(int, 2, "prompts of each set", BENCH, low=1)
    prompts: str | None = setting(str, None, "JSON lines of your own instead: prompt (a user message) or prompt_ids", BENCH)
    max_tokens: int = setting(int, 48, "tokens of an answer, at most", BENCH, low=3)
    ignore_eos: bool = setting(bool, False, "go on after the model's end token", BENCH)
    temperature: float = setting(float, 0.0, "of the answers, drawn with --seed", BENCH, low=0, high=100)
    plant: str | None = setting(str, None, f"faults to plant, one after the other: {ALL}, or some of "
                                f"{', '.join(readings.PLANTED)} (default: none)", BENCH)
    limit_minutes: float | None = setting(float, None, "ends after so long with what was tried (default: when all is)", BENCH,
                                          low=0.1)
    out: str | None = setting(str, None, "JSON file to write (default: none)", BENCH)

    def __post_init__(self) -> None:
        super().__post_init__()
        words("sets", self.sets, spec_sets.SETS)
        if self.num_speculative_tokens == 0:
            raise UserError("num_speculative_tokens must be more than 0, or nothing is drafted; leave it out",
                            param="num_speculative_tokens")
        if self.drafter == "off":
            raise UserError("drafter must be auto: the drafter is what is looked at; got 'off'. Leave --drafter out.",
                            param="drafter")
        if self.mesh_size != 1:
            raise UserError(f"mesh must be tp=1: the doctor reads on one device; got {self.mesh!r}", param="mesh")
        self.plants()

    def plants(self) -> tuple[str, ...]:
        if self.plant is None:
            return ()
        return readings.PLANTED if self.plant == ALL else words("plant", self.plant, readings.PLANTED)


@door
def main(argv: Sequence[str]) -> int:
    """A table on stdout, progress on stderr, everything in `--out`. Status 1: a planted fault was not found, or the replay and
    the engine disagree."""
    started = time.monotonic()
    config, remarks = read_config(DoctorConfig, argv, prog=PROG, environ=os.environ,
                                  description="Why acceptance is low: a drafter read otherwise than its file says.")
    for line in (config.describe(), *remarks):
        log(line)
    record.check_writable(config.out)
    result = examine(config, argv, started)
    from radiance_jax.bench.doctor_table import show
    show(result)
    if config.out is not None:
        record.write(config.out, result)
    return FAILED if any(each["result"] == "missed" for each in result["planted"]) or not result["agrees"] else 0


@dataclass
class Examination:
    """A replay, and what each reading got accepted in it: nothing is measured twice."""

    replay: Any
    target: readings.Target
    most: int
    end: float
    known: dict[tuple, verdict.Measured] = field(default_factory=dict)

    def measure(self, reading: readings.Reading) -> verdict.Measured:
        if reading.key not in self.known:
            found = self.replay.accepted(reading, self.most)
            self.known[reading.key] = verdict.Measured(
                reading=reading, by_prompt=tuple(found.means().tolist()), walk=found.mean_of_walk(),
                in_new_text=tuple(found.means_of_new_text().tolist()), tokens_per_verify=found.tokens_per_verify())
        return replace(self.known[reading.key], reading=reading)

    def of(self, base: readings.Reading) -> dict[str, Any]:
        """The neighbours of `base`, and what they say."""
        first, near, tried = self.measure(base), readings.neighbours(base, self.target), []
        for each in near:
            if time.monotonic() > self.end:
                break
            tried.append(self.measure(each))
            log(f"  {each.kind}: {each.what}: {tried[-1].mean:.3f} (declared {first.mean:.3f})")
        compared = verdict.compare(first, tried)
        return {"declared": _said(first), "neighbours": [
            _said(each.measured) | {"gain": each.gain, "error": each.error if math.isfinite(each.error) else None,
                                    "clearly_better": each.better} for each in compared],
            "not_tried": [f"{each.kind}: {each.what}" for each in near[len(tried):]],
            "diagnosis": verdict.diagnose(first, compared, len(tried), len(near))}


def _said(measured: verdict.Measured) -> dict[str, Any]:
    return {"kind": measured.reading.kind, "what": measured.reading.what, "accepted_an_anchor": measured.mean,
            "accepted_a_step": measured.walk, "tokens_per_verify": measured.tokens_per_verify,
            "by_prompt": list(measured.by_prompt)}


def examine(config: DoctorConfig, argv: Sequence[str], started: float) -> dict[str, Any]:
    """Opens, lets the target answer, replays; the whole record."""
    import jax

    from radiance_jax.bench import doctor_texts
    from radiance_jax.bench.doctor_replay import Replay
    from radiance_jax.bench.spec_modes import model_of
    from radiance_jax.container import draft_facts
    from radiance_jax.container.drafter import check_fits, drafter_of
    from radiance_jax.engine.choices import DTYPES, choose
    from radiance_jax.engine.request import SamplingParams
    from radiance_jax.models.config import parse_config
    from radiance_jax.text.chat import ChatTemplate, read_template
    from radiance_jax.text.tokenizer import Tokenizer

    result = record.environment(PROG, argv, config)
    model = model_of(config)
    settings, checkpoint = parse_config(model.config), drafter_of(model)
    if checkpoint is None:
        raise UserError(f"the model's file must hold a drafter, or there is nothing to examine; {Path(model.path).name} holds "
                        "none. Merge one: python -m radiance_jax.convert SRC OUT.rad --draft-model DIR", param="model")
    drafter = checkpoint.drafter
    check_fits(str(model.path), drafter, settings)
    result["drafter"] = draft_facts.of_checkpoint(checkpoint)
    tokenizer = Tokenizer.from_model(model)
    chat = ChatTemplate.from_model(model, tokenizer, config.chat_template and read_template(config.chat_template))
    asked = (prompt_sets.read(Path(config.prompts), "own") if config.prompts else
             spec_sets.load(words("sets", config.sets), config.data, config.limit))
    ways = doctor_texts.put(asked, tokenizer, chat)
    params = SamplingParams(max_tokens=config.max_tokens, temperature=config.temperature, seed=config.seed, logprobs=0,
                            ignore_eos=config.ignore_eos, draft_window="fixed")
    log("-- the target answers --")
    engine = EngineConfig(**engine_values(config))
    texts, answers = doctor_texts.write(engine, ways, params, settings.max_position, log)
    texts = _long_enough(texts)
    kept = {text.id for text in next(iter(texts.values()))}
    result["engine"] = doctor_texts.accepted([each for each in answers if each.prompt in kept])
    target = readings.Target(layers=settings.num_layers, rope=settings.rope, masks=_masks(tokenizer, drafter), texts=tuple(texts))
    base = readings.declared(drafter, next(iter(texts)))
    log("-- the texts are replayed --")
    near = [base, *readings.neighbours(base, target)]
    layers = sorted({tap + step for each in near for tap in each.taps for step in (-1, 0, 1)} & {*range(-1, settings.num_layers)})
    dtype = DTYPES[choose(config, jax.default_backend(), drafter).dtype]
    replay = Replay.load(model, settings, drafter, checkpoint.read, dtype, texts, layers, config.temperature, config.seed)
    depth = drafter.depth if config.num_speculative_tokens == "auto" else config.num_speculative_tokens
    end = math.inf if config.limit_minutes is None else started + 60 * config.limit_minutes
    one = Examination(replay, target, max(min(depth, drafter.config.block_size - 1), 1), end)
    result |= one.of(base)
    result["agrees"] = _agree(result, replay.accepted(base, depth))
    result["planted"] = _planted(config, one, base)
    result["seconds"] = time.monotonic() - started
    return result


def _long_enough(texts: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """Without the prompts whose answer ends at once in one of the ways: there is nothing to draft."""
    short = {text.id for each in texts.values() for text in each if not text.anchors}
    kept = {name: [text for text in each if text.id not in short] for name, each in texts.items()}
    if len(next(iter(kept.values()))) < 2:
        raise UserError("at least two answers must have three tokens, or there is no noise to judge by; ask for more --limit or "
                        "--max-tokens, or --ignore-eos", param="prompts")
    return kept


def _masks(tokenizer: Any, drafter: Any) -> tuple[tuple[int, str], ...]:
    """Ids that a trainer may have taken as its mask token."""
    named = [(tokenizer.token_id(token), name) for name in ("mask_token", "pad_token", "unk_token", "eos_token", "bos_token")
             if (token := tokenizer.special_token(name)) is not None]
    named += [(drafter.config.vocab_size - 1, "the last id"), (0, "id 0")]
    found: dict[int, str] = {}
    for token, name in named:
        if token is not None and 0 <= token < drafter.config.vocab_size:
            found.setdefault(token, f"{token} ({name})")
    return tuple(found.items())


def _agree(result: dict[str, Any], replayed: Any) -> bool:
    """Whether the engine got accepted what the replay says. Both round, in other orders, and near ties fall either way: one step
    in twenty, and a twentieth of the drafts, may differ."""
    ours = [0] * (replayed.most + 1)
    for way in replayed.walk():
        for count in way:
            ours[count] += 1
    theirs = result["engine"]["acceptance_histogram"]
    theirs = theirs + [0] * (len(ours) - len(theirs))
    result["replay_histogram"] = ours
    apart = sum(abs(a - b) for a, b in zip(ours, theirs, strict=True)) / 2
    result["replay_and_engine_apart"] = {"steps": apart, "of": sum(theirs)}
    return apart <= max(0.05 * sum(theirs), 2)


def _planted(config: DoctorConfig, one: Examination, base: readings.Reading) -> list[dict[str, Any]]:
    """For each fault to plant: found, missed, harmless (it costs less than the rule's least gain), or no place for it."""
    out: list[dict[str, Any]] = []
    for kind in config.plants():
        bad = readings.plant(kind, base, one.target)
        if bad is None:
            out.append({"plant": kind, "result": "no place for it"})
            continue
        if time.monotonic() > one.end:
            out.append({"plant": kind, "result": "not tried"})
            continue
        log(f"-- planted: {kind} ({bad.what}) --")
        sound, sick = one.measure(base), one.measure(bad)
        harm = verdict.compare(sick, [sound])[0]
        found = one.of(bad)
        named = found["diagnosis"]["fault"]
        state = "found" if named == kind else "harmless" if not harm.better else "not tried" if found["not_tried"] else "missed"
        out.append({"plant": kind, "what": bad.what, "result": state, "sound": sound.mean, "planted": sick.mean, "named": named,
                    "diagnosis": found["diagnosis"]["text"], "neighbours": found["neighbours"]})
    return out


if __name__ == "__main__":
    sys.exit(main())
