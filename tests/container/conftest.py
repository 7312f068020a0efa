"""Tiny models on disk in every format."""

import json
from pathlib import Path

import ml_dtypes
import pytest
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize
from safetensors.numpy import save_file

from radiance_jax.container.gguf_tokenizer import tokenizer_files
from tiny_models import CONFIG, GGUF_NAMES, METADATA, make_weights, permuted


@pytest.fixture
def hf_folder(tmp_path):
    """Builds a Hugging Face folder: `hf_folder(shards=1, config={}, weights=None)` -> path."""
    def build(shards: int = 1, config: dict | None = None, weights: dict | None = None, name: str = "hf") -> Path:
        folder, full = tmp_path / name, CONFIG | (config or {})
        folder.mkdir()
        tensors = weights or {k: v.astype(ml_dtypes.bfloat16) for k, v in make_weights(full).items()}
        (folder / "config.json").write_text(json.dumps(full))
        (folder / "generation_config.json").write_text('{"eos_token_id": [2, 0]}')
        for file, data in tokenizer_files(METADATA).items():
            (folder / file).write_bytes(data)
        if shards == 1:
            save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
            return folder
        names = list(tensors)
        weight_map = {}
        for index in range(shards):
            shard = f"model-{index + 1:05}-of-{shards:05}.safetensors"
            part = {n: tensors[n] for n in names[index::shards]}
            save_file(part, folder / shard)
            weight_map |= dict.fromkeys(part, shard)
        (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
        return folder
    return build


@pytest.fixture
def gguf_file(tmp_path):
    """Builds a GGUF: `gguf_file(kind=Q8_0, metadata={}, config={}, extra={})` -> path. None removes a key. The config's
    architecture decides the GGUF's; `blocks(weight)` may give the stored bytes of a matrix in place of `quantize`."""
    def build(kind: GGMLQuantizationType = GGMLQuantizationType.Q8_0, metadata: dict | None = None,
              config: dict | None = None, extra: dict | None = None, name: str = "tiny.gguf", blocks=None) -> Path:
        full = CONFIG | (config or {})
        family = full["architectures"][0].removesuffix("ForCausalLM").lower()
        writer = GGUFWriter(tmp_path / name, family)
        values = METADATA | {
            "general.name": "tiny", f"{family}.block_count": full["num_hidden_layers"],
            f"{family}.context_length": full["max_position_embeddings"], f"{family}.embedding_length": full["hidden_size"],
            f"{family}.feed_forward_length": full["intermediate_size"],
            f"{family}.attention.head_count": full["num_attention_heads"],
            f"{family}.attention.head_count_kv": full["num_key_value_heads"], f"{family}.rope.freq_base": full["rope_theta"],
            f"{family}.attention.layer_norm_rms_epsilon": full["rms_norm_eps"],
            f"{family}.rope.dimension_count": full["head_dim"]} | (metadata or {})
        for key, value in values.items():
            if value is None:
                continue
            add = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string,
                   list: writer.add_array}[type(value)]
            add(key, value)
        heads = {"q_proj": full["num_attention_heads"], "k_proj": full["num_key_value_heads"]}
        for logical, weight in make_weights(full).items():
            parts = logical.split(".")
            stored = GGUF_NAMES.get(logical) or f"blk.{parts[2]}.{GGUF_NAMES['.'.join(parts[3:-1])]}.{parts[-1]}"
            if parts[-2] in heads and family == "llama":
                weight = permuted(weight, heads[parts[-2]])
            if weight.ndim == 1 or kind == GGMLQuantizationType.F32:
                writer.add_tensor(stored, weight)
            else:
                writer.add_tensor(stored, blocks(weight) if blocks else quantize(weight, kind), raw_dtype=kind)
        for stored, weight in (extra or {}).items():
            writer.add_tensor(stored, weight)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return tmp_path / name
    return build
