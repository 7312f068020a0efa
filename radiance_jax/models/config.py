"""Model configuration: one frozen record read from a Hugging Face style `config.json`."""

from dataclasses import dataclass, field
from typing import Any

from radiance_jax.errors import ModelError


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
    """The architecture of a dense decoder. Sizes follow the package's letter table."""

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
    activation: str = "silu"
    rope: RopeConfig = field(default_factory=RopeConfig)
    eos_token_ids: tuple[int, ...] = ()
    bos_token_id: int | None = None

    def kv_bytes_per_token(self, bytes_per_value: int) -> int:
        """Bytes one token takes in the key/value cache, before any padding of heads."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_size * bytes_per_value


def _rope(raw: dict[str, Any], max_position: int) -> RopeConfig:
    """Accepts `rope_parameters` (newer) and `rope_theta` + `rope_scaling` (older) spellings."""
    block = dict(raw.get("rope_parameters") or raw.get("rope_scaling") or {})
    kind = block.get("rope_type", block.get("type", "default"))
    if kind not in ("default", "linear", "llama3", "yarn"):
        raise ModelError(f"rope_type must be default, linear, llama3 or yarn; got {kind!r}", param="rope_type")
    names = ("factor", "low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow", "attention_factor", "mscale",
             "mscale_all_dim", "truncate")
    return RopeConfig(
        kind=kind,
        theta=float(block.get("rope_theta", raw.get("rope_theta") or 10000.0)),
        original_max_position=int(block.get("original_max_position_embeddings", max_position)),
        **{name: block[name] for name in names if block.get(name) is not None},
    )


def _positive(raw: dict[str, Any], key: str, default: int | None = None) -> int:
    value = raw.get(key, default)
    if value is None:
        value = default
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < 2**31:
        raise ModelError(f"config.json: {key} must be a positive whole number; got {value!r}", param=key)
    return value


def parse_config(raw: dict[str, Any]) -> ModelConfig:
    """Reads a `config.json` dictionary. Raises `ModelError` naming the field that cannot be served."""
    names = raw.get("architectures") or [None]
    architecture = names[0]
    if architecture != "LlamaForCausalLM":
        raise ModelError(
            f"config.json: architectures must be ['LlamaForCausalLM']; got {names!r}. "
            "Convert a model of the Llama family.", param="architectures")
    width, heads = _positive(raw, "hidden_size"), _positive(raw, "num_attention_heads")
    kv_heads = _positive(raw, "num_key_value_heads", heads)
    if heads % kv_heads:
        raise ModelError(f"config.json: num_attention_heads ({heads}) must be a multiple of "
                         f"num_key_value_heads ({kv_heads})", param="num_key_value_heads")
    head_size = _positive(raw, "head_dim", max(width // heads, 1))
    activation = raw.get("hidden_act", "silu")
    if activation != "silu":
        raise ModelError(f"config.json: hidden_act must be 'silu'; got {activation!r}", param="hidden_act")
    if head_size % 2:
        raise ModelError(f"config.json: head_dim must be even for rotary embeddings; got {head_size}", param="head_dim")
    max_position = _positive(raw, "max_position_embeddings", 2048)
    eos = raw.get("eos_token_id")
    bias = bool(raw.get("attention_bias", False))
    return ModelConfig(
        architecture=architecture,
        vocab_size=_positive(raw, "vocab_size"),
        width=width,
        ff_width=_positive(raw, "intermediate_size"),
        num_layers=_positive(raw, "num_hidden_layers"),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_size=head_size,
        norm_eps=float(raw.get("rms_norm_eps", 1e-6)),
        max_position=max_position,
        tied_head=bool(raw.get("tie_word_embeddings", False)),
        attention_bias=bias,
        output_bias=bias,
        mlp_bias=bool(raw.get("mlp_bias", False)),
        activation=activation,
        rope=_rope(raw, max_position),
        eos_token_ids=tuple(eos) if isinstance(eos, list) else () if eos is None else (eos,),
        bos_token_id=raw.get("bos_token_id"),
    )
