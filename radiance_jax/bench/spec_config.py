"""The flags of `bench spec`: the engine's own, and what to measure."""

from dataclasses import dataclass

from radiance_jax.bench.config import BENCH, DTYPES, FAST, OFF, numbers, words
from radiance_jax.bench.spec_sets import SETS
from radiance_jax.config import EngineConfig
from radiance_jax.errors import UserError
from radiance_jax.settings import setting

LOOKUP, DRAFTER, BOTH, FIXED = "lookup", "drafter", "both", ":fixed"
ALONE = (OFF, LOOKUP, LOOKUP + FIXED)  # what a model without a drafter can do
MODES = (FAST, OFF, LOOKUP, DRAFTER, BOTH, DRAFTER + FIXED)
KNOWN = (*MODES, LOOKUP + FIXED, BOTH + FIXED)


@dataclass(frozen=True, kw_only=True)
class SpecConfig(EngineConfig):
    """What `bench spec` measures, and for how long."""

    sets: str = setting(str, ",".join(SETS), "evaluation sets, the first six of Spec-Bench", BENCH)
    data: str | None = setting(str, None, "folder of whole sets, as published: spec-bench/question.jsonl, "
                               "mt-bench/question.jsonl, humaneval/HumanEval.jsonl.gz, gsm8k/test.jsonl "
                               "(default: 12 prompts of each from this package)", BENCH)
    limit: int | None = setting(int, None, "prompts of each set, at most, evenly spaced (default: all)", BENCH, low=1)
    modes: str = setting(str, ",".join(MODES), "off-fast: not bit-exact, no drafting; off, lookup: an engine without the "
                         "drafter; drafter, both: the engine with it; NAME:fixed: drafts as deep as it may, always (default: "
                         "those that the model allows)", BENCH)
    fast_dtypes: str | None = setting(str, None, "dtypes in which off-fast is tried, the faster is kept (default: bf16,f32 "
                                      "on a CPU, else the engine's)", BENCH)
    temperatures: str = setting(str, "0,1", "temperatures of the answers", BENCH)
    sequences: str = setting(str, "1", "answers live at once; 1: one after the other", BENCH)
    max_tokens: int = setting(int, 64, "tokens of an answer, at most; the model may end it before", BENCH, low=2)
    rounds: int = setting(int, 1, "times every prompt is answered", BENCH, low=1)
    limit_minutes: float | None = setting(float, None, "ends after so long with what was measured, start-up included (default: "
                                          "when all is measured)", BENCH, low=0.1)
    out: str | None = setting(str, None, "JSON file, written again and again while it measures (default: none)", BENCH)
    html: str | None = setting(str, None, "page with pictures, one file; needs matplotlib (default: none)", BENCH)

    def __post_init__(self) -> None:
        super().__post_init__()
        words("sets", self.sets, SETS)
        words("modes", self.modes, KNOWN)
        numbers("sequences", self.sequences)
        self.temperature_list()
        if self.fast_dtypes is not None:
            words("fast_dtypes", self.fast_dtypes, DTYPES)
        if not set(words("modes", self.modes)) - {FAST, OFF}:
            raise UserError(f"modes must name one that drafts, such as {LOOKUP}; got {self.modes!r}", param="modes")
        if not {FAST, OFF} & set(words("modes", self.modes)):
            raise UserError(f"modes must name {OFF} or {FAST}, to compare with; got {self.modes!r}", param="modes")
        if self.num_speculative_tokens == 0:
            raise UserError("num_speculative_tokens must be more than 0; leave it out", param="num_speculative_tokens")

    def temperature_list(self) -> tuple[float, ...]:
        parts = words("temperatures", self.temperatures)
        try:
            values = tuple(map(float, parts))
        except ValueError:
            values = (-1.0,)
        if not all(0 <= value <= 100 for value in values):
            raise UserError(f"temperatures must be numbers from 0 to 100, separated by commas; got {self.temperatures!r}",
                            param="temperatures")
        return values
