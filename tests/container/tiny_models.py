"""A tiny Llama in plain values: two layers, 64 wide, with a byte-level tokenizer."""

import numpy as np

from radiance_jax.models.config import parse_config
from radiance_jax.models.tensors import tensor_shapes
from radiance_jax.text.tokenizer import _ALPHABET

LETTERS = sorted(_ALPHABET, key=_ALPHABET.get)
TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *LETTERS, "Ġt", "he", "Ġthe", "12"]
MERGES = ["Ġ t", "h e", "Ġt he", "1 2"]
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 96,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "hidden_act": "silu",
    "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "vocab_size": len(TOKENS),
    "tie_word_embeddings": True, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}
METADATA = {
    "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "smollm", "tokenizer.ggml.tokens": TOKENS,
    "tokenizer.ggml.token_type": [3] * 3 + [1] * (len(TOKENS) - 3), "tokenizer.ggml.merges": MERGES,
    "tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2, "tokenizer.ggml.padding_token_id": 2,
    "tokenizer.chat_template": TEMPLATE}
GGUF_NAMES = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
              "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
              "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
              "model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight",
              "lm_head.weight": "output.weight"}


def make_weights(config: dict = CONFIG) -> dict[str, np.ndarray]:
    """Random f32 weights that bf16 and Q8_0 can both hold nearly, the same at every call."""
    rng = np.random.default_rng(0)
    return {name: rng.standard_normal(shape, np.float32) for name, shape in
            tensor_shapes(parse_config(config)).items()}


def permuted(weight: np.ndarray, heads: int) -> np.ndarray:
    """llama.cpp's own permutation of query and key rows, as its converter writes it."""
    return weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:]).swapaxes(1, 2).reshape(
        weight.shape)
