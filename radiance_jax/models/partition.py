"""How a dense decoder is cut for tensor parallelism: what does not divide is zero-padded, exactly.

Query heads stay with their key/value head. With `tp` ranks and G key/value heads of N/G queries each:

    In:  tp=4, 9 query and 3 KV heads     Out: 4 KV heads (one zero), 3 queries each: one group a rank
    In:  tp=8, 9 query and 3 KV heads     Out: 4 KV heads copied twice, 3 queries padded to 4: two a rank

A padded query head meets zero columns of the output projection, a padded feed-forward column meets zero columns
of the down projection, and a padded vocabulary row is masked: the sums gain only zeros.
"""

from dataclasses import dataclass

import numpy as np

from radiance_jax.errors import UserError
from radiance_jax.models.config import ModelConfig

VOCAB_MULTIPLE = 64  # per rank; keeps vector loops over the vocabulary free of remainders


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


@dataclass(frozen=True, kw_only=True)
class Partition:
    """Padded sizes. `kv_heads` counts copies: it is what the cache holds over all ranks."""

    tp: int
    heads: int
    kv_heads: int
    kv_copies: int
    group_heads: int  # padded queries of one key/value head, over all its copies
    ff_width: int
    vocab_size: int

    @property
    def local_heads(self) -> int:
        return self.heads // self.tp

    @property
    def local_kv_heads(self) -> int:
        return self.kv_heads // self.tp

    @property
    def local_ff(self) -> int:
        return self.ff_width // self.tp

    def padding(self, config: ModelConfig) -> str:
        """What is served larger than it is, in words; a key/value head copied to several ranks counts each time."""
        parts = []
        if (self.heads, self.kv_heads) != (config.num_heads, config.num_kv_heads):
            parts.append(f"heads {config.num_heads}/{config.num_kv_heads} served as {self.heads}/{self.kv_heads}")
        if self.ff_width != config.ff_width:
            parts.append(f"feed-forward {config.ff_width} as {self.ff_width}")
        return ", ".join(parts)


def check_width(config: ModelConfig, tp: int) -> None:
    """Refuses a mesh that leaves a rank with nothing but padding in the layers. Raises `UserError` naming the dimension
    that stands in the way."""
    heads, ff = config.num_heads, config.ff_width
    if tp > max(heads, ff):
        name, most = ("intermediate_size", ff) if ff >= heads else ("num_attention_heads", heads)
        raise UserError(f"mesh tp={tp} has more ranks than this model can occupy: {heads} query heads and {ff} feed-forward "
                        f"columns, so {name}={most} stands in the way. Use --mesh tp={most} or fewer.", param="mesh")


def partition(config: ModelConfig, tp: int, ff_multiple: int = 1) -> Partition:
    """`ff_multiple`: what each rank's slice of the feed-forward width must be a multiple of."""
    check_width(config, tp)
    groups, per_group = config.num_kv_heads, config.num_heads // config.num_kv_heads
    if tp <= groups:
        padded, copies = _round_up(groups, tp), 1
    else:  # copy each KV head, on the fewest ranks that divide evenly
        padded = min(d for d in range(groups, tp + 1) if tp % d == 0)
        copies = tp // padded
    queries = _round_up(per_group, copies)
    return Partition(
        tp=tp, heads=padded * queries, kv_heads=padded * copies, kv_copies=copies, group_heads=queries,
        ff_width=_round_up(config.ff_width, tp * ff_multiple), vocab_size=_round_up(config.vocab_size, VOCAB_MULTIPLE * tp))


def pad_axis(array: np.ndarray, axis: int, size: int) -> np.ndarray:
    """Zeros behind `array` along `axis` up to `size`."""
    if array.shape[axis] == size:
        return array
    widths = [(0, 0)] * array.ndim
    widths[axis] = (0, size - array.shape[axis])
    return np.pad(array, widths)


def pad_query_heads(weight: np.ndarray, config: ModelConfig, cut: Partition) -> np.ndarray:
    """[N*H, ...] to [tp, local_heads*H, ...]: queries padded inside their group, then groups padded."""
    groups = config.num_kv_heads
    w = weight.reshape(groups, config.num_heads // groups, config.head_size, *weight.shape[1:])
    w = pad_axis(pad_axis(w, 1, cut.group_heads), 0, cut.heads // cut.group_heads)
    return w.reshape(cut.tp, cut.local_heads * config.head_size, *weight.shape[1:])


def pad_kv_heads(weight: np.ndarray, config: ModelConfig, cut: Partition) -> np.ndarray:
    """[G*H, ...] to [tp, local_kv_heads*H, ...]: groups padded, then copied to the ranks that share them."""
    w = weight.reshape(config.num_kv_heads, config.head_size, *weight.shape[1:])
    w = np.repeat(pad_axis(w, 0, cut.kv_heads // cut.kv_copies), cut.kv_copies, axis=0)
    return w.reshape(cut.tp, cut.local_kv_heads * config.head_size, *weight.shape[1:])
