"""A GGUF file of a Llama, Qwen2 or Qwen3 model, presented as the Hugging Face model it was made from.

Weights are dequantised to f32, one tensor at a time, by the `gguf` package; llama.cpp's permutation of query and key rows,
which its converter applies to the `llama` architecture alone, is undone.
"""

import json
import math
import re
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from radiance_jax.container.gguf_header import GgufTensor, read_gguf_header
from radiance_jax.container.gguf_tokenizer import special_id, tokenizer_files
from radiance_jax.container.safetensors_file import TensorInfo
from radiance_jax.container.source import combined_fingerprint, file_sha256
from radiance_jax.container.weights import check_weights, model_config
from radiance_jax.errors import ModelError
from radiance_jax.models.config import LLAMA, QWEN2, QWEN3

FAMILIES = {"llama": LLAMA, "qwen2": QWEN2, "qwen3": QWEN3}
ROPE_FACTORS = "rope_freqs.weight"  # how llama.cpp stores the llama3 rope scaling

_OUTER = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight",
          "output.weight": "lm_head.weight"}
_INNER = {"attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
          "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
          "ffn_down": "mlp.down_proj", "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
          "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
_LAYER = re.compile(r"blk\.(\d{1,6})\.([a-z_]+)\.(weight|bias)")


class GgufSource:
    """Opens `path` by its header; raises `ModelError` naming the field or tensor at fault."""

    format = "gguf"

    def __init__(self, path: Path | str):
        self.path = Path(path)
        header = read_gguf_header(self.path)
        self._metadata, self._stored = header.metadata, header.tensors
        self._family = self._architecture()
        self._names = {self._logical(name): name for name in header.tensors if name != ROPE_FACTORS}
        self.config = self._config()
        config = model_config(str(self.path), self.config)
        self.tensors: Mapping[str, TensorInfo] = {
            logical: self._info(header.tensors[name]) for logical, name in self._names.items()}
        check_weights(str(self.path), config, self.tensors)
        self._permuted = {"q_proj": config.num_heads, "k_proj": config.num_kv_heads} if self._family == "llama" else {}

    @property
    def description(self) -> str:
        return str(self._metadata.get("general.name") or "model") + f" (GGUF file {self.path.name})"

    @property
    def precision(self) -> str:
        return " + ".join(sorted({info.stored for info in self.tensors.values()}))

    @cached_property
    def fingerprint(self) -> str:
        return combined_fingerprint("gguf", self.source_hashes())

    def source_hashes(self) -> dict[str, str]:
        return {self.path.name: file_sha256(self.path)}

    @property
    def files(self) -> tuple[str, ...]:
        return tuple(self._files)

    def file(self, name: str) -> bytes | None:
        return self._files.get(name)

    def read(self, name: str) -> np.ndarray:
        """The weight in f32, [out, in]."""
        if name not in self.tensors:
            raise ModelError(f"{self.path}: no weight is called {name!r}", param=name)
        weight = self._dequantised(self._names[name])
        heads = self._permuted.get(name.split(".")[-2])
        return weight if heads is None else _unpermuted(weight, heads)

    @cached_property
    def _files(self) -> dict[str, bytes]:
        keys = ("bos_token_id", "eos_token_id", "pad_token_id")
        generation = {key: self.config[key] for key in keys if self.config.get(key) is not None}
        return {"config.json": json.dumps(self.config, indent=2).encode(),
                "generation_config.json": json.dumps(generation, indent=2).encode(),
                **tokenizer_files(self._metadata)}

    def _dequantised(self, stored_name: str) -> np.ndarray:
        from gguf.constants import GGMLQuantizationType
        from gguf.quants import dequantize

        tensor = self._stored[stored_name]
        raw = np.fromfile(self.path, np.uint8, tensor.end - tensor.start, offset=tensor.start)
        if raw.size != tensor.end - tensor.start:
            raise ModelError(f"{self.path}: tensor {stored_name} is cut short; the file changed since it was opened",
                             param=stored_name)
        kind = GGMLQuantizationType(tensor.kind)
        try:
            flat = dequantize(raw.reshape(math.prod(tensor.shape[:-1]), -1), kind)
        except NotImplementedError as error:
            raise ModelError(f"{self.path}: tensor {stored_name} has type {kind.name}, which is not read; take a "
                             "Q4_1, Q8_0, F16, BF16 or K-quant file", param=stored_name) from error
        return flat.astype(np.float32, copy=False).reshape(tensor.shape)

    def _info(self, tensor: GgufTensor) -> TensorInfo:
        from gguf.constants import GGMLQuantizationType

        return TensorInfo(tensor.shape, np.dtype(np.float32), tensor.start, tensor.end,
                          GGMLQuantizationType(tensor.kind).name)

    def _logical(self, name: str) -> str:
        if name in _OUTER:
            return _OUTER[name]
        match = _LAYER.fullmatch(name)
        if not match or match[2] not in _INNER:
            raise ModelError(f"{self.path}: tensor {name!r} is no weight of a {self._family} model", param=name)
        return f"model.layers.{int(match[1])}.{_INNER[match[2]]}.{match[3]}"

    def _config(self) -> dict[str, Any]:
        """The config.json of the Hugging Face model, from the metadata."""
        meta, names = self._metadata, self._names
        family = self._family
        for key, plain in (("split.count", (None, 0, 1)), (f"{family}.expert_count", (None, 0))):
            if meta.get(key) not in plain:
                raise ModelError(f"{self.path}: {key} = {meta[key]!r} is not supported: only dense models in one "
                                 "file", param=key)
        window = meta.get(f"{family}.attention.sliding_window") or 0
        if window and not (isinstance(window, int) and window >= self._number("context_length")):
            raise ModelError(f"{self.path}: {family}.attention.sliding_window must be absent or no less than the context; "
                             f"got {str(window)[:60]}. Sliding-window attention is not served by this version.",
                             param=f"{family}.attention.sliding_window")
        heads, width = self._number("attention.head_count"), self._number("embedding_length")
        head_size = meta.get(f"{family}.attention.key_length") or max(width // heads, 1)
        rotary = meta.get(f"{family}.rope.dimension_count", head_size)
        if rotary != head_size:
            raise ModelError(f"{self.path}: {family}.rope.dimension_count must equal the head size {head_size}; "
                             f"got {rotary!r}", param=f"{family}.rope.dimension_count")
        tokens = meta.get("tokenizer.ggml.tokens")
        count = len(tokens) if isinstance(tokens, list) else 0
        vocab = self._stored["token_embd.weight"].shape[0] if "token_embd.weight" in self._stored else count
        eos = [token for key in ("eos_token_id", "eot_token_id", "eom_token_id")
               if (token := special_id(meta, key, count)) is not None]
        eos = list(dict.fromkeys(eos))
        config = {
            "architectures": [FAMILIES[family]], "model_type": family, "hidden_act": "silu",
            "hidden_size": width, "intermediate_size": self._number("feed_forward_length"),
            "num_hidden_layers": self._number("block_count"), "num_attention_heads": heads,
            "num_key_value_heads": self._number("attention.head_count_kv", heads), "head_dim": head_size,
            "max_position_embeddings": self._number("context_length"), "vocab_size": vocab,
            "rms_norm_eps": _shortest(self._number("attention.layer_norm_rms_epsilon", kind=float)),
            "rope_theta": _shortest(self._number("rope.freq_base", 10000.0, kind=float)),
            "tie_word_embeddings": "lm_head.weight" not in names,
            "attention_bias": "model.layers.0.self_attn.q_proj.bias" in names,  # heard where the family leaves it open
            "mlp_bias": "model.layers.0.mlp.gate_proj.bias" in names,
            "bos_token_id": special_id(meta, "bos_token_id", count),
            "eos_token_id": eos[0] if len(eos) == 1 else eos or None,
            "pad_token_id": special_id(meta, "padding_token_id", count),
        }
        scaling = self._rope_scaling(config["rope_theta"], head_size)
        return config | ({"rope_scaling": scaling} if scaling else {})

    def _architecture(self) -> str:
        family = self._metadata.get("general.architecture")
        if not isinstance(family, str) or family not in FAMILIES:
            raise ModelError(f"{self.path}: general.architecture must be one of {', '.join(FAMILIES)}; got "
                             f"{str(family)[:60]!r}. Other families are not served by this version.",
                             param="general.architecture")
        return family

    def _number(self, key: str, default: Any = None, kind: type = int) -> Any:
        name = f"{self._family}.{key}"
        value = self._metadata.get(name, default)
        if not isinstance(value, kind) or isinstance(value, bool) or not 0 < value < 2**31:
            raise ModelError(f"{self.path}: GGUF metadata {name} must be a positive number; got {str(value)[:60]}",
                             param=name)
        return value

    def _rope_scaling(self, theta: float, head_size: int) -> dict[str, Any] | None:
        prefix = f"{self._family}.rope.scaling."
        block = {key[len(prefix):]: value for key, value in self._metadata.items() if key.startswith(prefix)}
        kind = block.get("type", "none")
        if ROPE_FACTORS in self._stored:
            return self._llama3_scaling(theta, head_size)
        if kind == "none":
            return None
        scaling = {"rope_type": kind, "factor": self._number("rope.scaling.factor", kind=float)}
        if kind == "yarn":
            if block.get("attn_factor", 1.0) != 1.0:
                raise ModelError(f"{self.path}: {prefix}attn_factor must be 1; got {block['attn_factor']!r}. Convert "
                                 "from the Hugging Face folder instead.", param=prefix + "attn_factor")
            scaling["original_max_position_embeddings"] = self._number("rope.scaling.original_context_length")
            scaling |= {name: block[f"yarn_{name}"] for name in ("beta_fast", "beta_slow") if f"yarn_{name}" in block}
        return scaling  # parse_config refuses kinds it does not know

    def _llama3_scaling(self, theta: float, head_size: int) -> dict[str, Any]:
        """llama.cpp keeps only the resulting factors; the released parameters are accepted if they give the same."""
        factors = self._dequantised(ROPE_FACTORS).astype(np.float64).reshape(-1)
        factor, low, high, original = float(factors.max()), 1.0, 4.0, 8192
        frequency = theta ** (-np.arange(0, head_size, 2) / head_size)
        turns = original * frequency / (2 * np.pi)
        smooth = np.clip((turns - low) / (high - low), 0, 1)
        if factors.shape != smooth.shape or not np.allclose(1 / ((1 - smooth) / factor + smooth), factors, rtol=1e-4):
            raise ModelError(f"{self.path}: {ROPE_FACTORS} must hold llama3 rope scaling with low 1, high 4 over 8192 "
                             "positions; it does not. Convert from the Hugging Face folder instead.",
                             param=ROPE_FACTORS)
        return {"rope_type": "llama3", "factor": round(factor, 3), "low_freq_factor": low, "high_freq_factor": high,
                "original_max_position_embeddings": original}


def _unpermuted(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows back from llama.cpp's interleaved rotary pairs to halves.

    In:  rows of a head of size 4: a0 b0 a1 b1.   Out: a0 a1 b0 b1.
    """
    split = weight.reshape(heads, weight.shape[0] // heads // 2, 2, *weight.shape[1:])
    return np.ascontiguousarray(split.swapaxes(1, 2)).reshape(weight.shape)


def _shortest(value: float) -> float:
    """The shortest decimal with the same f32 bits: 1e-05 instead of 9.999999747378752e-06."""
    return float(str(np.float32(value)))
