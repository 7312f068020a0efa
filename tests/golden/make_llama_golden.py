"""Makes the golden Llama models under `tests/golden/llama/` with torch and transformers, on a CPU, in f32.

The tests never need torch: they read the files that this script wrote. To make them again (about 20 seconds):

    python3.11 -m venv /tmp/venv-torch
    /tmp/venv-torch/bin/pip install torch==2.13.0 transformers==5.24.0 safetensors numpy
    /tmp/venv-torch/bin/python tests/golden/make_llama_golden.py [--out tests/golden/llama]

Each variant is a tiny random model in which *every* parameter is drawn at random, norm weights and biases too: a model
straight from initialisation has ones and zeros there, and would hide a norm or a bias that is never applied.
`logits.npz` beside the model holds, for B=2 sequences of T=48 tokens and a vocabulary of V=151:

    input_ids  int32   [B, T]
    logits     float32 [B, T, V]   eager attention, one full forward pass
    greedy     int32   [B, 16]     the greedy continuation, end-of-sequence ignored, each token by a full forward pass
    gaps       float32 [B, 16]     best logit minus second best at each of those tokens

`versions.json` records the packages, and for each variant how far its f32 logits lie from float64 ones.
"""

import argparse
import json
import platform
from collections.abc import Callable
from pathlib import Path

import numpy as np
import safetensors
import torch
import transformers
from transformers import LlamaConfig, LlamaForCausalLM

BATCH, CONTEXT, CONTINUATION = 2, 48, 16
SMALLEST_GAP = 0.01  # below it a correct implementation could choose another token: change the seed
LARGEST_ERROR = 1e-4  # of f32 logits against float64
SMALLEST_EFFECT = 0.1  # the largest change of a logit if a variant's feature were ignored must be at least this

