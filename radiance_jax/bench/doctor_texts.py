"""The texts of `bench doctor`: what the target answers, put to it in several ways, and what the engine got accepted."""

from collections.abc import Callable, Sequence
from typing import Any

from radiance_jax.bench import doctor_readings as readings
from radiance_jax.bench import figures
from radiance_jax.bench.doctor_replay import Text
from radiance_jax.bench.figures import Answer
from radiance_jax.bench.measure import serve
from radiance_jax.bench.prompt_sets import Prompt
from radiance_jax.config import EngineConfig
from radiance_jax.engine.engine import Engine
from radiance_jax.engine.request import SamplingParams
from radiance_jax.errors import UserError

LIVE = 4  # so few that the drafts of all fit a step
LEAST_CONTEXT = 256


def put(prompts: Sequence[Prompt], tokenizer: Any, chat: Any) -> dict[str, list[Prompt]]:
    """The prompts as token ids, by the way they are put: through the chat template as served, without the mark that an answer
    begins, and as plain text. Ids given by the user, and a model without a template, can be put in one way only."""
    def plain(each: Prompt) -> tuple[int, ...]:
        return each.ids or tuple(tokenizer.encode(each.text, add_special_tokens=True))

    def templated(each: Prompt, mark: bool) -> tuple[int, ...]:
        text = chat.render([{"role": "user", "content": each.text}], add_generation_prompt=mark)
        return tuple(tokenizer.encode(text, add_special_tokens=False))

    if chat is None or any(each.ids for each in prompts):
        return {readings.RAW: [Prompt(set=each.set, id=each.id, ids=plain(each)) for each in prompts]}
    ways: dict[str, Callable[[Prompt], tuple[int, ...]]] = {
        readings.TEMPLATED: lambda each: templated(each, True), readings.NO_ANSWER_MARK: lambda each: templated(each, False),
        readings.RAW: plain}
    made = {name: [Prompt(set=each.set, id=each.id, ids=way(each)) for each in prompts] for name, way in ways.items()}
    if made[readings.NO_ANSWER_MARK] == made[readings.TEMPLATED]:
        del made[readings.NO_ANSWER_MARK]
    return made


def write(engine: EngineConfig, ways: dict[str, list[Prompt]], params: SamplingParams, limit: int,
          log: Callable[[str], None]) -> tuple[dict[str, list[Text]], Sequence[Answer]]:
    """The target's answers by way, and those of the first way as the engine gave them. The drafter drafts alone, always all it
    may. `limit`: the model's context."""
    need = max(len(each.ids) for prompts in ways.values() for each in prompts) + params.max_tokens
    if need > limit:
        raise UserError(f"prompt and answer must fit the model's context of {limit} tokens; the longest needs {need}",
                        param="prompts")
    room = min(max(1 << (need - 1).bit_length(), LEAST_CONTEXT), limit)
    alone = {"max_model_len": room, "max_num_seqs": LIVE, "spec_ngram": 0, "draft_window": "fixed"}
    one = Engine.load(EngineConfig(**vars(engine) | alone), log)
    texts, first = {}, None
    try:
        for name, prompts in ways.items():
            done = serve(one, prompts, params, live=LIVE, round=0)
            first = first or done
            texts[name] = [Text(each.id, (*each.ids, *answer.ids), len(each.ids), len(answer.ids) == params.max_tokens)
                           for each, answer in zip(prompts, done.answers, strict=True)]
    finally:
        one.close()
    return texts, first.answers


def accepted(answers: Sequence[Answer]) -> dict[str, Any]:
    """The engine's own acceptance: histogram of accepted drafts, and tokens a verify step."""
    found = figures.acceptance([answer.stats for answer in answers])
    histogram = found["acceptance_histogram"]
    return {
        "acceptance_histogram": histogram,
        "accepted_a_step": sum(i * count for i, count in enumerate(histogram)) / max(sum(histogram), 1),
        "tokens_per_verify": found["tokens_per_verify"] or 0.0}
