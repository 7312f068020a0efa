"""Runs a request's answers and shapes them: whole, or as a stream of chunks."""

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import Response

from radiance_jax.engine.request import Delta
from radiance_jax.server.answer import DONE, Answer, Endings, event, header, metrics, to_json, usage
from radiance_jax.server.connection import EventStream, while_connected
from radiance_jax.server.errors import as_http, error_body
from radiance_jax.server.generation import Generation
from radiance_jax.server.schema import SamplingFields


class Shape(Protocol):
    """How one endpoint writes its choices."""

    prefix: str  # of the answer's id
    kind: str  # "object" of a whole answer
    chunk_kind: str
    prompt_only: bool  # whether nothing of what is drawn is told

    def choice(self, index: int, answer: Answer) -> dict[str, Any]:
        """A whole answer."""

    def opening(self, index: int) -> dict[str, Any] | None:
        """What a stream says of a choice before its first token."""

    def chunk(self, index: int, delta: Delta) -> dict[str, Any] | None:
        """One delta; None where it has nothing to say yet."""


@dataclass(frozen=True)
class Job:
    """Everything that `respond` needs to know about a request."""

    body: SamplingFields
    shape: Shape
    generation: Generation
    model: str

    @property
    def count(self) -> int:
        return len(self.generation.prompts) * self.generation.n


async def respond(request: Request, job: Job) -> Response:
    """Raises what `Engine.submit` raises, before anything is sent."""
    if not job.body.stream:
        return await while_connected(request, _whole(job))
    await job.generation.__aenter__()
    return EventStream(_stream(job), job.generation.close)


async def _whole(job: Job) -> Response:
    answers = [Answer() for _ in range(job.count)]
    async with job.generation as generation:
        async for index, delta in generation:
            answers[index].add(delta)
    choices = [job.shape.choice(index, answer) for index, answer in enumerate(answers)]
    value = header(job.shape.prefix, job.shape.kind, job.model)
    value |= {"choices": choices, "usage": usage(job.generation.prompts, answers, job.shape.prompt_only)}
    if job.body.return_token_ids and len(job.generation.prompts) == 1:
        value["prompt_token_ids"] = job.generation.prompts[0]
    if job.body.return_metrics:
        value["metrics"] = metrics(answers)
    return Response(to_json(value), media_type="application/json")


def _endings(job: Job) -> Endings:
    """Metrics ride the usage chunk, so asking for them asks for it."""
    wanted, options = bool(job.body.return_metrics), job.body.stream_options
    return Endings(wanted or bool(options and options.include_usage), wanted, job.shape.prompt_only)


async def _stream(job: Job) -> AsyncGenerator[bytes]:
    answers = [Answer() for _ in range(job.count)]
    head, endings = header(job.shape.prefix, job.shape.chunk_kind, job.model), _endings(job)
    try:
        for index in range(job.count):
            choice = job.shape.opening(index)
            if choice is not None:
                yield endings.chunk(head, choice)
        async for index, delta in job.generation:
            answers[index].add(delta)
            choice = job.shape.chunk(index, delta)
            if choice is not None:
                yield endings.chunk(head, choice)
        yield endings.last(head, job.generation.prompts, answers)
    except Exception as error:  # the status line is gone; the error travels as an event
        yield event(error_body(as_http(error))) + DONE
