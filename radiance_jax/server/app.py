"""The ASGI application."""

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from radiance_jax.server import routes
from radiance_jax.server.auth import ApiKey
from radiance_jax.server.errors import HttpError, error_response, guarded
from radiance_jax.server.state import ServerState

ROUTES = (
    ("POST", "/v1/chat/completions", routes.chat_completions),
    ("POST", "/v1/completions", routes.completions),
    ("GET", "/v1/models", routes.models),
    ("GET", "/v1/models/{name:path}", routes.model),
    ("POST", "/tokenize", routes.tokenize),
    ("POST", "/detokenize", routes.detokenize),
    ("GET", "/health", routes.health),
    ("GET", "/metrics", routes.metrics),
    ("GET", "/version", routes.version),
)


async def _not_found(request: Request, error: HTTPException) -> Response:
    """Unknown paths and methods, in the same shape as every other error."""
    text = "no such path" if error.status_code == 404 else str(error.detail)
    response = error_response(HttpError(error.status_code, f"{request.method} {request.url.path[:200]}: {text}"))
    response.headers.update(error.headers or {})  # of a 405: what is allowed
    return response


def build_app(state: ServerState) -> Starlette:
    key = state.config.api_key
    app = Starlette(
        routes=[Route(path, guarded(handler), methods=[method]) for method, path, handler in ROUTES],
        exception_handlers={HTTPException: _not_found},
        middleware=[Middleware(ApiKey, key=key)] if key else [],
    )
    app.router.redirect_slashes = False  # behind a proxy a redirect would name the wrong scheme and host
    app.state.radiance = state
    return app
