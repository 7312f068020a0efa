"""Makes the golden drafters under `tests/golden/draft/` with the published reference code, on a CPU, in f32.

The tests never need torch: they read the files that this script wrote. To make them again (about 20 seconds), with the
environment of `make_llama_golden.py`:

    ~/torch/bin/pip install --no-deps dflash==0.1.0
    git clone https://github.com/deepseek-ai/DeepSpec ~/deepspec
    git -C ~/deepspec checkout afdfa7c9382a3341a3e6f17756dd816da79f132c
    PYTHONPATH=~/deepspec ~/torch/bin/python tests/golden/make_draft_golden.py [--out tests/golden/draft]

DFlash and DFlash2 are computed by `dflash.model`, DSpark by DeepSpec's `Qwen3DSparkModel`. Each variant is a tiny drafter,
every parameter drawn at random, written in the layout of one publisher: its config.json, its tensor names. Where a dialect
means what the reference spells otherwise (`PLAIN` below), the reference gets its own spelling. Beside it, in `golden.npz`:

    taps     float32 [24, T, 32]  states of the target's tapped layers at positions 0..23
    anchors  int32   [A]          tokens, at `positions` [A]; the context of an anchor at s is taps[:s]
    logits   float32 [A, N, C]    of each slot that proposes; of DSpark with its bias, along the argmax walk
    tokens   int32   [A, N]       the argmax walk, ids of the target's vocabulary
    candidates int32, law float32 [A, N, K]   DFlash2: the best K of each slot, and softmax(scores / 0.7) along that walk
    confidence float32 [A, N]     DSpark

`target.npz` holds the target's embedding and head, [101, 32] each, that most of them borrow.
"""

import argparse
import importlib.metadata
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dflash.model as zlab
import numpy as np
import torch
from deepspec.modeling.dspark.qwen3.modeling import Qwen3DSparkModel
from make_llama_golden import record
from safetensors.torch import save_file
from transformers import Qwen3Config

VOCAB, WIDTH, CONTEXT, MASK = 101, 32, 24, 97
POSITIONS = (2, 9, 23)  # within the window of 7 and beyond it
TEMPERATURE = 0.7
SMALLEST_GAP, LARGEST_ERROR = 0.002, 2e-5  # of the argmax walk; of f32 logits against float64

SIZES = dict(hidden_size=WIDTH, intermediate_size=40, num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=3,
             head_dim=8, hidden_act="silu", rms_norm_eps=1e-6, vocab_size=VOCAB, max_position_embeddings=512,
             attention_bias=False, tie_word_embeddings=False)
DEFAULT_ROPE = {"rope_type": "default", "rope_theta": 1e4}
SLIDING, FULL = "sliding_attention", "full_attention"
TAPS = [1, 4]


def zlab_dflash() -> dict[str, Any]:
    return SIZES | dict(
        architectures=["DFlashDraftModel"], model_type="qwen3", rope_theta=1e6, rope_scaling=None, num_target_layers=6,
        block_size=5, layer_types=[FULL] * 2, sliding_window=None, use_sliding_window=False,
        dflash_config=dict(mask_token_id=MASK, target_layer_ids=TAPS))


def specforge_dflash() -> dict[str, Any]:
    """Taps by the default rule, mixed windows with their default causality, biases, every scale of the ends."""
    return SIZES | dict(
        architectures=["DFlashDraftModel"], model_type="qwen3", rope_parameters=DEFAULT_ROPE, num_target_layers=6,
        attention_bias=True, rms_norm_eps=1e-2, layer_types=[SLIDING, FULL], sliding_window=7, use_sliding_window=True,
        dflash_config=dict(block_size=6, mask_token_id=MASK, input_embedding_scale=1.7, output_multiplier=0.6,
                           final_logit_softcapping=8.0))


