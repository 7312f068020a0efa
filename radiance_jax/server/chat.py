"""`/v1/chat/completions`: the wire form of its choices."""

from typing import Any

from radiance_jax.engine.request import Delta
from radiance_jax.server.answer import Answer
from radiance_jax.server.logprobs import Pieces, chat_logprobs


class ChatShape:
    prefix, kind, chunk_kind = "chatcmpl", "chat.completion", "chat.completion.chunk"
    prompt_only = False

    def __init__(self, pieces: Pieces, logprobs: bool, token_ids: bool = False):
        self.pieces, self.logprobs, self.token_ids = pieces, logprobs, token_ids

    def choice(self, index: int, answer: Answer) -> dict[str, Any]:
        choice = {"index": index, "message": {"role": "assistant", "content": answer.text, "refusal": None},
                  "logprobs": chat_logprobs(self.pieces, answer.logprobs) if self.logprobs else None,
                  "finish_reason": answer.finish_reason, "stop_reason": answer.stop_reason}
        return choice | ({"token_ids": answer.token_ids} if self.token_ids else {})

    def opening(self, index: int) -> dict[str, Any]:
        return {"index": index, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}

    def chunk(self, index: int, delta: Delta) -> dict[str, Any] | None:
        told, ids = self.logprobs and delta.logprobs, self.token_ids and delta.token_ids
        if not (delta.text or told or ids or delta.finish_reason):
            return None
        choice = {"index": index, "delta": {"content": delta.text} if delta.text or told else {},
                  "logprobs": chat_logprobs(self.pieces, delta.logprobs) if told else None,
                  "finish_reason": delta.finish_reason}
        choice |= {"stop_reason": delta.stop_reason} if delta.finish_reason else {}
        return choice | ({"token_ids": delta.token_ids} if self.token_ids else {})
