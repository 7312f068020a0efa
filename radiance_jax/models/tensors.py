"""Which tensors a checkpoint of a dense decoder holds. No jax here."""

from radiance_jax.models.config import ModelConfig


def tensor_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Name to shape, [out, in], of every tensor a checkpoint of this configuration holds."""
    d, f, h = config.width, config.ff_width, config.head_size
    q, kv = config.num_heads * h, config.num_kv_heads * h
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config.vocab_size, d), "model.norm.weight": (d,)}
    if not config.tied_head:
        shapes["lm_head.weight"] = (config.vocab_size, d)
    for i in range(config.num_layers):
        p = f"model.layers.{i}."
        shapes |= {
            p + "input_layernorm.weight": (d,), p + "post_attention_layernorm.weight": (d,),
            p + "self_attn.q_proj.weight": (q, d), p + "self_attn.k_proj.weight": (kv, d),
            p + "self_attn.v_proj.weight": (kv, d), p + "self_attn.o_proj.weight": (d, q),
            p + "mlp.gate_proj.weight": (f, d), p + "mlp.up_proj.weight": (f, d), p + "mlp.down_proj.weight": (d, f),
        }
        if config.qk_norm:
            shapes |= {p + "self_attn.q_norm.weight": (h,), p + "self_attn.k_norm.weight": (h,)}
        if config.attention_bias:
            shapes |= {p + "self_attn.q_proj.bias": (q,), p + "self_attn.k_proj.bias": (kv,), p + "self_attn.v_proj.bias": (kv,)}
        if config.output_bias:
            shapes[p + "self_attn.o_proj.bias"] = (d,)
        if config.mlp_bias:
            shapes |= {p + "mlp.gate_proj.bias": (f,), p + "mlp.up_proj.bias": (f,), p + "mlp.down_proj.bias": (d,)}
    return shapes
