"""The answers of one HTTP request: submits them, hands on their news, and never leaves one running."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

from radiance_jax.engine.request import Delta, SamplingParams
from radiance_jax.errors import CapacityError, UserError


class Gate:
    """Counts answers under way and turns away what exceeds `limit`. Used from the event loop alone."""

    def __init__(self, limit: int):
        self.limit = limit
        self.open: set[Generation] = set()
        self.closing = False

    def admit(self, count: int) -> None:
        if self.closing:
            raise CapacityError("the server is shutting down")
        if count > self.limit:
            raise UserError(f"one request may ask for at most {self.limit} answers here; got {count}", param="n")
        if count + sum(len(generation.running) for generation in self.open) > self.limit:
            raise CapacityError(f"the server is full ({self.limit} answers under way); try again later")

    def abort_all(self) -> None:
        """Ends every answer; clients get what they have with finish reason `abort`."""
        self.closing = True
        for generation in list(self.open):
            generation.abort()


class Generation:
    """An async context manager over `len(prompts) * n` answers; leaving it aborts those unfinished.

    Answer `p * n + c` is choice `c` of prompt `p`. Iterating yields `(answer, delta)` until all have ended.
    """

    def __init__(self, engine: Any, gate: Gate, prompts: Sequence[Sequence[int]], n: int, params: SamplingParams):
        self.engine, self.gate, self.prompts, self.n, self.params = engine, gate, prompts, n, params
        self.running: dict[int, int] = {}  # answer -> sequence id
        self.news: asyncio.Queue[tuple[int, Delta]] = asyncio.Queue()

    async def __aenter__(self) -> "Generation":
        self.gate.admit(len(self.prompts) * self.n)
        self.gate.open.add(self)
        try:
            for answer in range(len(self.prompts) * self.n):
                prompt, choice = divmod(answer, self.n)
                self.running[answer] = self.engine.submit(
                    self.prompts[prompt], self.params, self._listener(answer), choice=choice)
        except BaseException:
            self.close()
            raise
        return self

    async def __aexit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        self.abort()
        self.gate.open.discard(self)

    def _listener(self, answer: int) -> Any:
        loop, put = asyncio.get_running_loop(), self.news.put_nowait

        def on_delta(delta: Delta) -> None:  # on the engine's thread
            try:
                loop.call_soon_threadsafe(put, (answer, delta))
            except RuntimeError:  # the loop has closed: nobody listens any more
                pass
        return on_delta

    def abort(self) -> None:
        for sequence in self.running.values():
            self.engine.abort(sequence)

    async def __aiter__(self) -> AsyncIterator[tuple[int, Delta]]:
        while self.running:
            answer, delta = await self.news.get()
            if delta.finish_reason is not None:
                self.running.pop(answer, None)
            yield answer, delta
