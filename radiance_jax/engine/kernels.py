"""Where the row-invariant GPU kernels can be had, and the choices that go with them."""

from dataclasses import dataclass
from typing import Any

import jax

from radiance_jax.engine.state import Capacity
from radiance_jax.models.config import ModelConfig
from radiance_jax.models.partition import Partition
from radiance_jax.pallas.mosaic import ROWS
from radiance_jax.pallas.splits import splits_of
from radiance_jax.pallas.streamed_attention import LARGEST
from radiance_jax.pallas.verify_attention import BLOCK, SplitShape, segment_height

GPUS = ("gpu", "cuda")
HOPPER = "9.0"
FF_MULTIPLE = 64  # the product kernels' step along K; ranks' feed-forward slices are padded to it with zeros
SPLIT, MOST_SPLITS = 256, 128
FINE = 4  # short splits, before they become twice as long (where the streamed form walks them)
LANES = 2  # the attention kernel's form (SplitShape.lanes), where a head fits it


@dataclass(frozen=True, kw_only=True)
class Kernels:
    """Static choices of a forward pass in kernels. `split`: positions of the context that one thread block walks, twice as many
    from position `fine` on; `lanes`: the form in which it does (`SplitShape`). The bits depend on all three, so that they follow
    from the model alone. `interpret`: the interpreter to run the kernels in (tests), None on a GPU."""

    split: int
    fine: int | None = None
    lanes: int = 0
    interpret: Any = None

    def attention(self, capacity: Capacity) -> SplitShape:
        most = splits_of(capacity.length, self.split, self.fine)
        return SplitShape(split=self.split, fine=self.fine, lanes=self.lanes, most=most)

    def described(self) -> str:
        """What the bits depend on, for the start-up log: "splits of 256 positions, 512 beyond 1,024, two lanes"."""
        beyond = "" if self.fine is None else f", {2 * self.split:,} beyond {self.fine:,}"
        return f"splits of {self.split:,} positions{beyond}, {('no lanes', 'one lane', 'two lanes')[self.lanes]}"


def kernels_for(model: ModelConfig, interpret: Any = None) -> Kernels:
    """The model's longest context is at most `MOST_SPLITS` of the longest splits: partial sums are workspace."""
    lanes = LANES if model.head_size <= LARGEST else 0
    longest = 2 if lanes else 1
    split = max(SPLIT, -(-model.max_position // (longest * MOST_SPLITS * BLOCK)) * BLOCK)
    return Kernels(split=split, fine=FINE * split if lanes else None, lanes=lanes, interpret=interpret)


def segments_of(model: ModelConfig, cut: Partition, capacity: Capacity, rows: int) -> tuple[int, int]:
    """Rows of a segment at most, and segments that a step of `rows` rows can have at most."""
    height = segment_height(cut.local_heads // cut.local_kv_heads, model.head_size)
    return height, min(min(capacity.slots, rows) + rows // height, rows)


def compute_capability() -> str | None:
    return getattr(jax.local_devices()[0], "compute_capability", None)


def machine_obstacle(platform: str, capability: str | None, dtype: str) -> str | None:
    """Why these kernels cannot run on such a device or in such a dtype; None: they can."""
    if platform not in GPUS:
        return f"there are no row-invariant kernels for platform {platform!r}, and XLA picks another product for other row counts"
    if capability != HOPPER:
        return f"the row-invariant kernels are for GPUs of compute capability {HOPPER} (Hopper); this one has {capability}"
    if dtype != "bf16":
        return f"the row-invariant kernels are for bf16; got {dtype}"
    return None


def model_obstacle(model: ModelConfig, cut: Partition, page_size: int) -> str | None:
    """Why the kernels cannot take a model of these sizes, cut so; None: they can."""
    size, heads = model.head_size, cut.local_heads + 2 * cut.local_kv_heads
    share = cut.local_heads // cut.local_kv_heads
    if size % 64 or size > 256:
        return f"the row-invariant kernels take heads of a multiple of 64, at most 256; got {size}"
    if heads > ROWS:
        return f"the row-invariant kernels take {ROWS} heads of queries, keys and values a device at most; got {heads}. More " \
               "devices (--mesh tp=N) have fewer each"
    if segment_height(share, size) < 1:
        return f"the row-invariant kernels take {ROWS} query heads a key head at most; got {share}"
    for name, k in (("width", model.width), ("attention output", cut.local_heads * size), ("feed-forward", cut.local_ff)):
        if k % 64:
            return f"the row-invariant kernels take products over a multiple of 64; the {name} of one device has {k}"
    if BLOCK % page_size:
        return f"the row-invariant kernels take pages whose size divides {BLOCK}; got {page_size}"
    return None


def partials_bytes(model: ModelConfig, cut: Partition, capacity: Capacity, kernels: Kernels) -> int:
    """Bytes of attention's partial sums in the largest step on one rank: splits x segments x key heads x 64 rows, f32."""
    segments = segments_of(model, cut, capacity, capacity.rows)[1]
    return kernels.attention(capacity).most * segments * cut.local_kv_heads * ROWS * (model.head_size + 2) * 4
