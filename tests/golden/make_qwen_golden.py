"""Makes the golden Qwen2 and Qwen3 models under `tests/golden/qwen/`, like `make_llama_golden.py` and beside it.

    /tmp/venv-torch/bin/python tests/golden/make_qwen_golden.py [--out tests/golden/qwen]
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from make_llama_golden import COMMON, forward, randomise, record, write
from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

# Nine query and three key/value heads are padded at tp 4, biases and norms with them. Qwen3's heads are not the width.
VARIANTS = {
    "qwen2": (Qwen2ForCausalLM, Qwen2Config, dict(
        hidden_size=72, intermediate_size=48, num_attention_heads=9, num_key_value_heads=3, head_dim=8,
        tie_word_embeddings=True, rms_norm_eps=1e-6, rope_parameters={"rope_type": "default", "rope_theta": 1e6})),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config, dict(
        hidden_size=48, intermediate_size=64, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
        tie_word_embeddings=True, rms_norm_eps=1e-6, rope_parameters={"rope_type": "default", "rope_theta": 1e6})),
    "qwen3_yarn": (Qwen3ForCausalLM, Qwen3Config, dict(
        hidden_size=40, intermediate_size=48, num_attention_heads=9, num_key_value_heads=3, head_dim=16,
        tie_word_embeddings=False, rms_norm_eps=1e-2, rope_parameters={
            "rope_type": "yarn", "rope_theta": 1e3, "factor": 4.0, "original_max_position_embeddings": 64})),
}
SEEDS = {"qwen2": 1, "qwen3": 2, "qwen3_yarn": 3}
# Parameters that an implementation of plain Llama would not have, and the value that undoes them.
NEUTRAL = {"qwen2": (".bias", 0.0), "qwen3": ("_norm.weight", 1.0), "qwen3_yarn": ("_norm.weight", 1.0)}


def make(name: str, folder: Path) -> dict[str, float]:
    network, settings, options = VARIANTS[name]
    generator = torch.Generator().manual_seed(SEEDS[name])
    model = network(settings(**COMMON | options)).eval()
    randomise(model, generator)
    ending, value = NEUTRAL[name]

    def ignoring(ids: torch.Tensor) -> np.ndarray:
        other = network(settings(**COMMON | options)).eval()
        other.load_state_dict(model.state_dict())
        with torch.no_grad():
            undone = [p.fill_(value) for key, p in other.named_parameters() if key.endswith(ending) and "self_attn" in key]
        assert undone, "nothing to ignore"
        return forward(other, ids).numpy()

    return write(name, model, generator, SEEDS[name], ignoring, folder)


def main() -> None:
    parser = argparse.ArgumentParser(description="make the golden Qwen models")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "qwen")
    out = parser.parse_args().out
    torch.set_num_threads(1)  # so that a second run gives the same bits
    record(out, {name: make(name, out / name) for name in VARIANTS})


if __name__ == "__main__":
    main()
