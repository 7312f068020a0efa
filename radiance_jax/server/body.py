"""Bytes of a request body to a JSON object, whatever the bytes are."""

import json
from typing import Any

from starlette.requests import ClientDisconnect, Request

from radiance_jax.server.errors import HttpError

MAX_BODY_BYTES = 8 * 2**20


async def read_json(request: Request) -> dict[str, Any]:
    """The body as an object of finite numbers and valid text. Raises `HttpError` 400 or 413."""
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length[:12]) > MAX_BODY_BYTES:
        raise _too_large()
    parts, size = [], 0
    try:
        async for part in request.stream():
            size += len(part)
            if size > MAX_BODY_BYTES:
                raise _too_large()
            parts.append(part)
    except ClientDisconnect:  # nobody will read this
        raise HttpError(400, "the client left before the end of the body") from None
    return parse_json(b"".join(parts))


def parse_json(raw: bytes) -> dict[str, Any]:
    """Refuses NaN, infinities, lone surrogates and nesting beyond what Python can walk."""
    try:
        value = json.loads(raw.decode("utf-8"), parse_constant=_no_constant, parse_float=_finite)
        if b"\\u" in raw:  # the only way in for half a surrogate pair
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeDecodeError:
        raise HttpError(400, "the request body must be UTF-8 text") from None
    except UnicodeEncodeError:
        raise HttpError(400, "the request body holds half a surrogate pair, which is not text") from None
    except RecursionError:
        raise HttpError(400, "the request body is nested too deeply") from None
    except ValueError as error:
        raise HttpError(400, f"the request body must be valid JSON: {error}"[:300]) from None
    if not isinstance(value, dict):
        raise HttpError(400, "the request body must be a JSON object")
    return value


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


def _finite(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise ValueError(f"{text[:40]} is too large")
    return value


def _too_large() -> HttpError:
    return HttpError(413, f"the request body must be at most {MAX_BODY_BYTES // 2**20} MB")