def speculators_dflash() -> dict[str, Any]:
    """Sizes in their own block, taps by the inputs of layers, a head of 64 tokens with a table to the target's ids."""
    return dict(
        architectures=["DFlashSpeculator"], speculators_model_type="dflash", draft_vocab_size=64, block_size=5,
        target_hidden_size=WIDTH, aux_hidden_state_layer_ids=[i + 1 for i in TAPS], mask_token_id=MASK,
        sliding_window_non_causal=False, sample_from_anchor=False,
        speculators_config=dict(algorithm="dflash", default_proposal_method="greedy",
                                proposal_methods=[dict(proposal_type="greedy", speculative_tokens=3)]),
        transformer_layer_config=SIZES | dict(rope_theta=1e4, layer_types=[SLIDING, SLIDING], sliding_window=7,
                                              use_sliding_window=True, model_type="qwen3"))


def modelopt_dflash() -> dict[str, Any]:
    """A window that layer_types does not know of, causality said outright."""
    return SIZES | dict(
        architectures=["DFlashDraftModel"], model_type="qwen3", rope_theta=1e4, rope_scaling=None, num_target_layers=6,
        block_size=5, layer_types=[FULL] * 2, sliding_window=7, torch_dtype="bfloat16",
        dflash_config=dict(mask_token_id=MASK, target_layer_ids=TAPS, use_swa=True, swa_window_size=7, causal=False))


def zlab_dflash2() -> dict[str, Any]:
    return SIZES | dict(
        architectures=["DFlash2DraftModel"], model_type="qwen3", rope_parameters=DEFAULT_ROPE, num_target_layers=6,
        is_causal=False, layer_types=[SLIDING] * 2, sliding_window=7, use_sliding_window=True,
        dflash_config=dict(block_size=6, mask_token_id=MASK, target_layer_ids=TAPS, conv_kernel_size=2, conv_group_size=8,
                           selector_rank=12, selector_top_k=5))


def modelopt_dflash2() -> dict[str, Any]:
    return SIZES | dict(
        architectures=["DFlash2DraftModel"], model_type="qwen3", rope_theta=1e4, rope_scaling=None, num_target_layers=6,
        block_size=5, layer_types=[FULL] * 2, is_causal=True,
        dflash_config=dict(block_size=5, mask_token_id=MASK, target_layer_ids=TAPS, projector_type="dflash2", conv_kernel_size=3,
                           conv_group_size=4, selector_rank=8, selector_top_k=7, causal=True))


def deepspec(**heads: Any) -> dict[str, Any]:
    return SIZES | dict(
        architectures=["Qwen3DSparkModel"], model_type="qwen3", rope_parameters=DEFAULT_ROPE, num_target_layers=6, block_size=4,
        layer_types=[FULL] * 2, mask_token_id=MASK, num_anchors=8) | dict(target_layer_ids=[-1, 4], enable_confidence_head=True,
        confidence_head_with_markov=True, markov_rank=6, markov_head_type="vanilla") | heads


def specforge_dspark() -> dict[str, Any]:
    return SIZES | dict(
        architectures=["DSparkDraftModel"], model_type="qwen3", num_target_layers=6, block_size=4,
        rope_parameters={"rope_type": "yarn", "rope_theta": 1e3, "factor": 8.0, "original_max_position_embeddings": 64},
        dflash_config=dict(attention_mode="gqa", projector_type="dspark", markov_rank=6, markov_head_type="rnn",
                           confidence_head_alpha=1.0, confidence_head_with_markov=False, mask_token_id=MASK,
                           target_layer_ids=TAPS))


def speculators_dspark() -> dict[str, Any]:
    return dict(
        architectures=["DSparkSpeculator"], speculators_model_type="dspark", draft_vocab_size=64, block_size=4,
        target_hidden_size=None, aux_hidden_state_layer_ids=[i + 1 for i in TAPS], mask_token_id=MASK, sample_from_anchor=True,
        markov_rank=6, markov_head_type="vanilla", enable_confidence_head=True, confidence_head_with_markov=True,
        transformer_layer_config=SIZES | dict(rope_theta=1e4, layer_types=[FULL] * 2, model_type="qwen3"))


