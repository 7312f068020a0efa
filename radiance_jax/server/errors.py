"""Errors on the wire: OpenAI's shape, and which status says what."""

import logging
from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from radiance_jax.errors import CapacityError, UserError

log = logging.getLogger("radiance_jax.server")

RETRY_AFTER_SECONDS = 1
LONGEST = 600  # characters of a message: what it quotes of a request may be as long as a body
TYPES = {400: "invalid_request_error", 401: "authentication_error", 404: "not_found_error",
         405: "invalid_request_error", 413: "invalid_request_error", 500: "server_error", 503: "service_unavailable"}


class HttpError(Exception):
    """An error whose status is decided where it is raised."""

    def __init__(self, status: int, message: str, *, param: str | None = None, code: str | None = None):
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code


def as_http(error: BaseException) -> HttpError:
    """Maps anything raised while answering. What is not the client's doing is logged and becomes 500."""
    if isinstance(error, HttpError):
        return error
    if isinstance(error, UserError):
        return HttpError(400, str(error), param=error.param, code=getattr(error, "code", None))
    if isinstance(error, CapacityError):
        return HttpError(503, str(error), code="overloaded")
    if isinstance(error, RecursionError):
        return HttpError(400, "the request is nested too deeply")
    log.error("error while answering a request", exc_info=error)
    return HttpError(500, "internal error; the server's log has the details")


def error_body(error: HttpError) -> dict:
    """`{"error": {message, type, param, code}}`; a code is text, or null where the status says it all."""
    message = error.message if len(error.message) <= LONGEST else error.message[:LONGEST - 3] + "..."
    return {"error": {"message": message, "type": TYPES.get(error.status, "invalid_request_error"),
                      "param": error.param, "code": error.code}}


def error_response(error: HttpError) -> JSONResponse:
    headers = {"Retry-After": str(RETRY_AFTER_SECONDS)} if error.status == 503 else None
    return JSONResponse(error_body(error), error.status, headers)


def guarded(handler: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
    """A route whose every exception becomes an error answer."""
    async def answer(request: Request) -> Response:
        try:
            return await handler(request)
        except Exception as error:
            return error_response(as_http(error))
    return answer
