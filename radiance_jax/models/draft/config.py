"""What all block drafters share, read from any published dialect of config.json and normalised. No jax here.

Two things differ between dialects without a trace in any shape, and a wrong reading of either ruins acceptance silently.
*Taps*: z-lab, SpecForge, DeepSpec and ModelOpt count the output of decoder layer i as i; the speculators library and vLLM
count the input of layer i, which is the output of i - 1. *Slots*: in DFlash slot k of the block stands for the position of
its own input, and slot 0, the anchor's, predicts nothing; in DSpark slot k predicts the position after it.
"""

from dataclasses import dataclass
from typing import Any

from radiance_jax.errors import ModelError
from radiance_jax.models.config import RopeConfig, read_rope
from radiance_jax.models.draft.options import Options

SLIDING, FULL = "sliding_attention", "full_attention"
MAX_LAYERS = 256

# Fields that change the computation and that no family here computes; each with the values that change nothing.
UNSERVED: tuple[tuple[str, tuple[Any, ...]], ...] = (
    ("attention_sink_bias", (False,)), ("add_swa_attention_sink_bias", (False,)), ("attention_value_scale", (1, 1.0)),
    ("draft_adapter_rank", (0,)), ("partial_rotary_factor", (1, 1.0)), ("is_neox_style", (True,)),
    ("dflash_context_residual", (False,)), ("dflash_block_position_embedding", (False,)), ("norm_before_fc", (False,)),
    ("attention_mode", ("gqa", "mha")), ("attention_modes", ()), ("logit_scale", (1, 1.0)),
    ("use_aux_hidden_state", (True,)), ("mlp_bias", (False,)))


