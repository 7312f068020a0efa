"""A client that does little, so that it costs little on the machine it measures: one streamed request, and when each
piece of it came."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import SplitResult, urlsplit

from radiance_jax.errors import UserError


@dataclass(kw_only=True)
class Reply:
    """Times are `time.perf_counter()` seconds; `at` are those of the chunks that brought text, and `started` is when
    the connection was asked for. `tokens` is the server's own count, else the number of those chunks."""

    started: float
    ended: float = 0.0
    at: list[float] = field(default_factory=list)
    text: str = ""
    tokens: int = 0
    counted: bool = False  # `tokens` came from the server
    prompt_tokens: int = 0
    finish_reason: str | None = None
    error: str | None = None


def split_url(url: str) -> SplitResult:
    """Raises `UserError` for anything that is not http://host[:port][/path]."""
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if not good:
        raise UserError(f"url must read like http://127.0.0.1:8000; got {url!r}", param="url")
    return parts


def path_of(parts: SplitResult, route: str) -> str:
    """`http://host/v1` and `http://host` name the same server."""
    return parts.path.rstrip("/").removesuffix("/v1") + route


async def call(parts: SplitResult, method: str, path: str, body: dict[str, Any] | None, key: str | None
               ) -> tuple[int, AsyncIterator[bytes]]:
    """Status and the lines of an answer, over a connection of its own."""
    secure = parts.scheme == "https"
    port = parts.port or (443 if secure else 80)
    reader, writer = await asyncio.open_connection(parts.hostname, port, ssl=secure or None)
    raw = b"" if body is None else json.dumps(body).encode()
    head = [f"{method} {path} HTTP/1.1", f"Host: {parts.netloc.rpartition('@')[2]}", "Connection: close",
            "Content-Type: application/json", f"Content-Length: {len(raw)}"]
    head += [f"Authorization: Bearer {key}"] if key else []
    writer.write("\r\n".join(head).encode() + b"\r\n\r\n" + raw)
    status = int((await reader.readline()).split()[1])
    chunked = False
    while (line := await reader.readline()).strip():
        name, _, value = line.decode("latin-1").partition(":")
        chunked |= name.lower() == "transfer-encoding" and "chunked" in value.lower()
    return status, _lines(_pieces(reader, chunked), writer)


async def _pieces(reader: asyncio.StreamReader, chunked: bool) -> AsyncIterator[bytes]:
    while True:
        if not chunked:
            piece = await reader.read(65536)
        else:
            size = int((await reader.readline()).split(b";")[0] or b"0", 16)
            piece = (await reader.readexactly(size + 2))[:-2] if size else b""
        if not piece:
            return
        yield piece


async def _lines(pieces: AsyncIterator[bytes], writer: asyncio.StreamWriter) -> AsyncIterator[bytes]:
    rest = b""
    try:
        async for piece in pieces:
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                yield line.rstrip(b"\r")
        if rest:
            yield rest
    finally:
        writer.close()


async def get_json(parts: SplitResult, route: str, key: str | None) -> Any:
    """Raises `UserError` where nobody answers, or not with JSON."""
    try:
        status, lines = await call(parts, "GET", path_of(parts, route), None, key)
        text = b"\n".join([line async for line in lines])
        if status != 200:
            raise ValueError(f"status {status}: {text[:200].decode(errors='replace')}")
        return json.loads(text)
    except (OSError, ValueError, IndexError, EOFError) as error:
        raise UserError(f"{parts.geturl()}{route} must answer with JSON: {error}", param="url") from None


async def first_model(parts: SplitResult, key: str | None) -> str:
    """The name of the first model that a server has. Raises `UserError` where it names none."""
    found = await get_json(parts, "/v1/models", key)
    try:
        return found["data"][0]["id"]
    except (KeyError, IndexError, TypeError):
        raise UserError(f"{parts.geturl()}/v1/models must name a model; got {json.dumps(found)[:200]}", param="url") from None


async def ask(parts: SplitResult, body: dict[str, Any], key: str | None, seconds: float) -> Reply:
    """Streams one chat completion. Whatever goes wrong is in `Reply.error`."""
    reply = Reply(started=time.perf_counter())
    try:
        async with asyncio.timeout(seconds):
            await _read(parts, body, key, reply)
        if reply.finish_reason is None and reply.error is None:
            reply.error = "the stream ended without a finish reason"
    except TimeoutError:
        reply.error = f"no end after {seconds:g} s"
    except (OSError, ValueError, EOFError, IndexError, KeyError, TypeError) as error:
        reply.error = f"{type(error).__name__}: {error}"
    reply.ended = reply.ended or time.perf_counter()
    reply.tokens = reply.tokens if reply.counted else len(reply.at)
    return reply


async def _read(parts: SplitResult, body: dict[str, Any], key: str | None, reply: Reply) -> None:
    status, lines = await call(parts, "POST", path_of(parts, "/v1/chat/completions"), body, key)
    if status != 200:
        reply.error = f"status {status}: " + b" ".join([line async for line in lines])[:300].decode(errors="replace")
        return
    async for line in lines:
        if not line.startswith(b"data:"):
            continue
        now, data = time.perf_counter(), line[5:].strip()
        if data == b"[DONE]":
            return
        event = json.loads(data)
        if "error" in event:
            reply.error = str(event["error"])[:300]
            return
        for choice in event.get("choices") or ():
            text = choice.get("delta", {}).get("content")
            if text:
                reply.text += text
                reply.at.append(now)
            if choice.get("finish_reason"):
                reply.finish_reason, reply.ended = choice["finish_reason"], now
        usage = event.get("usage")
        if usage:
            reply.tokens, reply.counted = usage["completion_tokens"], True
            reply.prompt_tokens = usage.get("prompt_tokens", 0)
