"""From a prompt, and the answers it is about, to the token ids that the target reads."""

from collections.abc import Sequence
from typing import Any

from radiance_jax.training.prompts import Prompt, evaluation_sets

LONGEST_OF_SEVERAL = 1100  # characters of each document where a prompt has several


def messages(prompt: Prompt, answers: Sequence[str], before: Prompt | None = None) -> list[dict[str, str]]:
    """The conversation. `answers` are those to the prompt's parents; `before` is the prompt of the first turn."""
    if prompt.turn:
        assert before is not None
        return [{"role": "user", "content": before.text}, {"role": "assistant", "content": answers[0].strip()},
                {"role": "user", "content": prompt.text}]
    return [{"role": "user", "content": with_passage(prompt.text, answers) if prompt.parents else prompt.text}]


def with_passage(text: str, answers: Sequence[str]) -> str:
    """The answers where `text` says `{passage}`."""
    limit = LONGEST_OF_SEVERAL if len(answers) > 1 else None
    return text.replace("{passage}", "\n".join(cut(answer.strip(), limit) for answer in answers))


def cut(text: str, limit: int | None) -> str:
    """At most `limit` characters, up to the end of a sentence where there is one.

    In:  "One. Two. Three.", 11    Out: "One. Two."
    """
    if limit is None or len(text) <= limit:
        return text
    end = text.rfind(". ", 0, limit)
    return text[:end + 1] if end > 0 else text[:limit]


def encode(engine: Any, prompt: Prompt, answers: Sequence[str], before: Prompt | None = None) -> list[int] | None:
    """Token ids, through the model's chat template if it has one, else text to continue. None for a prompt that must not
    be: one about an answer without text, or in which the target quotes an evaluation set."""
    if not all(answer.strip() for answer in answers):
        return None
    said = messages(prompt, answers, before)
    if prompt.parents and any(evaluation_sets().shares(each["content"]) for each in said):
        return None
    if engine.chat is None:
        return engine.tokenizer.encode("\n\n".join(each["content"] for each in said), add_special_tokens=True)
    return engine.tokenizer.encode(engine.chat.render(said, add_generation_prompt=True), add_special_tokens=False)
