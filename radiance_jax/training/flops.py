"""Arithmetic of one step, counted from shapes: a multiply and an add are two."""

from radiance_jax.models.draft.backbone import BlockDrafter
from radiance_jax.training.config import TrainConfig
from radiance_jax.training.parameters import count
from radiance_jax.training.target import Target

PEAKS = {"H100": 989e12, "H200": 989e12, "A100": 312e12}  # bf16, dense, FLOP/s of one device


def step_flops(config: TrainConfig, target: Target, drafter: BlockDrafter, wants_target: bool) -> float:
    """FLOPs of a step over all devices, padding included: it is computed too."""
    t, d = target.config, drafter.config
    tokens, blocks = config.batch * config.length, config.batch * config.anchors
    rows, slots = blocks * drafter.block, blocks * d.block_size
    heads, kv = t.num_heads * t.head_size, t.num_kv_heads * t.head_size
    layer = t.width * (2 * heads + 2 * kv) + 3 * t.width * t.ff_width
    forward = 2 * tokens * t.num_layers * (layer + heads * config.length)  # causal: half of the length, keys and values
    forward *= config.states == "recomputed"
    head = 2 * rows * t.width * t.vocab_size
    forward += head * wants_target
    own_heads, own_kv = d.num_heads * d.head_size, d.num_kv_heads * d.head_size
    context = len(d.taps) * d.target_width * d.width + d.num_layers * d.width * 2 * own_kv
    tables = sum(drafter.config.vocab_size * getattr(drafter, "rank", 0) for _ in range(2))
    block = count(drafter) - len(d.taps) * d.target_width * d.width - tables
    seen = 2 * own_heads * (config.length + d.block_size) * d.num_layers
    trained = 2 * (tokens * context + slots * (block + seen))
    bias = 2 * rows * drafter.rank * d.vocab_size if drafter.name == "DSpark" else 0
    return forward + 3 * (trained + bias) + 2 * head  # the head is frozen: forward, and back to the states


def peak(kind: str, devices: int) -> float | None:
    """bf16 FLOP/s of so many devices of a kind; None for one whose peak is not known here."""
    return next((value * devices for name, value in PEAKS.items() if name in kind), None)
