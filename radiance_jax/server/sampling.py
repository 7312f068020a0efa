"""Request bodies to `SamplingParams`: the body's word, else the model's default, else ours."""

from typing import Any

from radiance_jax.config import known_defaults
from radiance_jax.engine.request import MAX_LOGIT_BIAS, SamplingParams
from radiance_jax.errors import UserError
from radiance_jax.server.schema import ChatRequest, CompletionRequest, SamplingFields

MAX_STOPS = 64  # every token of the answer is held against each, on the thread that serves everybody
COMPLETION_MAX_TOKENS = 16  # OpenAI's default; chat goes on to the end of the context
SAME_NAME = ("min_tokens", "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty",
             "repetition_penalty", "seed", "ignore_eos")


def _shared(body: SamplingFields, defaults: dict[str, Any]) -> dict[str, Any]:
    given = {name: getattr(body, name) for name in SAME_NAME if getattr(body, name) is not None}
    values = known_defaults(defaults) | given
    if body.stop is not None:
        values["stop"] = _stops(body.stop)
    if body.stop_token_ids is not None:
        values["stop_token_ids"] = tuple(body.stop_token_ids)
    if body.logit_bias:
        values["logit_bias"] = _logit_bias(body.logit_bias)
    if body.speculative is not None:
        values["max_draft_tokens"] = _draft_cap(body)
        values["draft_window"] = body.speculative.window
    return values


def _stops(given: str | list[str]) -> tuple[str, ...]:
    stops = (given,) if isinstance(given, str) else tuple(dict.fromkeys(given))
    if len(stops) > MAX_STOPS or not all(stops):
        raise UserError(f"stop must be at most {MAX_STOPS} strings, none empty; got {len(stops)}"
                        + ("" if all(stops) else ", one of them empty"), param="stop")
    return stops


def _draft_cap(body: SamplingFields) -> int | None:
    block = body.speculative
    if not block.enabled:
        return 0
    if None not in (block.max_draft_tokens, block.n_max) and block.max_draft_tokens != block.n_max:
        raise UserError("speculative.max_draft_tokens and speculative.n_max are one setting; give one of them",
                        param="speculative")
    return block.n_max if block.max_draft_tokens is None else block.max_draft_tokens


def _logit_bias(raw: dict[str, Any]) -> tuple[tuple[int, float], ...]:
    """`{"50256": -100}` to pairs; token ids come as text because JSON keys do."""
    if len(raw) > MAX_LOGIT_BIAS:
        raise UserError(f"logit_bias may name at most {MAX_LOGIT_BIAS} tokens; got {len(raw)}", param="logit_bias")
    pairs = {}
    for token, bias in raw.items():
        if not (token.isascii() and token.isdecimal() and len(token) < 10):
            raise UserError(f"logit_bias keys must be token ids; got {token[:40]!r}", param="logit_bias")
        if isinstance(bias, bool) or not isinstance(bias, (int, float)) or not -100 <= bias <= 100:
            raise UserError(f"logit_bias values must be numbers from -100 to 100; token {token} has another",
                            param="logit_bias")
        pairs[int(token)] = float(bias)
    return tuple(sorted(pairs.items()))


def chat_params(body: ChatRequest, defaults: dict[str, Any]) -> SamplingParams:
    values = _shared(body, defaults)
    limits = [limit for limit in (body.max_completion_tokens, body.max_tokens) if limit is not None]
    if len(set(limits)) > 1:
        raise UserError("max_tokens and max_completion_tokens are one setting; give one of them", param="max_tokens")
    if limits:
        values["max_tokens"] = limits[0]
    if body.top_logprobs is not None and not body.logprobs:
        if body.top_logprobs:
            raise UserError("top_logprobs needs logprobs: true", param="top_logprobs")
    elif body.logprobs:
        values["logprobs"] = body.top_logprobs or 0
    return SamplingParams(**values)


def completion_params(body: CompletionRequest, defaults: dict[str, Any]) -> SamplingParams:
    """With `echo`, `max_tokens` 0 is allowed and asks for the prompt alone; the one token drawn is dropped."""
    values = _shared(body, defaults)
    values["max_tokens"] = COMPLETION_MAX_TOKENS if body.max_tokens is None else body.max_tokens
    if body.echo and body.max_tokens == 0:
        values["max_tokens"] = 1
    values["logprobs"] = body.logprobs
    if body.echo:
        values["prompt_logprobs"] = body.logprobs
    if body.best_of is not None and body.best_of != (body.n or 1):
        raise UserError("best_of other than n is not available", param="best_of")
    return SamplingParams(**values)