@dataclass(frozen=True, kw_only=True)
class DraftConfig:
    """The backbone of a block drafter. Sizes follow the package's letter table; names agree with `ModelConfig` where
    `partition.py` reads them. The last block says what the file holds of its own and does not borrow."""

    architecture: str
    width: int  # D
    target_width: int  # Dt, of one tap
    ff_width: int  # F
    num_layers: int
    num_heads: int  # N
    num_kv_heads: int  # G
    head_size: int  # H
    vocab_size: int  # V, the target's
    head_vocab: int  # rows of the head: fewer than V where the drafter knows the frequent tokens only
    norm_eps: float
    max_position: int
    rope: RopeConfig
    attention_bias: bool

    windows: tuple[int | None, ...]  # by layer: positions it reaches back, the current one included
    causal: tuple[bool, ...]  # by layer: a slot does not see the slots behind it
    block_size: int  # inputs of one block, the anchor included
    shifted: bool  # slot k predicts position k + 1 of the block, and slot 0 predicts too
    taps: tuple[int, ...]  # output of decoder layer i; -1: of the embedding
    target_layers: int | None
    mask_id: int | None
    declared: int | None  # drafts to verify, where the checkpoint says how many
    embedding_scale: float
    logit_scale: float
    logit_cap: float | None

    own_embed: bool
    own_head: bool
    mapped: bool  # a table from the head's rows to the target's ids
    own_mask: bool  # a learned vector in place of the mask token's embedding

    @property
    def drafts(self) -> int:
        """N, the most drafts of one block."""
        return self.block_size if self.shifted else self.block_size - 1

    @property
    def window(self) -> int | None:
        """Positions that any layer reaches back; None: all."""
        return None if None in self.windows else max(w for w in self.windows if w is not None)

    def kv_bytes_per_token(self, bytes_per_value: int) -> int:
        """Bytes that one position takes in the drafter's cache, before any padding of heads."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_size * bytes_per_value


def read_backbone(options: Options, architecture: str, shifted: bool) -> DraftConfig:
    """`shifted` is the family's own slot convention, where the checkpoint does not say. Raises `ModelError` naming the field
    that cannot be served, and nothing else whatever the file holds."""
    layers = options.layers
    if options.top.get("quantization_config"):
        raise options.top.fail("quantization_config", "absent", "Quantised drafters are not served by this version.")
    for key, plain in UNSERVED:
        options.at(key).refuse(key, plain, "Drafters that compute this are not served by this version.")
    layers.word("hidden_act", ("silu", "swish"), "silu")
    width, heads = layers.whole("hidden_size"), layers.whole("num_attention_heads")
    kv_heads, count = layers.whole("num_key_value_heads", heads), layers.whole("num_hidden_layers", high=MAX_LAYERS)
    if heads % kv_heads:
        raise layers.fail("num_key_value_heads", f"a divisor of num_attention_heads ({heads})")
    head_size = layers.whole("head_dim", 128)
    if head_size % 2:
        raise layers.fail("head_dim", "even, for rotary embeddings")
    vocab = layers.whole("vocab_size")
    head_vocab = options.whole("draft_vocab_size", vocab)
    if head_vocab > vocab:
        raise options.fail("draft_vocab_size", f"at most vocab_size ({vocab})")
    max_position = layers.whole("max_position_embeddings", 32768, low=2)
    windows = _windows(options, count)
    target_layers = None if options.get("num_target_layers") is None else options.whole("num_target_layers")
    for key in ("shift_label", "sample_from_anchor"):  # the latter wins
        said = options.optional_flag(key)
        shifted = shifted if said is None else said
    block_size = options.whole("block_size", 16, low=1 if shifted else 2)
    cap = options.optional_number("final_logit_softcapping", low=0.0, high=1e6)
    own = architecture == "Qwen3DSparkModel"  # DeepSpec trains with copies of the target's ends and stores them
    return DraftConfig(
        architecture=architecture, width=width, target_width=options.whole("target_hidden_size", width),
        ff_width=layers.whole("intermediate_size"), num_layers=count, num_heads=heads, num_kv_heads=kv_heads,
        head_size=head_size, vocab_size=vocab, head_vocab=head_vocab,
        norm_eps=layers.number("rms_norm_eps", 1e-6, low=1e-20, high=1.0), max_position=max_position,
        rope=read_rope(layers, max_position), attention_bias=layers.flag("attention_bias"),
        windows=windows, causal=_causal(options, windows), block_size=block_size, shifted=shifted,
        taps=_taps(options, count, target_layers), target_layers=target_layers, mask_id=_mask_id(options, vocab),
        declared=_declared(options, block_size if shifted else block_size - 1),
        embedding_scale=options.number("input_embedding_scale", 1.0, low=1e-6, high=1e6),
        logit_scale=options.number("output_multiplier", 1.0, low=1e-6, high=1e6), logit_cap=cap or None,
        own_embed=options.flag("has_embed_tokens", own), own_head=options.flag("has_lm_head", own) or head_vocab != vocab,
        mapped=head_vocab != vocab, own_mask=False)


def _windows(options: Options, count: int) -> tuple[int | None, ...]:
    """By layer: the window, None where attention is full."""
    layers = options.layers
    kinds = layers.get("layer_types")
    if kinds is None:
        first = layers.whole("max_window_layers", 28, low=0) if layers.flag("use_sliding_window") else count
        kinds = [SLIDING if i >= first else FULL for i in range(count)]
    if not isinstance(kinds, list) or len(kinds) != count or any(kind not in (SLIDING, FULL) for kind in kinds):
        raise layers.fail("layer_types", f"a list of {count} ({SLIDING} or {FULL}), one a layer")
    if options.flag("use_swa") and SLIDING not in kinds:  # ModelOpt and vLLM: a window for all layers, whatever their kinds
        key = "swa_window_size" if options.get("swa_window_size") is not None else "sliding_window"
        return (options.whole(key),) * count
    if SLIDING not in kinds:
        return (None,) * count
    if layers.get("use_sliding_window") is False:
        raise layers.fail("use_sliding_window", f"true where layer_types names {SLIDING}")
    window = layers.whole("sliding_window")
    return tuple(window if kind == SLIDING else None for kind in kinds)


def _causal(options: Options, windows: tuple[int | None, ...]) -> tuple[bool, ...]:
    """By layer: whether a slot sees only the slots before it.

    `is_causal` decides for all layers, else `causal`; `sliding_window_non_causal` decides for those with a window. Where
    nothing is said a layer that `layer_types` calls sliding is causal, a full one is not.
    """
    for key in ("is_causal", "causal"):
        said = options.optional_flag(key)
        if said is not None:
            return (said,) * len(windows)
    everywhere = options.flag("use_swa") and SLIDING not in (options.layers.get("layer_types") or ())
    sliding = not options.flag("sliding_window_non_causal", everywhere)
    return tuple(window is not None and sliding for window in windows)


def _taps(options: Options, count: int, target_layers: int | None) -> tuple[int, ...]:
    """The tapped layers by their outputs, in the order in which `fc` reads them."""
    taps = options.numbers("target_layer_ids", low=-1)
    for key in ("aux_hidden_state_layer_ids", "eagle_aux_hidden_state_layer_ids"):
        inputs = options.numbers(key, low=0)
        if inputs is None:
            continue
        outputs = tuple(i - 1 for i in inputs)
        if taps is not None and taps != outputs:
            raise options.fail(key, f"target_layer_ids + 1, {[i + 1 for i in taps]}: both are given")
        taps = outputs
    if taps is None:
        if target_layers is None:
            raise options.fail("target_layer_ids", "given, or num_target_layers to choose them by")
        if count == 1:
            return (target_layers // 2,)
        # Evenly from layer 1 to the third from the end; halves go to the even number, as Python rounds.
        taps = tuple(round(1 + i * (target_layers - 4) / (count - 1)) for i in range(count))
        if min(taps) < -1:
            raise options.fail("num_target_layers", f"enough to choose {count} of them")
    if target_layers is not None and max(taps) >= target_layers:
        raise options.fail("target_layer_ids", f"below num_target_layers ({target_layers})")
    return taps


def _mask_id(options: Options, vocab: int) -> int | None:
    if options.get("mask_token_id") is None:
        return None
    mask = options.whole("mask_token_id", low=0)
    if mask >= vocab:
        raise options.fail("mask_token_id", f"below vocab_size ({vocab})",
                           "Its embedding is read like any other's, so the table must have that row.")
    return mask


def _declared(options: Options, most: int) -> int | None:
    """The number of drafts that a speculators checkpoint says it is to be run with."""
    methods = options.top.block("speculators_config").get("proposal_methods")
    if not isinstance(methods, list) or not methods or not isinstance(methods[0], dict):
        return None
    depth = methods[0].get("speculative_tokens")
    if depth is None:
        return None
    if not isinstance(depth, int) or isinstance(depth, bool) or not 1 <= depth <= most:
        raise ModelError(f"{options.top.where}: speculative_tokens must be a whole number from 1 to {most}, the drafts of one "
                         f"block; got {depth!r}", param="speculative_tokens")
    return depth
