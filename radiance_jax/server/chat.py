"""`/v1/chat/completions`: the wire form of its choices."""

from typing import Any

from radiance_jax.engine.request import Delta
from radiance_jax.server.answer import Answer
from radiance_jax.server.logprobs import Pieces, chat_logprobs


class ChatShape:
    prefix, kind, chunk_kind = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def __init__(self, pieces: Pieces, logprobs: bool):
        self.pieces, self.logprobs = pieces, logprobs

    def choice(self, index: int, answer: Answer) -> dict[str, Any]:
        return {"index": index, "message": {"role": "assistant", "content": answer.text, "refusal": None},
                "logprobs": chat_logprobs(self.pieces, answer.logprobs) if self.logprobs else None,
                "finish_reason": answer.finish_reason, "stop_reason": answer.stop_reason}

    def opening(self, index: int) -> dict[str, Any]:
        return {"index": index, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}

    def chunk(self, index: int, delta: Delta) -> dict[str, Any] | None:
        told = self.logprobs and delta.logprobs
        if not (delta.text or told or delta.finish_reason):
            return None
        choice = {"index": index, "delta": {"content": delta.text} if delta.text or told else {},
                  "logprobs": chat_logprobs(self.pieces, delta.logprobs) if told else None,
                  "finish_reason": delta.finish_reason}
        return choice | ({"stop_reason": delta.stop_reason} if delta.finish_reason else {})
