"""The drafter that a configuration asks for, as the config.json it will be published with. No jax here.

The same file describes the network that is trained and the one that is served: both are read from it by
`models/draft/registry.py`.
"""

from collections.abc import Mapping
from typing import Any

from radiance_jax.errors import UserError
from radiance_jax.models.config import ModelConfig
from radiance_jax.models.draft.config import FULL, SLIDING
from radiance_jax.training.config import TrainConfig

TAPS = 5
ARCHITECTURES = {"dflash": "DFlashDraftModel", "dflash2": "DFlash2DraftModel", "dspark": "DSparkDraftModel"}
ROPE_KEYS = ("rope_theta", "rope_scaling", "rope_parameters")


def default_taps(layers: int) -> tuple[int, ...]:
    """Five layers from the second to the third from the end, evenly; of a small target all but the last.

    In:  30    Out: (1, 8, 14, 20, 27)
    """
    if layers < TAPS + 4:
        return tuple(range(max(layers - 1, 1)))[-TAPS:]
    return tuple(round(1 + i * (layers - 4) / (TAPS - 1)) for i in range(TAPS))


def describe(config: TrainConfig, target: ModelConfig, raw_target: Mapping[str, Any]) -> dict[str, Any]:
    """The drafter's config.json. Raises `UserError` for what does not fit the target."""
    heads, kv_heads = config.num_heads or target.num_heads, config.num_kv_heads or target.num_kv_heads
    taps = config.taps or default_taps(target.num_layers)
    if heads % kv_heads:
        raise UserError(f"num_heads must be a multiple of num_kv_heads ({kv_heads}); got {heads}", param="num_heads")
    if max(taps) >= target.num_layers:
        raise UserError(f"taps must be below the target's number of layers, {target.num_layers}; got {max(taps)}", param="taps")
    if config.mask_id is not None and config.mask_id >= target.vocab_size:
        raise UserError(f"mask_id must be below the target's vocabulary of {target.vocab_size}; got {config.mask_id}",
                        param="mask_id")
    if config.length > target.max_position:
        raise UserError(f"length must be at most the target's context of {target.max_position}; got {config.length}",
                        param="length")
    own: dict[str, Any] = {"block_size": config.block_size, "target_layer_ids": list(taps)}
    if config.mask_id is not None:
        own["mask_token_id"] = config.mask_id
    if config.family == "dflash2":
        own |= {"conv_kernel_size": config.conv_reach, "conv_group_size": config.conv_group, "selector_rank": config.rank,
                "selector_top_k": min(config.candidates, target.vocab_size)}
    elif config.family == "dspark":
        own |= {"projector_type": "dspark", "attention_mode": "gqa", "markov_rank": config.rank,
                "markov_head_type": config.markov, "enable_confidence_head": config.confidence,
                "confidence_head_with_markov": config.confidence,
                "sample_from_anchor": True}
    raw = {
        "architectures": [ARCHITECTURES[config.family]], "model_type": "qwen3", "hidden_size": target.width,
        "num_hidden_layers": config.layers, "num_attention_heads": heads, "num_key_value_heads": kv_heads,
        "head_dim": config.head_size or target.head_size, "intermediate_size": config.ff_width or target.ff_width,
        "hidden_act": "silu", "rms_norm_eps": target.norm_eps, "attention_bias": False, "vocab_size": target.vocab_size,
        "max_position_embeddings": target.max_position, "num_target_layers": target.num_layers, "tie_word_embeddings": False,
        "layer_types": [FULL if config.window is None else SLIDING] * config.layers, "is_causal": config.causal,
        "block_size": config.block_size, "dflash_config": own}
    raw |= {key: raw_target[key] for key in ROPE_KEYS if raw_target.get(key) is not None}
    if "rope_theta" not in raw and "rope_parameters" not in raw:
        raw["rope_theta"] = target.rope.theta
    return raw if config.window is None else raw | {"use_sliding_window": True, "sliding_window": config.window}
