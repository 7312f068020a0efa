"""The engines that `bench speed` compares: the one configured, and the fastest that does not draft."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

import jax

from radiance_jax.bench import prompt_sets
from radiance_jax.bench.config import DTYPES, FAST, FIXED, OFF, ON, SpeedConfig, engine_values, numbers, words
from radiance_jax.bench.prompt_sets import Prompt
from radiance_jax.bench.record import log
from radiance_jax.config import EngineConfig
from radiance_jax.container.default_model import model_file
from radiance_jax.container.source import open_model
from radiance_jax.engine.choices import choose
from radiance_jax.engine.engine import Engine
from radiance_jax.errors import UserError
from radiance_jax.models.config import parse_config
from radiance_jax.text.chat import ChatTemplate
from radiance_jax.text.tokenizer import Tokenizer

LEAST_CONTEXT = 512  # contexts are powers of two from here on, so that a few tokens more do not compile other programs


@dataclass(frozen=True, kw_only=True)
class Mode:
    """An engine, and the cap on drafts and the draft window its requests carry. `facts` is what start-up decided."""

    name: str
    engine: Engine
    drafts: bool
    exact: bool
    max_draft_tokens: int | None
    facts: dict[str, Any]
    window: str | None = None


def prepare(config: SpeedConfig, prompts: Sequence[Prompt]) -> tuple[list[Prompt], EngineConfig]:
    """Token ids of the prompts, and an engine configuration with room for them and no more: several engines live side
    by side. Raises `UserError` for what does not fit."""
    dtype = choose(config, jax.default_backend()).dtype
    model = open_model(model_file(config.model, config.cache_dir, dtype, log))
    tokenizer = Tokenizer.from_model(model)
    encoded = prompt_sets.encode(prompts, tokenizer, ChatTemplate.from_model(model, tokenizer))
    most = max(numbers("sequences", config.sequences))
    for name in dict.fromkeys(each.set for each in encoded):
        count = sum(each.set == name for each in encoded)
        if count < most:
            raise UserError(f"sequences must be at most the prompts of every set; got {most}, and {count} in {name!r}",
                            param="sequences")
    longest = max(encoded, key=lambda each: len(each.ids))
    need, limit = len(longest.ids) + config.max_tokens, parse_config(model.config).max_position
    if need > min(config.max_model_len or limit, limit):
        raise UserError(f"prompt and answer must fit the context of {min(config.max_model_len or limit, limit)} tokens; "
                        f"prompt {longest.id} of {longest.set} needs {need}", param="prompts")
    room = config.max_model_len or min(max(1 << (need - 1).bit_length(), LEAST_CONTEXT), limit)
    return encoded, EngineConfig(**engine_values(config) | {
        "max_model_len": room, "max_num_seqs": max(most, config.max_num_seqs)})


def _cap(mode: str) -> int | None:
    """Of the drafts of a request: 0 for off, 3 for "fixed:3", else as the engine has it."""
    _, _, cap = mode.partition(":")
    return 0 if mode == OFF else int(cap) if cap else None


def fast_dtypes(asked: str | None, engine: EngineConfig) -> tuple[str, ...]:
    """The dtypes among which the fastest engine without drafts is looked for."""
    platform = jax.default_backend()
    if asked:
        return words("fast_dtypes", asked)
    return DTYPES if platform == "cpu" else (choose(engine, platform).dtype,)


def fast_options(engine: EngineConfig, dtype: str) -> EngineConfig:
    """The fastest engine that does not draft and promises nothing."""
    return replace(engine, dtype=dtype, bit_exact="off", num_speculative_tokens=0, spec_ngram=None, row_tile=None)


@contextmanager
def modes(config: SpeedConfig, engine: EngineConfig, log: Callable[[str], None]) -> Iterator[list[Mode]]:
    """Loads the engines one after the other and closes them all at the end."""
    platform, wanted, made, loaded = jax.default_backend(), words("modes", config.modes), [], []

    def load(name: str, options: EngineConfig) -> tuple[Engine, dict[str, Any], bool]:
        log(f"-- {name} --")
        chosen = choose(options, platform)
        loaded.append(Engine.load(options, log))
        capacity = loaded[-1].capacity  # with the drafter in the model's file, which `choose` was not shown
        facts = asdict(chosen) | {"depth": capacity.depth, "exact": loaded[-1].exact, "capacity": asdict(capacity)}
        return loaded[-1], facts, loaded[-1].exact

    try:
        if FAST in wanted:
            for dtype in fast_dtypes(config.fast_dtypes, engine):
                one, facts, exact = load(f"{FAST} {dtype}", fast_options(engine, dtype))
                made.append(Mode(name=f"{FAST} {dtype}", engine=one, drafts=False, exact=exact, max_draft_tokens=None,
                                 facts=facts))
        own = [name for name in wanted if name != FAST]
        if own:
            one, facts, exact = load(" and ".join(own), engine)
            made += [Mode(name=name, engine=one, drafts=name != OFF, exact=exact, facts=facts, max_draft_tokens=_cap(name),
                          window=FIXED if name.startswith(FIXED) else None) for name in own]
        if ON in wanted and not made[-1].facts["depth"]:
            raise UserError("mode 'on' needs an engine that drafts; this one has a draft depth of 0", param="modes")
        yield made
    finally:
        for one in loaded:
            one.close()
