"""Rebuilding Hugging Face tokenizer files from the vocabulary and merges in a GGUF file's metadata.

Held against llama.cpp on 1680 strings. `transformers`' own GGUF tokenizer drops the digit splitting of `smollm`.
"""

import json
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from radiance_jax.errors import ModelError

_CONTROL, _USER_DEFINED = 3, 4  # llama.cpp's token types

# The published pattern of the Qwen2 tokenizer: contractions, words, single digits, punctuation, line ends, spaces.
_QWEN2 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")

_SPECIALS = (("bos_token", "bos_token_id"), ("eos_token", "eos_token_id"), ("pad_token", "padding_token_id"),
             ("unk_token", "unknown_token_id"))


def tokenizer_files(metadata: dict[str, Any]) -> dict[str, bytes]:
    """tokenizer.json, tokenizer_config.json and, where present, chat_template.jinja.

    Raises `ModelError` for tokenizers other than byte-level BPE with a `smollm` or `qwen2` pre-tokenizer.
    """
    tokens = _strings(metadata, "tokenizer.ggml.tokens")
    files = {"tokenizer.json": _tokenizer(metadata, tokens).to_str().encode("utf-8")}
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False,
        "add_bos_token": bool(metadata.get("tokenizer.ggml.add_bos_token", False))}
    for name, key in _SPECIALS:
        if (token := special_id(metadata, key, len(tokens))) is not None:
            config[name] = tokens[token]
    template = metadata.get("tokenizer.chat_template")
    if isinstance(template, str) and template:
        files["chat_template.jinja"] = template.encode("utf-8")
    files["tokenizer_config.json"] = json.dumps(config, indent=1, ensure_ascii=False).encode("utf-8")
    return files


def special_id(metadata: dict[str, Any], key: str, vocab_size: int) -> int | None:
    """The token id under `tokenizer.ggml.<key>`, or None. Raises `ModelError` where it is outside the vocabulary."""
    token = metadata.get(f"tokenizer.ggml.{key}")
    if token is None:
        return None
    if not isinstance(token, int) or isinstance(token, bool) or not 0 <= token < vocab_size:
        raise ModelError(f"tokenizer.ggml.{key} must be a token id below {vocab_size}; got {token!r}",
                         param=f"tokenizer.ggml.{key}")
    return token


def _strings(metadata: dict[str, Any], key: str) -> list[str]:
    value = metadata.get(key)
    if not isinstance(value, list) or not value or not all(isinstance(item, str) for item in value):
        raise ModelError(f"GGUF metadata {key} must be a list of strings; got {type(value).__name__}. "
                         "Convert from the Hugging Face folder instead.", param=key)
    return value


def _tokenizer(metadata: dict[str, Any], tokens: list[str]) -> Tokenizer:
    model, kind = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre")
    if model != "gpt2":
        raise ModelError(f"tokenizer.ggml.model must be 'gpt2' (byte-level BPE); got {model!r}. Convert from the "
                         "Hugging Face folder instead.", param="tokenizer.ggml.model")
    types = metadata.get("tokenizer.ggml.token_type") or [1] * len(tokens)
    if not isinstance(types, list) or len(types) != len(tokens):
        raise ModelError(f"tokenizer.ggml.token_type must have one entry for each of the {len(tokens)} tokens",
                         param="tokenizer.ggml.token_type")
    vocab = {token: index for index, token in enumerate(tokens)}
    if len(vocab) != len(tokens):
        raise ModelError("tokenizer.ggml.tokens must be unique", param="tokenizer.ggml.tokens")
    merges = [tuple(merge.split(" ", 1)) for merge in _strings(metadata, "tokenizer.ggml.merges")]
    try:
        bpe = models.BPE(vocab=vocab, merges=merges, fuse_unk=False, byte_fallback=False)
    except Exception as error:  # tokenizers raises plain Exception for a merge out of the vocabulary
        raise ModelError(f"tokenizer.ggml.merges do not fit the vocabulary: {error}",
                         param="tokenizer.ggml.merges") from error
    tokenizer = Tokenizer(bpe)
    if kind == "smollm":
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
    elif kind == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
            pre_tokenizers.Split(Regex(_QWEN2), behavior="isolated", invert=False),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    else:
        raise ModelError(f"tokenizer.ggml.pre must be 'smollm' or 'qwen2'; got {kind!r}. Convert from the Hugging "
                         "Face folder instead.", param="tokenizer.ggml.pre")
    tokenizer.decoder = decoders.ByteLevel()
    for wanted, special in ((_CONTROL, True), (_USER_DEFINED, False)):
        added = [AddedToken(token, special=special, normalized=False)
                 for token, found in zip(tokens, types, strict=True) if found == wanted]
        (tokenizer.add_special_tokens if special else tokenizer.add_tokens)(added)
    bos = special_id(metadata, "bos_token_id", len(tokens))
    if metadata.get("tokenizer.ggml.add_bos_token") and bos is not None:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{tokens[bos]} $A", pair=f"{tokens[bos]} $A $B", special_tokens=[(tokens[bos], bos)])
    return tokenizer
