"""The model's tokenizer, built from the files in its container."""

import json
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any, Protocol, Self

from tokenizers import Tokenizer as Backend

from radiance_jax.errors import ModelError, UserError


class ModelFiles(Protocol):
    """What is needed of a model: its companion files."""

    def file(self, name: str) -> bytes | None:
        """The file's bytes, or None where there is none."""


class Tokenizer:
    """Text to token ids and back.

    Safe to share between threads: nothing is changed after construction but caches of pure values. `config` is
    tokenizer_config.json as a dictionary. Raises `ModelError` for files that do not parse.
    """

    def __init__(self, tokenizer_json: bytes, tokenizer_config: bytes | None = None):
        try:
            self._backend = Backend.from_str(tokenizer_json.decode("utf-8"))
            self._spec: dict[str, Any] = json.loads(tokenizer_json)
        except Exception as error:  # tokenizers raises plain Exception
            raise ModelError(f"tokenizer.json must be a tokenizers file: {error}", param="tokenizer.json") from error
        try:
            self.config: dict[str, Any] = dict(json.loads(tokenizer_config)) if tokenizer_config else {}
        except (ValueError, TypeError) as error:
            raise ModelError(f"tokenizer_config.json must be a JSON object: {error}",
                             param="tokenizer_config.json") from error
        self._backend.no_truncation()  # files may carry the padding and truncation of some training script
        self._backend.no_padding()
        self.vocab_size: int = self._backend.get_vocab_size(with_added_tokens=True)
        added = self._backend.get_added_tokens_decoder()
        self.special_ids = frozenset(index for index, token in added.items() if token.special)
        self._bytes: dict[int, bytes] = {}  # of the tokens seen: asked for at every token of every answer

    @classmethod
    def from_model(cls, model: ModelFiles) -> Self:
        """From an open container. Raises `ModelError` where it holds no tokenizer."""
        data = model.file("tokenizer.json")
        if data is None:
            raise ModelError("the model must come with a tokenizer.json, and there is none; put it into the model's "
                             "folder and convert again", param="tokenizer.json")
        return cls(data, model.file("tokenizer_config.json"))

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of `text`. A rendered chat template already holds its special tokens: pass False for it.

        Special tokens written out in the text become their ids. Raises `UserError` for lone surrogates. A batch of
        one, because only batches let go of Python's lock: else a book of a prompt stops every stream for seconds.
        """
        try:
            return self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids
        except (TypeError, UnicodeEncodeError) as error:
            raise UserError(f"text must be valid Unicode: {error}", param="prompt") from error

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """Text of `ids`. Ids without a token (padding of the vocabulary) give no text."""
        return self._backend.decode_batch([list(ids)], skip_special_tokens=skip_special_tokens)[0]

    def token_id(self, token: str) -> int | None:
        """Id of a token given as it stands in the vocabulary, or None."""
        return self._backend.token_to_id(token)

    def token_string(self, token_id: int) -> str:
        """The token as shown beside a logprob: its own text, special tokens included, U+FFFD for partial bytes."""
        return self.token_bytes(token_id).decode("utf-8", errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        """The UTF-8 bytes the token stands for, possibly part of a character; empty for an id without a token."""
        known = self._bytes.get(token_id)
        if known is None:
            known = self._bytes[token_id] = self._bytes_of(token_id)
        return known

    def _bytes_of(self, token_id: int) -> bytes:
        token = self._backend.id_to_token(token_id) if token_id >= 0 else None
        if token is None:
            return b""
        if self.byte_level:
            return byte_level_bytes(token)
        if self.is_byte_token(token_id):
            return bytes([int(token[3:5], 16)])
        return (token if token_id in self.special_ids else token.replace("\u2581", " ")).encode("utf-8")

    def is_byte_token(self, token_id: int) -> bool:
        """Whether the token is one of the `<0x00>`.. tokens that stand for a single byte (byte fallback)."""
        return token_id in self._byte_tokens

    @cached_property
    def byte_level(self) -> bool:
        """Whether tokens are bytes written in the GPT-2 alphabet, so that text is their bytes decoded as UTF-8."""
        return (self._spec.get("decoder") or {}).get("type") == "ByteLevel"

    @cached_property
    def _byte_tokens(self) -> frozenset[int]:
        if self.byte_level:
            return frozenset()
        ids = (self._backend.token_to_id(f"<0x{byte:02X}>") for byte in range(256))
        return frozenset(index for index in ids if index is not None)

    def special_token(self, name: str) -> str | None:
        """A special token by its role in tokenizer_config.json, such as "bos_token"."""
        value = self.config.get(name)
        if isinstance(value, dict):  # older files hold {"content": ..., "lstrip": ...}
            value = value.get("content")
        return value if isinstance(value, str) else None


def _byte_level_alphabet() -> dict[str, int]:
    """GPT-2's alphabet: printable Latin-1 characters stand for themselves, the other bytes for U+0100 and on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(b): b for b in printable} | {chr(0x100 + i): b for i, b in enumerate(others)}


_ALPHABET = _byte_level_alphabet()


def byte_level_bytes(token: str) -> bytes:
    """Bytes of a token in the byte-level alphabet; a token with any other character stands for its own UTF-8.

    In:  "Ġcafé" (é is the letter for byte 0xE9)   Out: b" caf\\xe9"
    """
    try:
        return bytes([_ALPHABET[character] for character in token])
    except KeyError:
        return token.encode("utf-8")


def flat_ids(ids: Sequence[int], vocab_size: int, param: str = "prompt") -> list[int]:
    """Checks token ids that a user sent. Raises `UserError` for an id outside [0, vocab_size)."""
    for index, token in enumerate(ids):
        if not isinstance(token, int) or isinstance(token, bool) or not 0 <= token < vocab_size:
            raise UserError(f"{param} must hold token ids from 0 to {vocab_size - 1}; got {token!r} at {index}",
                            param=param)
    return list(ids)