def modelopt_dspark() -> dict[str, Any]:
    return SIZES | dict(
        architectures=["DFlashDraftModel"], model_type="qwen3", rope_theta=1e4, rope_scaling=None, num_target_layers=6,
        block_size=4, layer_types=[FULL] * 2,
        dflash_config=dict(mask_token_id=MASK, target_layer_ids=TAPS, causal=False, projector_type="dspark",
                           shift_label=True, markov_rank=6, markov_head_type="gated", use_confidence_head=True))


VARIANTS: dict[str, dict[str, Any]] = {
    "dflash_zlab": zlab_dflash(), "dflash_specforge": specforge_dflash(), "dflash_speculators": speculators_dflash(),
    "dflash_modelopt": modelopt_dflash(), "dflash_deepspec": deepspec(markov_rank=0, enable_confidence_head=False),
    "dflash2_zlab": zlab_dflash2(), "dflash2_modelopt": modelopt_dflash2(),
    "dspark_deepspec_vanilla": deepspec(), "dspark_deepspec_gated": deepspec(markov_head_type="gated"),
    "dspark_deepspec_rnn": deepspec(markov_head_type="rnn"), "dspark_specforge": specforge_dspark(),
    "dspark_speculators": speculators_dspark(), "dspark_modelopt": modelopt_dspark(),
}
# How the reference spells what the dialect says.
PLAIN: dict[str, dict[str, Any]] = {
    "dflash_specforge": dict(target_layer_ids=[1, 3]), "dflash_speculators": dict(target_layer_ids=TAPS, num_target_layers=6),
    "dflash_modelopt": dict(layer_types=[SLIDING] * 2, sliding_window=7, use_sliding_window=True, is_causal=False),
    "dspark_specforge": dict(enable_confidence_head=True), "dspark_speculators": dict(target_layer_ids=TAPS),
    "dspark_modelopt": dict(enable_confidence_head=True, confidence_head_with_markov=True)}
RENAMES: dict[str, Callable[[str], str]] = {  # the reference's tensor names to the file's
    "dflash2_zlab": lambda n: n.removesuffix(".weight") if "_codebook" in n else n,
    "dspark_specforge": lambda n: f"logit_head.{n}" if n.startswith(("markov_head", "confidence_head")) else n,
    "dspark_modelopt": lambda n: n.removeprefix("markov_head.").replace("confidence_head.proj", "confidence_proj"),
    "dflash_specforge": lambda n: f"model.{n}"}
SPARES = {"dspark_modelopt", "dspark_specforge"}  # whose files hold neither embedding nor head

SEEDS = {name: number for number, name in enumerate(VARIANTS)} | {"dflash_specforge": 101}


def reference_config(name: str) -> Qwen3Config:
    raw = VARIANTS[name]
    flat = raw | raw.get("transformer_layer_config", {}) | raw.get("dflash_config", {})
    flat |= dict(num_anchors=8) | PLAIN.get(name, {})
    flat.pop("transformer_layer_config", None)
    flat["dflash_config"] = {}  # all at the top, so that `plain` wins
    flat = {key: value for key, value in flat.items() if value is not None and key != "architectures"}
    if "rope_theta" in flat:
        flat["rope_parameters"] = {"rope_type": "default", "rope_theta": flat.pop("rope_theta")}
    config = Qwen3Config(**flat)
    config._attn_implementation = "eager" if "dspark" in name or "deepspec" in name else "sdpa"
    return config


