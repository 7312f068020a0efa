"""Tiny targets that make one wrong bit visible, of several kinds but of one size (so that targets share programs).

Every head has its rows in pairs: the second row of a pair is the first with one entry moved by one ULP, so that the
last bit of the residual stream decides which of the two is drawn (the *T-tie* of the plan). A *script* target writes a
known text whatever came before: the next token is a fixed function of the last one.
"""

from pathlib import Path

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

from radiance_jax.models.config import parse_config
from radiance_jax.models.llama import tensor_shapes
from tests import tiny_model
from tests.tiny_model import CONFIG, VOCAB

LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 64}
KINDS = {  # by name: changes to the tiny configuration, and the dtype it is served in
    "untied": (dict(tie_word_embeddings=False, rope_scaling=LLAMA3), "bf16"),
    "tied": (dict(), "f32"),
    "biased": (dict(tie_word_embeddings=False, attention_bias=True, mlp_bias=True), "bf16"),
}
END = 2  # the end token, a part of the script like any other
NEXT = np.random.default_rng(5).permutation(np.arange(END, VOCAB))  # the script: one cycle through the ids from 2 on


def after(token: int) -> int:
    """The token a script target writes after this one."""
    at = int(np.flatnonzero(NEXT == token)[0]) if token >= END else -1
    return int(NEXT[(at + 1) % len(NEXT)])


def script(token: int, count: int) -> list[int]:
    """The `count` tokens that follow `token`."""
    out = []
    for _ in range(count):
        token = after(token)
        out.append(token)
    return out


def before_the_end(places: int) -> int:
    """The token after which the script has so many tokens before the end token."""
    at = int(np.flatnonzero(NEXT == END)[0])
    return int(NEXT[(at - places - 1) % len(NEXT)])


def make(folder: Path, kind: str, scripted: bool = False) -> Path:
    """A model folder: random weights with a head of pairs, or a script."""
    changes, dtype = KINDS[kind]
    tiny_model.make(folder, **changes)  # config, tokenizer, template
    rng = np.random.default_rng(7)
    weights = {}
    for name, shape in tensor_shapes(parse_config(CONFIG | changes)).items():
        spread, middle = (0.1, 1.0) if name.endswith("norm.weight") else (0.16, 0.0)
        weights[name] = (rng.standard_normal(shape) * spread + middle).astype(np.float32)
    if scripted:
        _write_script(weights)
    else:
        head = "model.embed_tokens.weight" if "lm_head.weight" not in weights else "lm_head.weight"
        weights[head] = pairs(weights[head], dtype)
    save_file(weights, folder / "model.safetensors")
    return folder


def pairs(head: np.ndarray, dtype: str) -> np.ndarray:
    """Row 2i + 1 becomes row 2i with one entry one ULP further from zero, in the dtype it is served in."""
    narrow = head.astype(ml_dtypes.bfloat16 if dtype == "bf16" else np.float32)
    bits = narrow.view(np.uint16 if dtype == "bf16" else np.uint32)
    for row in range(0, len(bits) - 1, 2):
        bits[row + 1] = bits[row]
        bits[row + 1, row % bits.shape[1]] += 1
    return narrow.astype(np.float32)


def _circle(embed: np.ndarray) -> np.ndarray:
    """Puts the script's tokens on circles: the k-th has the angle 2 pi k f / 149 in the plane of each frequency f, so that
    one matrix, returned here, turns the embedding of every token into that of the token after it."""
    size = embed.shape[1] // 2
    frequencies = np.random.default_rng(6).permutation(np.arange(1, 75))[:size]
    turn = 2 * np.pi * frequencies / len(NEXT)
    angle = np.arange(len(NEXT))[:, None] * turn
    embed[NEXT, 0::2], embed[NEXT, 1::2] = np.cos(angle), np.sin(angle)
    matrix = np.zeros((2 * size, 2 * size), np.float32)
    even = np.arange(0, 2 * size, 2)
    matrix[even, even] = matrix[even + 1, even + 1] = np.cos(turn)
    matrix[even, even + 1], matrix[even + 1, even] = -np.sin(turn), np.sin(turn)
    return matrix


def turn() -> np.ndarray:
    """[D, D]: the embedding of a token of the script to that of the next one."""
    return _circle(np.zeros((VOCAB, CONFIG["hidden_size"]), np.float32))


def _write_script(weights: dict[str, np.ndarray]) -> None:
    """Layers that add nothing, and head rows that are the embeddings of what they follow."""
    for name, values in weights.items():
        if "o_proj." in name or "down_proj." in name:
            values[:] = 0
    embed = weights["model.embed_tokens.weight"]
    _circle(embed)
    embed /= np.linalg.norm(embed, axis=1, keepdims=True) / 8
    for token in range(VOCAB):
        weights["lm_head.weight"][after(token)] = embed[token] * 0.5
    weights["lm_head.weight"][:END] = -1e-3 * embed[:END]
    weights["model.norm.weight"][:] = 1.0
