"""Model configuration: one frozen record read from a Hugging Face style `config.json`."""

from dataclasses import dataclass, field
from typing import Any

from radiance_jax.errors import ModelError
from radiance_jax.models.fields import Fields, token_ids

LLAMA, QWEN2, QWEN3 = "LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"
ARCHITECTURES = (LLAMA, QWEN2, QWEN3)
ROPE_KINDS = ("default", "linear", "llama3", "yarn")


@dataclass(frozen=True, kw_only=True)
class RopeConfig:
    """Rotary embedding: base `theta` and, if any, the scaling rule with its parameters.

    `kind` is one of default, linear, llama3, yarn.
    """

    kind: str = "default"
    theta: float = 10000.0
    factor: float = 1.0
    original_max_position: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The architecture of a dense decoder. Sizes follow the package's letter table.

    `attention_bias` is that of the q, k and v products, `output_bias` that of the o product; `qk_norm` normalises each
    query and key head before rope.
    """

    architecture: str
    vocab_size: int  # V
    width: int  # D
    ff_width: int  # F
    num_layers: int  # L
    num_heads: int  # N, query heads
    num_kv_heads: int  # G
    head_size: int  # H
    norm_eps: float
    max_position: int
    tied_head: bool
    attention_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    activation: str = "silu"
    rope: RopeConfig = field(default_factory=RopeConfig)
    eos_token_ids: tuple[int, ...] = ()
    bos_token_id: int | None = None

    def kv_bytes_per_token(self, bytes_per_value: int) -> int:
        """Bytes one token takes in the key/value cache, before any padding of heads."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_size * bytes_per_value


def parse_config(raw: Any) -> ModelConfig:
    """Reads a `config.json` dictionary. Raises `ModelError` naming the field that cannot be served, and nothing else
    whatever the dictionary holds."""
    fields = Fields(raw)
    architecture = _architecture(fields)
    qwen = architecture in (QWEN2, QWEN3)
    width, heads = fields.whole("hidden_size"), fields.whole("num_attention_heads")
    kv_heads = fields.whole("num_key_value_heads", heads)
    if heads % kv_heads:
        raise fields.fail("num_key_value_heads", f"a divisor of num_attention_heads ({heads})")
    head_size = _head_size(fields, architecture, width, heads)
    activation = fields.word("hidden_act", ("silu", "swish"), "silu")
    layers = fields.whole("num_hidden_layers")
    max_position = fields.whole("max_position_embeddings", 32768 if qwen else 2048, low=2)
    vocab_size = fields.whole("vocab_size")
    _refuse_sliding(fields)
    fields.refuse("partial_rotary_factor", (1, 1.0), "Rotating a part of each head is not served by this version.")
    bias = architecture == QWEN2 or fields.flag("attention_bias")
    return ModelConfig(
        architecture=architecture,
        vocab_size=vocab_size,
        width=width,
        ff_width=fields.whole("intermediate_size"),
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_size=head_size,
        norm_eps=fields.number("rms_norm_eps", 1e-6, low=1e-20, high=1.0),
        max_position=max_position,
        tied_head=fields.flag("tie_word_embeddings"),
        attention_bias=bias,
        output_bias=bias and architecture != QWEN2,
        mlp_bias=architecture == LLAMA and fields.flag("mlp_bias"),
        qk_norm=architecture == QWEN3,
        activation="silu" if activation == "swish" else activation,
        rope=read_rope(fields, max_position),
        eos_token_ids=token_ids(fields, "eos_token_id", vocab_size),
        bos_token_id=next(iter(token_ids(fields, "bos_token_id", vocab_size)), None),
    )


def _architecture(fields: Fields) -> str:
    names = fields.get("architectures")
    if not isinstance(names, list) or len(names) != 1 or names[0] not in ARCHITECTURES:
        raise fields.fail("architectures", f"a list with one of {', '.join(ARCHITECTURES)}",
                          "Other families are not served by this version.")
    return names[0]


def _head_size(fields: Fields, architecture: str, width: int, heads: int) -> int:
    if fields.get("head_dim") is None and architecture != QWEN3 and width % heads:
        raise fields.fail("head_dim", f"given where hidden_size ({width}) is no multiple of num_attention_heads ({heads})")
    size = fields.whole("head_dim", 128 if architecture == QWEN3 else width // heads)
    if size % 2:
        raise ModelError(f"{fields.where}: head_dim must be even for rotary embeddings; got {size}", param="head_dim")
    return size


def _refuse_sliding(fields: Fields) -> None:
    """Sliding windows are refused where they are on; a `sliding_window` that is switched off is common and harmless."""
    advice = "Sliding-window attention is not served by this version."
    if fields.flag("use_sliding_window"):
        raise fields.fail("use_sliding_window", "false", advice)
    kinds = fields.get("layer_types", [])
    if not isinstance(kinds, list) or any(kind != "full_attention" for kind in kinds):
        raise fields.fail("layer_types", "a list of 'full_attention'", advice)


def read_rope(fields: Fields, max_position: int) -> RopeConfig:
    """Accepts `rope_parameters` (newer) and `rope_theta` + `rope_scaling` (older) spellings."""
    key = "rope_scaling" if fields.get("rope_parameters", {}) == {} else "rope_parameters"
    block = fields.block(key)
    for name, value in block.raw.items():
        if isinstance(value, dict):
            raise block.fail(name, "a plain value", "Rotary embeddings that differ by layer are not served by this version.")
    kind = block.word("rope_type" if block.get("rope_type") is not None else "type", ROPE_KINDS, "default")
    block.refuse("partial_rotary_factor", (1, 1.0), "Rotating a part of each head is not served by this version.")
    theta = (block if block.get("rope_theta") is not None else fields).number("rope_theta", 1e4, low=1.001, high=1e20)
    if kind == "default":
        return RopeConfig(theta=theta)
    factor = block.number("factor", low=1.0, high=1e6)
    if kind == "linear":
        return RopeConfig(kind=kind, theta=theta, factor=factor)
    original = "original_max_position_embeddings"
    if kind == "llama3":
        low = block.number("low_freq_factor", low=1e-3, high=1e6)
        high = block.number("high_freq_factor", low=1e-3, high=1e6)
        if not low < high:
            raise block.fail("high_freq_factor", f"more than low_freq_factor ({low:g})")
        return RopeConfig(kind=kind, theta=theta, factor=factor, original_max_position=block.whole(original),
                          low_freq_factor=low, high_freq_factor=high)
    return RopeConfig(
        kind=kind, theta=theta, factor=factor, original_max_position=block.whole(original, max_position),
        beta_fast=block.number("beta_fast", 32.0, low=1e-3, high=1e6),
        beta_slow=block.number("beta_slow", 1.0, low=1e-3, high=1e6),
        attention_factor=block.optional_number("attention_factor", low=1e-3, high=1e3),
        mscale=block.optional_number("mscale", low=0.0, high=1e3),
        mscale_all_dim=block.optional_number("mscale_all_dim", low=0.0, high=1e3), truncate=block.flag("truncate", True))
