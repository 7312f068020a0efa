"""Answering while watching the client: one that leaves takes its work with it."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send


async def _gone(receive: Receive) -> None:
    """Returns once the client has closed the connection."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _run_while_connected(work: Awaitable[Any], receive: Receive) -> tuple[bool, Any]:
    """(True, result) of `work`, or (False, None) where the client left first and `work` was cancelled."""
    job, watch = asyncio.ensure_future(work), asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait({job, watch}, return_when=asyncio.FIRST_COMPLETED)
        return (True, job.result()) if job.done() else (False, None)
    finally:
        watch.cancel()
        if not job.done():
            job.cancel()
        await asyncio.gather(job, watch, return_exceptions=True)


async def while_connected(request: Request, work: Awaitable[Response]) -> Response:
    """The response `work` makes; an empty one, which nobody reads, if the client leaves."""
    finished, response = await _run_while_connected(work, request.receive)
    return response if finished else Response(status_code=499)


class EventStream(Response):
    """Server-sent events from an async generator of bytes. However it ends, `close` is called once."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[bytes], close: Callable[[], None]):
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self.events, self.close = events, close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await _run_while_connected(self._send(send), receive)
        finally:
            self.close()

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        try:
            async for event in self.events:
                await send({"type": "http.response.body", "body": event, "more_body": True})
        except OSError:  # the socket went away under us
            return
        finally:
            await self.events.aclose()
        await send({"type": "http.response.body", "body": b"", "more_body": False})