def randomise(module: torch.nn.Module, generator: torch.Generator) -> None:
    """Draws every parameter: matrices with a spread that keeps activations near one, norm weights in 0.5 to 1.5."""
    with torch.no_grad():
        for name, value in sorted(module.named_parameters()):
            noise = torch.randn(value.shape, generator=generator)
            if name.endswith("norm.weight"):
                value.copy_(0.5 + torch.rand(value.shape, generator=generator))
            elif name.endswith("base_kernel"):
                value.copy_(0.5 * noise)
                value[:, 0] += 1
            elif name.endswith(".bias"):
                value.copy_(0.5 * noise)
            elif "codebook" in name or "markov_w" in name or "embed_tokens" in name:
                value.copy_(noise)
            elif "kernel_projection" in name:
                value.copy_(0.5 * noise * value.shape[1] ** -0.5)
            else:
                value.copy_(1.5 * noise * value.shape[1] ** -0.5)


def build(name: str, target: dict[str, torch.Tensor], generator: torch.Generator) -> torch.nn.Module:
    config = reference_config(name)
    if "dspark" in name or "deepspec" in name:
        model = Qwen3DSparkModel(config)
    else:
        model = (zlab.DFlash2DraftModel if "dflash2" in name else zlab.DFlashDraftModel)(config)
    if name.endswith("speculators"):  # a head, and a bias, over the frequent tokens only
        model.lm_head = torch.nn.Linear(WIDTH, 64, bias=False)
        if "dspark" in name:
            model.markov_head.markov_w2 = torch.nn.Linear(6, 64, bias=False)
    randomise(model, generator)
    if name in SPARES or name == "dspark_speculators":  # these borrow the target's
        model.embed_tokens.weight.data = target["embed"].clone()
    if name in SPARES:
        model.lm_head.weight.data = target["head"].clone()
    return model.eval()


@torch.no_grad()
def compute(name: str, model: torch.nn.Module, target: dict[str, torch.Tensor], taps: torch.Tensor, anchor: int, s: int,
            d2t: torch.Tensor) -> dict[str, torch.Tensor]:
    """What the reference proposes behind `anchor` at position `s`, without a cache."""
    block = int(model.block_size)
    ids = torch.tensor([[anchor] + [MASK] * (block - 1)])
    context, where = taps[:s].reshape(1, s, -1), torch.arange(s + block)[None]
    embed, head = torch.nn.functional.embedding(ids, target["embed"]), lambda y: y @ target["head"].T
    if "dspark" in name or "deepspec" in name:
        y = model._forward_backbone(position_ids=where, noise_embedding=model.embed_tokens(ids), target_hidden_states=context,
                                    is_causal=False)
        prev, tokens, rows = ids[:, 0], [], []
        if name == "dspark_speculators":
            for k in range(block):
                rows.append(model.markov_head.apply_step_logits(model.lm_head(y[:, k]), token_ids=prev, hidden_states=y[:, k]))
                best = rows[-1].argmax(-1)
                prev = best + d2t[best]
                tokens.append(prev)
            tokens, logits = torch.stack(tokens, 1), torch.stack(rows, 1)
        else:
            tokens, logits = model.sample_draft_tokens(model.compute_logits(y), first_prev_token_ids=prev, hidden_states=y)
        out = {"logits": logits, "tokens": tokens}
        sure = model.predict_confidence_step(y, torch.cat([ids[:, :1], tokens[:, :-1]], 1))
        return out if sure is None else out | {"confidence": sure.sigmoid()}
    scale = float(getattr(model.config, "input_embedding_scale", 1.0))
    y = model(position_ids=where, noise_embedding=embed * scale, target_hidden=context)[:, 1:]
    logits = model.compute_logits(y, model.lm_head if name.endswith("speculators") else head)
    if "dflash2" not in name:
        best = logits.argmax(-1)
        return {"logits": logits, "tokens": best + d2t[best] if name.endswith("speculators") else best}
    tokens, _, _ = model.propose(y, ids[:, 0], head, 0.0)
    zlab._sample_probs, before = (lambda q: q.argmax(-1)), zlab._sample_probs  # the argmax walk, with its laws
    warm, candidates, law = model.propose(y, ids[:, 0], head, TEMPERATURE)
    zlab._sample_probs = before
    assert torch.equal(warm, tokens)
    order = torch.gather(logits, -1, candidates).argsort(-1, descending=True)
    return {"logits": logits, "tokens": tokens, "candidates": candidates.gather(-1, order), "law": law.gather(-1, order)}


