"""Holds the socket open while the engine loads, serves, and closes both in good order."""

import asyncio
import signal
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import uvicorn

from radiance_jax.config import ServeConfig
from radiance_jax.errors import UserError
from radiance_jax.server.app import build_app
from radiance_jax.server.state import ServerState

FINISH_SECONDS = 3.0  # how long streams may go on after a signal; then they are aborted
CLOSE_SECONDS = 5  # when connections are cut


def open_socket(host: str, port: int) -> socket.socket:
    """Listens at once, so that a taken port is known before a model is loaded.

    TCP is named as the protocol, and not left at 0 as `socket.create_server` does: asyncio turns Nagle's
    algorithm off only then, and with it on a small answer waits 40 ms for the client's delayed acknowledgement.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, _, _, address = found[0]
        listener = socket.socket(family, kind, socket.IPPROTO_TCP)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(2048)
        except OSError:
            listener.close()
            raise
        return listener
    except (OSError, UnicodeError) as error:  # UnicodeError: a name that no host can have
        raise UserError(f"cannot listen on {host}:{port}: {getattr(error, 'strerror', None) or error}; choose another --host or "
                        "--port", param="port") from None


class Server(uvicorn.Server):
    """Aborts what still runs `FINISH_SECONDS` after a signal."""

    def __init__(self, config: uvicorn.Config, state: ServerState):
        super().__init__(config)
        self.state = state

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.state.gate.closing = True
        timer = asyncio.get_running_loop().call_later(FINISH_SECONDS, self.state.gate.abort_all)
        await super().shutdown(sockets)
        timer.cancel()


class Loader:
    """Loads the engine on its own thread and hands it, or its error, to the event loop."""

    def __init__(self, load: Callable[[], Any], state: ServerState, server: Server, ready: Callable[[], None]):
        self.load, self.state, self.server, self.ready = load, state, server, ready
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run, name="engine-load", daemon=True)

    def _run(self) -> None:
        try:
            self.state.attach(self.load())
            self.ready()
        except BaseException as error:
            self.error = error
            self.server.should_exit = True

    @property
    def stuck(self) -> bool:
        """True where the server has ended and loading has not: threads inside XLA cannot be stopped."""
        return self.thread.is_alive()


def serve(config: ServeConfig, load: Callable[[], Any], log: Callable[[str], None]) -> bool:
    """Serves until a signal. Raises what `load` raised. False where loading was cut short.

    `load` returns the engine (`Engine.load` in the door, a fake in tests).
    """
    start = time.monotonic()
    listener = open_socket(config.host, config.port)
    host, port = config.host, listener.getsockname()[1]
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}/v1"
    state = ServerState(config)
    server = Server(uvicorn.Config(
        build_app(state), log_config=None, access_log=False, lifespan="off", server_header=False,
        timeout_graceful_shutdown=CLOSE_SECONDS, timeout_keep_alive=30, ws="none"), state)
    loader = Loader(load, state, server, lambda: log(f"ready on {url} in {time.monotonic() - start:.1f} s"))
    log(f"listening on {url}; loading")
    for number in (signal.SIGINT, signal.SIGTERM):  # before uvicorn listens for them, and when it raises them again at the end
        signal.signal(number, lambda *_: setattr(server, "should_exit", True))
    loader.thread.start()
    try:
        server.run([listener])
    finally:
        listener.close()
        if not loader.stuck and state.engine is not None:
            state.engine.close()
    if loader.error is not None:
        raise loader.error
    return not loader.stuck
