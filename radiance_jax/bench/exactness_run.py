"""One run of `bench exactness`: the engine under test, the requests of this part, their oracles, and the outcomes so far."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import batched
from pathlib import Path
from typing import Any

import jax

from radiance_jax.bench import exactness_parts, forced, prompt_sets
from radiance_jax.bench.config import engine_values
from radiance_jax.bench.exactness import ExactnessConfig
from radiance_jax.bench.exactness_asks import WAYS, Ask, Told, ask_all, differences
from radiance_jax.bench.exactness_oracles import Answers, Oracles, manifest, name_of
from radiance_jax.bench.record import log
from radiance_jax.config import MAX_DRAFT_DEPTH, EngineConfig
from radiance_jax.container.default_model import model_file
from radiance_jax.container.source import open_model
from radiance_jax.engine.build import container_drafter
from radiance_jax.engine.choices import choose
from radiance_jax.engine.engine import Engine
from radiance_jax.errors import RadianceError, UserError
from radiance_jax.models.config import parse_config
from radiance_jax.spec.drafter import Drafter
from radiance_jax.text.chat import ChatTemplate
from radiance_jax.text.tokenizer import Tokenizer

PROMPTS = "spec_bench_100"
CONTEXTS = 64  # contexts are rounded up to a multiple of this


class Run:
    """`asks` are this part's requests; `everything` is all there are, so that all parts share one program and one table
    of proposals. `oracle` is by seed. Every outcome calls `save`."""

    def __init__(self, config: ExactnessConfig, save: Callable[[], None], until: float | None):
        self.config, self.save, self.until = config, save, until
        self.part = exactness_parts.part_of(config.part)
        self.options, self.everything, self.drafter = _prepare(config)
        self.asks = [each for each in self.everything if each.seed // len(WAYS) % self.part[1] == self.part[0] - 1]
        if not self.asks:
            raise UserError(f"part must be one of at most as many as there are prompts; got {config.part}", param="part")
        self.chosen = choose(self.options, jax.default_backend(), self.drafter)
        self.outcomes: list[dict[str, Any]] = []
        self.hooks = forced.hooks(len(self.everything), config.max_tokens + 1, self.chosen.depth)
        self.engine = Engine.load(self.options, log, self.hooks)
        self.vocab = self.engine.model_config.vocab_size
        self.manifest = manifest(open_model(Path(self.options.model)).fingerprint, self.engine, self.chosen, config.mesh_size)
        self.oracle: dict[int, dict[str, Any]] = {}

    @property
    def crowd(self) -> int:
        """Answers that can be live at once."""
        return min(self.config.crowd, len(self.asks))

    @property
    def few(self) -> list[Ask]:
        """One in so many of the prompts, each way."""
        return self.asks[:max(len(self.asks) // (2 * self.config.one_in), 1) * 2]

    def ask(self, asks: Sequence[Ask], live: int, engine: Engine | None = None, **changes: Any) -> list[Told]:
        return ask_all(engine or self.engine, asks, live, self.until, **changes)

    def learn(self) -> None:
        """Alone, one token a step, in as few prefill chunks as there can be, undrafted; or from the file of `--oracles`."""
        start, store = time.monotonic(), Oracles(self.config.oracles, self.manifest) if self.config.oracles else None
        known: Answers = store.read() if store else {}
        self.oracle = {each.seed: known[name_of(each)] for each in self.asks if name_of(each) in known}
        found = len(self.oracle)
        for part in batched([each for each in self.asks if each.seed not in self.oracle], 8):
            told = self.ask(part, 1, max_draft_tokens=0)
            if any(set(each.steps) != {1} or each.stats.num_draft_tokens for each in told):
                raise RadianceError("the oracle must be made one token a step")
            self.oracle |= {ask.seed: each.record() for ask, each in zip(part, told, strict=True)}
            if store:
                store.add(part, [self.oracle[each.seed] for each in part])
        log(f"{len(self.oracle)} oracles in {time.monotonic() - start:.0f} s"
            + (f", {found} of them from {store.path}" if store else ""))

    def compare(self, axis: str, circumstance: str, asks: Sequence[Ask], told: Sequence[Told], start: float,
                proven: Callable[[dict[str, int]], bool] = lambda activity: True, **activity: Any) -> None:
        """Adds an outcome. `asks` are the first ones of all; activity is what the answers say and what the caller adds."""
        made = {"draft_tokens": sum(each.stats.num_draft_tokens for each in told),
                "accepted": sum(each.stats.num_accepted_draft_tokens for each in told)} | activity
        found = differences(asks, [each.record() for each in told], [self.oracle[each.seed] for each in asks])
        self.add(axis, circumstance, len(told), found, made, proven(made), start)

    def add(self, axis: str, circumstance: str, cases: int, found: list, activity: dict, proven: bool, start: float) -> None:
        self.outcomes.append({"part": self.config.part, "axis": axis, "circumstance": circumstance, "cases": cases,
                              "differences": found, "activity": activity, "proven": bool(proven),
                              "seconds": time.monotonic() - start})
        self.save()
        log(f"{axis}, {circumstance}: {cases} answers, {len(found)} differ" + ("" if proven else "; NOT PROVEN"))

    def proposals(self, pattern: Sequence[int], depth: int) -> dict[str, Any]:
        """Of which exactly `pattern` is accepted, step by step, of every request."""
        knobs = forced.table(len(self.everything), self.config.max_tokens + 1, depth)
        for ask in self.asks:
            knobs["drafts"][ask.seed], knobs["count"][ask.seed] = forced.accepting(
                pattern, self.oracle[ask.seed]["ids"], self.config.max_tokens + 1, depth, self.vocab)
        return knobs

    @contextmanager
    def proposing(self, pattern: Sequence[int]) -> Iterator[None]:
        """Within, that is proposed."""
        self.engine._device.turn(self.proposals(pattern, self.chosen.depth))
        try:
            yield
        finally:
            self.engine._device.turn(self.hooks.knobs)


def _prepare(config: ExactnessConfig) -> tuple[EngineConfig, list[Ask], Drafter | None]:
    """The engine's configuration, with its model named and with room for prompts and answers; the requests; and the
    drafter in the model's file, beyond whose block no depth goes."""
    dtype = choose(config, jax.default_backend()).dtype
    path = model_file(config.model, config.cache_dir, dtype, log)
    model = open_model(path)
    tokenizer = Tokenizer.from_model(model)
    prompts = prompt_sets.read(prompt_sets.FOLDER / f"{PROMPTS}.jsonl", PROMPTS)[:config.prompts]
    prompts = prompt_sets.encode(prompts, tokenizer, ChatTemplate.from_model(model, tokenizer))
    settings = parse_config(model.config)
    drafter, _ = container_drafter(model, settings, config.drafter)
    deepest = min(max(config.depth_list()), drafter.block if drafter else MAX_DRAFT_DEPTH)
    limit = min(settings.max_position, config.max_model_len or 2**31)
    need = max(len(each.ids) for each in prompts) + config.max_tokens
    if need > limit:
        raise UserError(f"prompt and answer must fit the context of {limit} tokens; the longest needs {need}", param="max_tokens")
    depth = config.num_speculative_tokens
    if not depth or config.spec_ngram == 0 and drafter is None:
        raise UserError("num_speculative_tokens and spec_ngram must be more than 0: drafting is what is compared",
                        param="num_speculative_tokens")
    options = EngineConfig(**engine_values(config) | {
        "model": str(path), "max_model_len": config.max_model_len or min(-(-need // CONTEXTS) * CONTEXTS, limit),
        "num_speculative_tokens": deepest if depth == "auto" else depth,
        "draft_window": "fixed",  # but where a policy is asked for
        "spec_ngram_min": 1,  # one token that came before is enough: more drafts, more of them wrong
        "max_num_seqs": max(config.max_num_seqs, config.crowd)})
    asks = [(prompt, way) for prompt in prompts for way in WAYS]
    return options, [Ask(name=prompt.id, ids=prompt.ids, seed=number, way=way, max_tokens=config.max_tokens)
                     for number, (prompt, way) in enumerate(asks)], drafter
