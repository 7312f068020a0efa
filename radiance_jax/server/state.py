"""What the routes share: the engine once it is there, and the gate in front of it."""

import time
from typing import Any

from radiance_jax.config import ServeConfig
from radiance_jax.server.errors import HttpError
from radiance_jax.server.generation import Gate
from radiance_jax.server.logprobs import Pieces


class ServerState:
    """`engine` is None while it loads. Written by the door, read by the routes, all on the event loop."""

    def __init__(self, config: ServeConfig, engine: Any = None):
        self.config = config
        self.gate = Gate(config.max_num_seqs + config.max_queue)
        self.created = int(time.time())
        self.engine: Any = None
        self.pieces: Pieces | None = None
        if engine is not None:
            self.attach(engine)

    def attach(self, engine: Any) -> None:
        self.pieces, self.engine = Pieces(engine.tokenizer), engine

    def ready_engine(self) -> Any:
        if self.engine is None:
            raise HttpError(503, "the model is still loading", code="loading")
        return self.engine

    def working_engine(self) -> Any:
        """For requests that it is to answer: trying again is of no use once it has failed, and the code says so."""
        engine = self.ready_engine()
        if not engine.healthy():
            raise HttpError(503, "the engine has failed and stopped; start the server again", code="unhealthy")
        return engine

    @property
    def model_name(self) -> str:
        return self.config.served_model_name or self.ready_engine().model_name

    def check_model(self, name: str | None) -> None:
        """A request may leave the model out; a wrong one is refused."""
        if name is not None and name != self.model_name:
            raise HttpError(404, f"the model {name[:200]!r} does not exist; this server has {self.model_name!r}",
                            param="model", code="model_not_found")
