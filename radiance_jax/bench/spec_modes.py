"""The modes that `bench spec` compares, and the engines behind them.

Lookup alone runs in an engine that does not have the drafter: on a GPU the drafter's pass is in every step of one that has
it, wanted or not. The drafter alone runs in the engine of both, whose policy is told that lookup may propose nothing.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

import jax

from radiance_jax.bench.config import FAST, OFF, words
from radiance_jax.bench.engines import fast_dtypes, fast_options
from radiance_jax.bench.measure import serve
from radiance_jax.bench.prompt_sets import Prompt
from radiance_jax.bench.spec_config import ALONE, BOTH, DRAFTER, FIXED, LOOKUP, SpecConfig
from radiance_jax.bench.record import log
from radiance_jax.config import EngineConfig
from radiance_jax.container.default_model import model_file
from radiance_jax.container.drafter import DraftCheckpoint
from radiance_jax.container.source import Source, open_model
from radiance_jax.engine.choices import choose
from radiance_jax.engine.engine import Engine
from radiance_jax.engine.hooks import NO_HOOKS, Hooks
from radiance_jax.engine.request import SamplingParams
from radiance_jax.errors import UserError

NO_DRAFTER = Hooks(drafter=(None, None))
PROBE_TOKENS = 16
LONGEST_REST = 0.3  # seconds


@dataclass(frozen=True, kw_only=True)
class Mode:
    """An engine, what its requests carry, and whether its policy knows lookup. `facts`: what start-up decided."""

    name: str
    engine: Engine
    exact: bool
    facts: dict[str, Any]
    lookup: bool = True

    def params(self, temperature: float, max_tokens: int, ignore_eos: bool = False) -> SamplingParams:
        """With logprobs, so that their bits can be compared."""
        return SamplingParams(
            max_tokens=max_tokens, temperature=temperature, seed=0, logprobs=0, ignore_eos=ignore_eos,
            max_draft_tokens=0 if self.name.startswith((OFF, FAST)) else None,
            draft_window="fixed" if self.name.endswith(FIXED) else None)

    def settle(self) -> None:
        """Waits until the engine has counted its last answer, and until the step that it had sent before it knew of the end is
        over: it would be in the next mode's time."""
        while (stats := self.engine.stats()).running or stats.waiting:
            time.sleep(0.001)
        counts, seconds = zip(*stats.step_seconds.values(), strict=True) if stats.step_seconds else ((1,), (0.0,))
        time.sleep(min(1.5 * sum(seconds) / sum(counts), LONGEST_REST))

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Within, the engine drafts as this mode does. Nothing may be live on entering or leaving."""
        planner = self.engine._planner
        own = planner.rules
        planner.rules = own if self.lookup else replace(own, lookup=0)
        try:
            yield
        finally:
            planner.rules = own


def wanted(config: SpecConfig, drafter: DraftCheckpoint | None) -> tuple[str, ...]:
    """The modes to measure: those asked for; where none were and there is no drafter, those without one."""
    names = words("modes", config.modes)
    if drafter is not None:
        return names
    if config.modes == SpecConfig.modes:
        return (FAST, *ALONE)
    missing = [name for name in names if name.startswith((DRAFTER, BOTH))]
    if missing:
        raise UserError(f"modes must be {', '.join((FAST, *ALONE))}, as the model's file holds no drafter; got {missing[0]!r}. "
                        "Merge one: python -m radiance_jax.convert SRC OUT.rad --draft-model DIR", param="modes")
    return names


def model_of(config: EngineConfig) -> Source:
    """The model that the flags name."""
    dtype = choose(config, jax.default_backend()).dtype
    return open_model(model_file(config.model, config.cache_dir, dtype, log))


@contextmanager
def modes(names: Sequence[str], config: SpecConfig, engine: EngineConfig, drafter: DraftCheckpoint | None, prompt: Prompt,
          log: Callable[[str], None]) -> Iterator[list[Mode]]:
    """Loads the engines one after the other, warms them up with `prompt`, and closes them all at the end."""
    platform, made, loaded = jax.default_backend(), [], []

    def load(what: str, options: EngineConfig, hooks: Hooks) -> tuple[Engine, dict[str, Any]]:
        log(f"-- {what} --")
        started = time.monotonic()
        loaded.append(Engine.load(options, log, hooks))
        own = None if hooks is NO_DRAFTER or drafter is None else drafter.drafter
        return loaded[-1], asdict(choose(options, platform, own)) | {
            "capacity": asdict(loaded[-1].capacity), "exact": loaded[-1].exact, "start_seconds": time.monotonic() - started}

    def add(kind: str, one: Engine, facts: dict[str, Any]) -> None:
        made.extend(Mode(name=name, engine=one, exact=one.exact, facts=facts, lookup=not name.startswith(DRAFTER))
                    for name in names if name.split(":")[0] == kind)

    plain, drafting = ({kind for kind in kinds if any(name.split(":")[0] == kind for name in names)}
                       for kinds in ((OFF, LOOKUP), (DRAFTER, BOTH)))
    try:
        if FAST in names:
            tried = []
            for dtype in fast_dtypes(config.fast_dtypes, engine):
                one, facts = load(f"{FAST} {dtype}", fast_options(engine, dtype), NO_DRAFTER)
                tried.append(Mode(name=f"{FAST} {dtype}", exact=False, engine=one, facts=facts))
            made.append(_fastest(tried, prompt, log))
        if plain:
            one, facts = load(" and ".join(sorted(plain)), engine, NO_DRAFTER)
            for kind in (OFF, LOOKUP):
                add(kind, one, facts)
        if drafting:
            one, facts = load(" and ".join(sorted(drafting)), engine, NO_HOOKS)
            for kind in (DRAFTER, BOTH):
                add(kind, one, facts)
        for mode in made:
            _warm(mode, prompt)
        yield made
    finally:
        for one in loaded:
            one.close()


def _fastest(candidates: Sequence[Mode], prompt: Prompt, log: Callable[[str], None]) -> Mode:
    """The dtype in which a few tokens take the least time; the others are closed."""
    seconds = {mode.name: min(_warm(mode, prompt) for _ in range(3)) for mode in candidates} if len(candidates) > 1 else {}
    best = min(candidates, key=lambda mode: seconds.get(mode.name, 0.0))
    for mode in candidates:
        if mode is not best:
            log(f"{best.name} is faster than {mode.name}: {PROBE_TOKENS} tokens in {seconds[best.name] * 1e3:.0f} ms and "
                f"{seconds[mode.name] * 1e3:.0f} ms")
            mode.engine.close()
    return best


def _warm(mode: Mode, prompt: Prompt) -> float:
    """Seconds that a short answer's decoding took."""
    with mode.entered():
        (answer,) = serve(mode.engine, [prompt], mode.params(0.0, PROBE_TOKENS, ignore_eos=True), live=1, round=0).answers
        mode.settle()
    return answer.decode_seconds
