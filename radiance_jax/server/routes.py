"""The routes that answer with text from the model, and the small ones about tokens and models."""

import asyncio
from importlib import metadata
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from radiance_jax.engine.stats import EngineStats
from radiance_jax.errors import UserError
from radiance_jax.server import metrics as prometheus
from radiance_jax.server.answer import to_json
from radiance_jax.server.body import read_json
from radiance_jax.server.chat import ChatShape
from radiance_jax.server.completions import CompletionShape
from radiance_jax.server.errors import HttpError
from radiance_jax.server.generation import Generation
from radiance_jax.server.prompts import chat_prompt, check_ids, completion_prompts
from radiance_jax.server.respond import Job, respond
from radiance_jax.server.sampling import chat_params, completion_params
from radiance_jax.server.schema import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    SamplingFields,
    TokenizeRequest,
    parse_body,
)
from radiance_jax.server.state import ServerState


def state_of(request: Request) -> ServerState:
    return request.app.state.radiance


def answer(value: Any, status: int = 200) -> Response:
    return Response(to_json(value), status, media_type="application/json")


def _check(state: ServerState, body: SamplingFields) -> None:
    state.check_model(body.model)
    if body.stream_options is not None and not body.stream:
        raise UserError("stream_options needs stream: true", param="stream_options")


async def chat_completions(request: Request) -> Response:
    state = state_of(request)
    engine = state.working_engine()
    body = parse_body(ChatRequest, await read_json(request))
    _check(state, body)
    params = chat_params(body, engine.defaults)
    prompt = await asyncio.to_thread(chat_prompt, engine.chat, engine.tokenizer, body.messages,
                                     body.add_generation_prompt, body.chat_template_kwargs)
    generation = Generation(engine, state.gate, [prompt.ids], body.n or 1, params)
    shape = ChatShape(state.pieces, params.logprobs is not None, bool(body.return_token_ids))
    return await respond(request, Job(body, shape, generation, state.model_name))


async def completions(request: Request) -> Response:
    state = state_of(request)
    engine = state.working_engine()
    body = parse_body(CompletionRequest, await read_json(request))
    _check(state, body)
    params = completion_params(body, engine.defaults)
    prompts = await asyncio.to_thread(completion_prompts, body.prompt, engine.tokenizer, body.add_special_tokens,
                                      state.gate.limit)
    generation = Generation(engine, state.gate, [prompt.ids for prompt in prompts], body.n or 1, params)
    shape = CompletionShape(state.pieces, prompts, body.n or 1, logprobs=params.logprobs is not None,
                            echo=bool(body.echo), prompt_only=bool(body.echo) and body.max_tokens == 0,
                            token_ids=bool(body.return_token_ids))
    return await respond(request, Job(body, shape, generation, state.model_name))


async def tokenize(request: Request) -> Response:
    """`prompt` (special tokens added unless told otherwise) or `messages` (never, unless told)."""
    state = state_of(request)
    engine = state.ready_engine()
    body = parse_body(TokenizeRequest, await read_json(request))
    state.check_model(body.model)
    if (body.prompt is None) == (body.messages is None):
        raise UserError("give either prompt or messages", param="prompt")
    special = body.add_special_tokens
    if body.messages is not None:
        prompt = await asyncio.to_thread(chat_prompt, engine.chat, engine.tokenizer, body.messages,
                                         body.add_generation_prompt, body.chat_template_kwargs, bool(special))
        ids = list(prompt.ids)
    else:
        ids = list(await asyncio.to_thread(engine.tokenizer.encode, body.prompt,
                                           add_special_tokens=special is None or special))
    texts = {"token_strs": [state.pieces[each][0] for each in ids]} if body.return_token_strs else {}
    return answer({"count": len(ids), "max_model_len": engine.max_model_len, "tokens": ids} | texts)


async def detokenize(request: Request) -> Response:
    state = state_of(request)
    engine = state.ready_engine()
    body = parse_body(DetokenizeRequest, await read_json(request))
    state.check_model(body.model)
    ids = list(check_ids(body.tokens, "tokens"))
    text = await asyncio.to_thread(engine.tokenizer.decode, ids, skip_special_tokens=False)
    return answer({"prompt": text})


def _model(state: ServerState) -> dict[str, Any]:
    return {"id": state.model_name, "object": "model", "created": state.created, "owned_by": "radiance_jax",
            "max_model_len": state.ready_engine().max_model_len}


async def models(request: Request) -> Response:
    return answer({"object": "list", "data": [_model(state_of(request))]})


async def model(request: Request) -> Response:
    state = state_of(request)
    state.check_model(request.path_params["name"])
    return answer(_model(state))


async def health(request: Request) -> Response:
    """200 once warm; 503 while loading, after the engine failed, and during shutdown."""
    state = state_of(request)
    if state.gate.closing or not state.ready_engine().healthy():
        raise HttpError(503, "shutting down" if state.gate.closing else "the engine has failed", code="unhealthy")
    return answer({"status": "ok"})


async def metrics(request: Request) -> Response:
    state = state_of(request)
    engine = state.engine
    body = prometheus.render(engine.stats if engine else EngineStats, state.model_name if engine else "loading")
    return Response(body, headers={"Content-Type": prometheus.CONTENT_TYPE})


async def version(request: Request) -> Response:
    try:
        number = metadata.version("radiance-jax")
    except metadata.PackageNotFoundError:  # run from a checkout
        number = "0+checkout"
    return answer({"version": number})
