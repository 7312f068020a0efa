"""The API key, checked before anything of the request is read."""

import hmac

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from radiance_jax.server.errors import HttpError, error_response

OPEN_PATHS = ("/health", "/metrics", "/version")


class ApiKey:
    """ASGI middleware: 401 unless `Authorization: Bearer <key>` (or `x-api-key`) holds the key."""

    def __init__(self, app: ASGIApp, key: str):
        self.app, self.key = app, key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS or self._allowed(Request(scope)):
            await self.app(scope, receive, send)
            return
        response = error_response(HttpError(401, "the API key is missing or wrong", code="invalid_api_key"))
        response.headers["WWW-Authenticate"] = "Bearer"
        await response(scope, receive, send)

    def _allowed(self, request: Request) -> bool:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        given = token.strip() if scheme.lower() == "bearer" else request.headers.get("x-api-key", "")
        return hmac.compare_digest(given.encode("latin-1"), self.key)