COMMON = dict(
    vocab_size=151,  # odd on purpose: nothing may rely on padding of the vocabulary
    num_hidden_layers=2,
    head_dim=16,
    max_position_embeddings=256,
    bos_token_id=1,
    eos_token_id=2,
    pad_token_id=None,
    attn_implementation="eager",
)
VARIANTS = {
    "tied": dict(
        hidden_size=64, intermediate_size=128, num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=True,
        rms_norm_eps=1e-5, rope_parameters={"rope_type": "default", "rope_theta": 1e5},
    ),
    # With this theta the eight wavelengths are 6.3, 18, 53, 154, ...: one is kept, two are mixed, five are divided.
    "untied_llama3": dict(
        hidden_size=96, intermediate_size=160, num_attention_heads=6, num_key_value_heads=2, tie_word_embeddings=False,
        rms_norm_eps=1e-5,
        rope_parameters={
            "rope_type": "llama3", "rope_theta": 5e3, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    ),
    # The ramp is 0, 0, 0.5, 1, ...: both its corners lie inside. Nine heads of 16 are not the width of 72.
    "yarn": dict(
        hidden_size=72, intermediate_size=96, num_attention_heads=9, num_key_value_heads=3, tie_word_embeddings=True,
        rms_norm_eps=1e-5,
        rope_parameters={
            "rope_type": "yarn", "rope_theta": 1e3, "factor": 4.0, "beta_fast": 4.0, "beta_slow": 1.0,
            "original_max_position_embeddings": 64,
        },
    ),
    # An epsilon this large shows whether config.json is heard at all.
    "bias": dict(
        hidden_size=64, intermediate_size=128, num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=True,
        attention_bias=True, mlp_bias=True, rms_norm_eps=1e-2,
        rope_parameters={"rope_type": "default", "rope_theta": 1e4},
    ),
}
SEEDS = {"tied": 1, "untied_llama3": 2, "yarn": 3, "bias": 5}
# What an implementation would compute that ignored the feature of each variant.
IGNORED = {
    "tied": dict(rope_parameters={"rope_type": "default", "rope_theta": 1e4}),
    "untied_llama3": dict(rope_parameters={"rope_type": "default", "rope_theta": 5e3}),
    "yarn": dict(rope_parameters={"rope_type": "default", "rope_theta": 1e3}),
    "bias": dict(attention_bias=False, mlp_bias=False),
}


def randomise(model: LlamaForCausalLM, generator: torch.Generator) -> None:
    """Draws every parameter: matrices with a spread that keeps activations near one, norm weights in 0.5 to 1.5."""

    def normal(shape: torch.Size, spread: float) -> torch.Tensor:
        return spread * torch.randn(shape, generator=generator)

    with torch.no_grad():
        for name, value in sorted(model.named_parameters()):
            if name.endswith("norm.weight"):
                value.copy_(0.5 + torch.rand(value.shape, generator=generator))
            elif name.endswith(".bias"):
                value.copy_(normal(value.shape, 0.5))
            elif name.endswith("embed_tokens.weight"):
                value.copy_(normal(value.shape, 0.5))
            elif ".q_proj." in name or ".k_proj." in name:  # wide enough that attention is far from uniform
                value.copy_(normal(value.shape, 1.5 * value.shape[1] ** -0.5))
            else:  # the spread of the other matrices lets a layer outweigh the embedding of its input
                value.copy_(normal(value.shape, 2.0 * value.shape[1] ** -0.5))


@torch.no_grad()
def forward(model: LlamaForCausalLM, ids: torch.Tensor) -> torch.Tensor:
    """ids [B, T] -> logits [B, T, V], without a cache."""
    return model(input_ids=ids, use_cache=False).logits


def continue_greedily(model: LlamaForCausalLM, ids: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    """ids [B, T] -> the next CONTINUATION tokens and the top-2 gaps at them, [B, CONTINUATION] each."""
    start, gaps = ids.shape[1], []
    for _ in range(CONTINUATION):
        best = forward(model, ids)[:, -1].topk(2)
        gaps.append(best.values[:, 0] - best.values[:, 1])
        ids = torch.cat([ids, best.indices[:, :1]], dim=1)
    return ids[:, start:].numpy().astype(np.int32), torch.stack(gaps, dim=1).numpy()


def logits_as(model: LlamaForCausalLM, ids: torch.Tensor, dtype: torch.dtype = torch.float32, **changes) -> np.ndarray:
    """The logits of the same parameters in another type, or with `changes` of the configuration."""
    options = {**model.config.to_dict(), **changes, "attn_implementation": "eager", "dtype": dtype}
    other = type(model)(type(model.config)(**options)).eval()
    other.load_state_dict(model.state_dict(), strict=False)  # not strict: a change may drop the biases
    return forward(other.to(dtype), ids).numpy()


def make(name: str, folder: Path) -> dict[str, float]:
    """Writes one variant to `folder` and returns its checks. Raises if it could not tell right from wrong."""
    seed = SEEDS[name]
    generator = torch.Generator().manual_seed(seed)
    model = LlamaForCausalLM(LlamaConfig(**COMMON, **VARIANTS[name])).eval()
    randomise(model, generator)
    return write(name, model, generator, seed, lambda ids: logits_as(model, ids, **IGNORED[name]), folder)


def write(name: str, model: torch.nn.Module, generator: torch.Generator, seed: int,
          ignoring: Callable[[torch.Tensor], np.ndarray], folder: Path) -> dict[str, float]:
    """`ignoring(ids)` are the logits of an implementation that ignored what the variant is there for."""
    ids = torch.randint(3, COMMON["vocab_size"], (BATCH, CONTEXT), generator=generator)
    logits = forward(model, ids).numpy()
    greedy, gaps = continue_greedily(model, ids)
    checks = {
        "seed": seed,
        "f32_minus_f64": float(np.abs(logits - logits_as(model, ids, torch.float64)).max()),
        "feature_effect": float(np.abs(logits - ignoring(ids)).max()),
        "smallest_gap": float(gaps.min()),
        "logit_spread": float(logits.std()),
        "different_greedy_tokens": len(set(greedy.ravel().tolist())),
    }
    if checks["smallest_gap"] < SMALLEST_GAP or checks["f32_minus_f64"] > LARGEST_ERROR:
        raise SystemExit(f"{name}: the gap must be at least {SMALLEST_GAP} and the error at most {LARGEST_ERROR}; "
                         f"got {checks}. Change the seed.")
    if checks["feature_effect"] < SMALLEST_EFFECT:
        raise SystemExit(f"{name}: its feature must change a logit by {SMALLEST_EFFECT}; got {checks}.")
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    np.savez(folder / "logits.npz", input_ids=ids.numpy().astype(np.int32), logits=logits, greedy=greedy, gaps=gaps)
    return checks


def main() -> None:
    parser = argparse.ArgumentParser(description="make the golden Llama models")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "llama")
    out = parser.parse_args().out
    torch.set_num_threads(1)  # so that a second run gives the same bits
    record(out, {name: make(name, out / name) for name in VARIANTS})


def record(out: Path, checks: dict[str, dict[str, float]]) -> None:
    """Writes versions.json beside the variants."""
    versions = {"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__,
                "transformers": transformers.__version__, "safetensors": safetensors.__version__}
    (out / "versions.json").write_text(json.dumps({"versions": versions, "variants": checks}, indent=2) + "\n")
    print(json.dumps(checks, indent=2))


if __name__ == "__main__":
    main()
