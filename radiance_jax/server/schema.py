"""What a request body may hold. A field that would change the answer is honoured or refused, never dropped."""

from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from radiance_jax.errors import UserError, nearest

# Accepted and without effect here: they name the user or tune storage, never the answer.
IGNORED = ("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key",
           "prompt_cache_retention", "parallel_tool_calls")
FLAT_SPECULATIVE = "speculative."
Ints = Annotated[list[int], Field(fail_fast=True)]  # one error is enough: a hostile list may be long


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)


class StreamOptions(Strict):
    include_usage: bool = False
    include_obfuscation: bool = False  # padding of chunks; there is none here either way
    continuous_usage_stats: Literal[False] = False


class Speculative(Strict):
    """`n_max` is llama.cpp's name of `max_draft_tokens`."""

    enabled: bool = True
    max_draft_tokens: int | None = Field(None, ge=0)
    n_max: int | None = Field(None, ge=0)
    window: Literal["fixed", "adaptive"] | None = None


class ResponseFormat(Strict):
    type: Literal["text"]


class SamplingFields(Strict):
    """Fields that chat and completions share. None means "not given"."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = Field(None, ge=1, le=128)
    max_tokens: int | None = None
    min_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, Any] | None = None  # checked in sampling.py
    seed: int | None = None
    stop: str | Annotated[list[str], Field(fail_fast=True)] | None = None
    stop_token_ids: Ints | None = None
    ignore_eos: bool | None = None
    speculative: Speculative | None = None
    return_metrics: bool | None = None
    return_token_ids: bool | None = None
    response_format: ResponseFormat | None = None


class Message(BaseModel):
    """Other keys than these go to the chat template as they are."""

    model_config = ConfigDict(extra="allow", strict=True)
    role: str = Field(min_length=1)
    content: str | Annotated[list[dict[str, Any]], Field(fail_fast=True)] | None = None


Messages = Annotated[list[Message], Field(fail_fast=True, min_length=1)]


class TemplateFields(Strict):
    messages: Messages
    add_generation_prompt: bool = True
    chat_template_kwargs: dict[str, Any] | None = None


class ChatRequest(SamplingFields, TemplateFields):
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0)
    tools: list[Any] | None = Field(None, max_length=0)
    tool_choice: Literal["none", "auto"] | None = None


class CompletionRequest(SamplingFields):
    prompt: Any  # checked in prompts.py
    logprobs: int | None = Field(None, ge=0)
    echo: bool | None = None
    suffix: Literal[""] | None = None
    best_of: int | None = None
    add_special_tokens: bool = True


class TokenizeRequest(Strict):
    model: str | None = None
    prompt: str | None = None
    messages: Messages | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool = True
    chat_template_kwargs: dict[str, Any] | None = None
    return_token_strs: bool = False


class DetokenizeRequest(Strict):
    model: str | None = None
    tokens: Ints


NOT_YET = {
    "tools": "tools are not available in this version",
    "tool_choice": "a tool cannot be demanded: tools are not available in this version",
    "response_format": 'only {"type": "text"} is available in this version',
    "suffix": "completion before a suffix is not available",
    "stream_options.continuous_usage_stats": "usage comes once, at the end of a stream",
}


def parse_body[M: Strict](schema: type[M], body: dict[str, Any]) -> M:
    """The body as `schema`. Raises `UserError` naming the first field at fault."""
    body = {name: value for name, value in body.items() if name not in IGNORED}
    flat = {name: body.pop(name) for name in list(body) if name.startswith(FLAT_SPECULATIVE)}
    if flat:
        block = body.get("speculative") or {}
        if not isinstance(block, dict):
            raise UserError("speculative must be an object", param="speculative")
        body["speculative"] = block | {name.removeprefix(FLAT_SPECULATIVE): value for name, value in flat.items()}
    _refuse_unknown(schema, body)
    try:
        return schema.model_validate(body)
    except ValidationError as error:
        raise _as_user_error(error) from None


def _refuse_unknown(schema: type[BaseModel], body: dict[str, Any], prefix: str = "") -> None:
    for name, value in body.items():
        if name not in schema.model_fields:
            hint = nearest(name, schema.model_fields)
            raise UserError(f"unknown field {prefix + name!r}{hint}"[:300], param=(prefix + name)[:100])
        if isinstance(value, dict) and name not in NOT_YET:
            inner = [each for each in get_args(schema.model_fields[name].annotation)
                     if isinstance(each, type) and issubclass(each, Strict)]
            if inner:
                _refuse_unknown(inner[0], value, f"{prefix}{name}.")


def _as_user_error(error: ValidationError) -> UserError:
    problems = error.errors(include_url=False, include_context=False, include_input=False)
    path = [str(part) for part in problems[0]["loc"]]
    name = path[0] if path else "body"
    for key in (name, ".".join(path[:2])):
        if key in NOT_YET:
            return UserError(f"{key}: {NOT_YET[key]}", param=key)
    if problems[0]["type"] == "missing":
        return UserError(f"{'.'.join(path)} is required", param=name)
    same = [each["msg"] for each in problems if each["loc"] and str(each["loc"][0]) == name]
    return UserError(f"{name}: {'; or '.join(dict.fromkeys(same[:4]))}", param=name)
