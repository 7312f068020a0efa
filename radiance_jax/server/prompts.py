"""Prompts of a request to token ids."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from radiance_jax.errors import UserError
from radiance_jax.server.schema import Message
from radiance_jax.text.chat import no_template

MAX_TOKEN_ID = 2**31 - 1  # the engine knows the vocabulary; this keeps ids in 32 bits


@dataclass(frozen=True)
class Prompt:
    """`text` is None where the client sent token ids."""

    ids: tuple[int, ...]
    text: str | None = None


def is_ids(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(each) is int for each in value)


def check_ids(ids: Sequence[int], param: str) -> tuple[int, ...]:
    if not all(0 <= each <= MAX_TOKEN_ID for each in ids):
        raise UserError(f"{param} holds a token id outside the vocabulary", param=param)
    return tuple(ids)


def completion_prompts(value: Any, tokenizer: Any, add_special_tokens: bool, most: int) -> list[Prompt]:
    """A string, a list of strings, token ids, or a list of lists of token ids; at most `most` of them."""
    many = value if isinstance(value, list) and value and not is_ids(value) else [value]
    if len(many) > most:  # before any is tokenised
        raise UserError(f"one request may ask for at most {most} answers here; got {len(many)} prompts", param="prompt")
    prompts = []
    for each in many:
        if isinstance(each, str):
            ids = tokenizer.encode(each, add_special_tokens=add_special_tokens)
            if not ids:
                raise UserError("prompt must hold at least one token", param="prompt")
            prompts.append(Prompt(tuple(ids), each))
        elif is_ids(each):
            prompts.append(Prompt(check_ids(each, "prompt")))
        else:
            raise UserError("prompt must be a string, a list of strings, a list of token ids, or a list of such lists, "
                            "none of them empty", param="prompt")
    return prompts


def template_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Messages without the empty keys that clients echo back; OpenAI's `developer` is the template's `system`."""
    out = []
    for message in messages:
        fields = {name: value for name, value in message.model_dump().items() if value not in (None, [], {})}
        out.append(fields | {"role": "system" if message.role == "developer" else message.role})
    return out


def chat_prompt(chat: Any, tokenizer: Any, messages: Sequence[Message], add_generation_prompt: bool,
                template_kwargs: dict[str, Any] | None, add_special_tokens: bool = False) -> Prompt:
    """Renders the template, which brings its own special tokens."""
    if chat is None:
        raise no_template("use /v1/completions")
    extra = template_kwargs or {}
    clash = {"messages", "add_generation_prompt", "tools"} & set(extra)
    if clash:
        raise UserError(f"chat_template_kwargs may not hold {sorted(clash)[0]!r}; it has its own field",
                        param="chat_template_kwargs")
    text = chat.render(template_messages(messages), add_generation_prompt=add_generation_prompt, **extra)
    ids = tokenizer.encode(text, add_special_tokens=add_special_tokens)
    if not ids:
        raise UserError("messages must render to at least one token", param="messages")
    return Prompt(tuple(ids), text)