def make(name: str, folder: Path, target: dict[str, torch.Tensor]) -> dict[str, float]:
    """Writes one variant and returns its checks. Raises if it could not tell right from wrong."""
    seed = SEEDS[name]
    generator = torch.Generator().manual_seed(seed)
    model = build(name, target, generator)
    taps = torch.randn((CONTEXT, len(TAPS), WIDTH), generator=generator)
    anchors = torch.randint(3, VOCAB, (len(POSITIONS),), generator=generator)
    kept = torch.sort(torch.randperm(VOCAB, generator=generator)[:64]).values
    d2t = kept - torch.arange(64)

    def run(dtype: torch.dtype) -> dict[str, np.ndarray]:
        ends = {key: value.to(dtype) for key, value in target.items()}
        parts = [compute(name, model.to(dtype), ends, taps.to(dtype), int(a), s, d2t) for a, s in zip(anchors, POSITIONS)]
        return {key: torch.cat([part[key] for part in parts]).numpy() for key in parts[0]}

    exact, got = run(torch.float64), run(torch.float32)
    best = np.sort(got["law"] if "law" in got else got["logits"], axis=-1)
    checks = {"seed": seed, "smallest_gap": float((best[..., -1] - best[..., -2]).min()),
              "logit_spread": float(got["logits"].std()),
              "f32_minus_f64": float(np.abs(got["logits"] - exact["logits"]).max())}
    if checks["smallest_gap"] < SMALLEST_GAP or checks["f32_minus_f64"] > LARGEST_ERROR:
        raise SystemExit(f"{name}: the gap must be at least {SMALLEST_GAP}, the error at most {LARGEST_ERROR}; got {checks}. "
                         "Change its seed.")
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {RENAMES.get(name, str)(key): value.float().contiguous() for key, value in model.state_dict().items()
               if not (name in SPARES and key in ("embed_tokens.weight", "lm_head.weight"))
               and not (name == "dspark_speculators" and key == "embed_tokens.weight")}
    if name.endswith("speculators"):
        tensors |= {"d2t": d2t, "t2d": torch.zeros(VOCAB, dtype=torch.bool).scatter(0, kept, True)}
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(VARIANTS[name], indent=2) + "\n")
    got = {key: value.astype(np.int32 if value.dtype.kind == "i" else np.float32) for key, value in got.items()}
    np.savez(folder / "golden.npz", taps=taps.numpy(), anchors=anchors.numpy().astype(np.int32),
             positions=np.array(POSITIONS, np.int32), **got)
    return checks


def main() -> None:
    parser = argparse.ArgumentParser(description="make the golden drafters")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "draft")
    out = parser.parse_args().out
    torch.set_num_threads(1)  # so that a second run gives the same bits
    generator = torch.Generator().manual_seed(1000)
    target = {"embed": torch.randn((VOCAB, WIDTH), generator=generator),
              "head": 1.5 * WIDTH**-0.5 * torch.randn((VOCAB, WIDTH), generator=generator)}
    out.mkdir(parents=True, exist_ok=True)
    np.savez(out / "target.npz", **{key: value.numpy() for key, value in target.items()})
    record(out, {name: make(name, out / name, target) for name in VARIANTS})
    versions = json.loads((out / "versions.json").read_text())
    versions["versions"] |= {"dflash": importlib.metadata.version("dflash"),
                             "DeepSpec": "afdfa7c9382a3341a3e6f17756dd816da79f132c"}
    (out / "versions.json").write_text(json.dumps(versions, indent=2) + "\n")


if __name__ == "__main__":
    main()
