"""Small tokenizers of the three families that decode differently."""

import json

from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models

from radiance_jax.container.gguf_tokenizer import tokenizer_files
from radiance_jax.text.tokenizer import _ALPHABET, Tokenizer

LETTERS = sorted(_ALPHABET, key=_ALPHABET.get)
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def byte_level() -> Tokenizer:
    """Like the default model's: bytes as letters, digits split, specials; one added token holds a space."""
    tokens = [*SPECIAL, "two words", "é!", *LETTERS, "Ġt", "he", "Ġthe", "12", "ðŁ", "ðŁĺ", "æĹ"]
    metadata = {
        "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "smollm", "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3, 3, 3, 4, 4] + [1] * (len(tokens) - 5),
        "tokenizer.ggml.merges": ["Ġ t", "h e", "Ġt he", "1 2", "ð Ł", "ðŁ ĺ", "æ Ĺ"],
        "tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2}
    files = tokenizer_files(metadata)
    return Tokenizer(files["tokenizer.json"], files["tokenizer_config.json"])


def sentencepiece(strip: bool) -> Tokenizer:
    """Like Llama 2 (`strip`: a leading space is dropped) or Gemma: U+2581 for spaces, <0x..> for other bytes."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), "▁", "▁▁", "▁a", "a", "b", "▁the", "ab",
              ".", "日", "\ufffd"]
    backend = Backend(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=[("a", "b")], unk_token="<unk>",
                                 byte_fallback=True, fuse_unk=True))
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence(steps + ([decoders.Strip(" ", 1, 0)] if strip else []))
    backend.add_special_tokens(["<unk>", "<s>", "</s>"])
    return Tokenizer(backend.to_str().encode(), json.dumps({"bos_token": {"content": "<s>"}}).encode())


def metaspace() -> Tokenizer:
    """Like T5: U+2581 for spaces, the first of the text dropped, no bytes."""
    tokens = ["<pad>", "</s>", "▁", "▁▁a", "▁a", "a", "b", "▁the", "."]
    backend = Backend(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=[]))
    backend.decoder = decoders.Metaspace()
    backend.add_special_tokens(["<pad>", "</s>"])
    return Tokenizer(backend.to_str().encode())


FAMILIES = {"byte level": byte_level(), "llama 2": sentencepiece(True), "gemma": sentencepiece(False),
            "metaspace": metaspace()}
