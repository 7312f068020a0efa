"""Drafter shapes by name, as published for Qwen3.8-27B (64 layers, width 5120), and the shape of an 8B target."""

from typing import Any

_BACKBONE: dict[str, Any] = {
    "model_type": "qwen3", "hidden_size": 5120, "intermediate_size": 17408, "num_hidden_layers": 5,
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "hidden_act": "silu", "rms_norm_eps": 1e-6,
    "attention_bias": False, "vocab_size": 248320, "max_position_embeddings": 262144, "num_target_layers": 64,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e7}, "tie_word_embeddings": False}

SHAPES: dict[str, dict[str, Any]] = {
    "dflash": _BACKBONE | {
        "architectures": ["DFlashDraftModel"], "layer_types": ["sliding_attention"] * 4 + ["full_attention"],
        "sliding_window": 2048,
        "dflash_config": {"block_size": 16, "mask_token_id": 248070, "target_layer_ids": [1, 16, 31, 46, 61]}},
    "dflash2": _BACKBONE | {
        "architectures": ["DFlash2DraftModel"], "layer_types": ["sliding_attention"] * 5, "sliding_window": 2048,
        "is_causal": False,
        "dflash_config": {"block_size": 8, "mask_token_id": 248070, "target_layer_ids": [5, 19, 33, 47, 61],
                          "conv_kernel_size": 2, "conv_group_size": 16, "selector_rank": 256, "selector_top_k": 16}},
    "dspark": _BACKBONE | {
        "architectures": ["DSparkDraftModel"], "layer_types": ["full_attention"] * 5, "block_size": 7,
        "dflash_config": {"projector_type": "dspark", "mask_token_id": 248070, "target_layer_ids": [5, 19, 33, 47, 61],
                          "markov_rank": 256, "markov_head_type": "vanilla", "enable_confidence_head": True,
                          "confidence_head_with_markov": True}},
}

TARGET_8B: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 4096, "intermediate_size": 12288,
    "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "rms_norm_eps": 1e-6,
    "vocab_size": 151936, "max_position_embeddings": 40960, "rope_theta": 1e6, "tie_word_embeddings": False}


def target_of(drafter: dict[str, Any]) -> dict[str, Any]:
    """A target with the ends that the drafter borrows: its width and its vocabulary. Nothing else of it is used."""
    least = {"num_attention_heads": 1, "num_key_value_heads": 1, "intermediate_size": 64, "num_hidden_layers": 1}
    return TARGET_8B | least | {name: drafter[name] for name in ("hidden_size", "vocab_size")}
