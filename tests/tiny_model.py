"""A tiny random Llama with a tokenizer, in a folder, for tests of the whole engine. Random models repeat themselves, so
prompt lookup has plenty to propose."""

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from radiance_jax.models.config import parse_config
from radiance_jax.models.llama import tensor_shapes

VOCAB = 151
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "num_attention_heads": 9,
    "num_key_value_heads": 3, "head_dim": 16, "intermediate_size": 96, "num_hidden_layers": 2, "vocab_size": VOCAB,
    "tie_word_embeddings": True, "max_position_embeddings": 512, "rope_theta": 1e4, "rms_norm_eps": 1e-5, "eos_token_id": 2,
}
TEMPLATE = "{% for m in messages %}{{ m['content'] }} {% endfor %}"


def make(folder: Path, seed: int = 0, **changes) -> Path:
    """Writes config, weights, tokenizer (one word a token: "w17") and chat template."""
    raw = CONFIG | changes
    rng = np.random.default_rng(seed)
    weights = {}
    for name, shape in tensor_shapes(parse_config(raw)).items():
        spread, middle = (0.1, 1.0) if name.endswith("norm.weight") else (0.16, 0.0)
        weights[name] = (rng.standard_normal(shape) * spread + middle).astype(np.float32)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(weights, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(raw))
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(VOCAB)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.decoder = decoders.Fuse()
    words.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE, "eos_token": "w2"}))
    return folder
