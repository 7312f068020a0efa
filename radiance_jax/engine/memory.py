"""The memory plan: weights, step workspace, device state and key/value pool against the memory there is.

All figures are bytes of *one* memory. A device has its own; the mesh's devices on a CPU share the host's, so there the
shares of all of them are added up. Everything but the workspace is known exactly from shapes. The workspace is what XLA
plans for the temporaries of the largest step: known once the programs are compiled, estimated before (`step_workspace`),
because the pool's size is part of the programs.
"""

import os
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax

from radiance_jax.config import EngineConfig
from radiance_jax.engine.state import Capacity, state_specs
from radiance_jax.errors import UserError
from radiance_jax.mesh import is_spec
from radiance_jax.models import llama
from radiance_jax.models.config import ModelConfig
from radiance_jax.models.partition import Partition
from radiance_jax.spec.drafter import Drafter, ring

DEVICE_SHARE, CPU_SHARE = 0.9, 0.5  # other programs live in a host's memory too
CPU_POOL_SHARE = 1 / 8  # of the default pool: a page costs time to touch, and few hosts serve many long contexts
SLACK = 0.98  # of the memory; a compiled workspace may pass the share up to here before it is refused


@dataclass(frozen=True, kw_only=True)
class Memory:
    """`total` bytes, `used` of them by other arrays of this process; `ranks` devices of the mesh live in it."""

    total: int
    used: int = 0
    ranks: int = 1
    name: str = "device memory"

    @property
    def shared(self) -> bool:
        return self.name == "host memory"


def visible_memory(platform: str, tp: int) -> Memory:
    """The host's memory for a CPU mesh (a container's limit where there is one), else the first device's as its
    allocator sees it: by default XLA takes three quarters of a GPU (XLA_PYTHON_CLIENT_MEM_FRACTION)."""
    stats = None if platform == "cpu" else jax.local_devices()[0].memory_stats()
    if stats and "bytes_limit" in stats:
        return Memory(total=stats["bytes_limit"], used=stats.get("bytes_in_use", 0))
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for limit in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            total = min(total, int(Path(limit).read_text()))
        except (OSError, ValueError):  # no such file, or "max"
            continue
    return Memory(total=total, ranks=tp, name="host memory")


def rank_bytes(tree: Any, tp: int) -> int:
    """Bytes that one rank holds of a tree of `ArraySpec`."""
    specs = jax.tree.leaves(tree, is_leaf=is_spec)
    return sum(spec.nbytes // (tp if any(spec.partition) else 1) for spec in specs)


def weight_bytes(model: ModelConfig, cut: Partition, dtype: Any) -> int:
    """Bytes of the weights on one rank; no list of layers is built, whose number may be absurd."""
    specs = llama.param_specs(replace(model, num_layers=1), cut, dtype)
    layer = rank_bytes(specs.pop("layers"), cut.tp)
    return rank_bytes(specs, cut.tp) + model.num_layers * layer


def page_bytes(model: ModelConfig, cut: Partition, page_size: int, dtype: Any) -> int:
    """Bytes of one page of the pool on one rank, over all layers."""
    return model.num_layers * rank_bytes(llama.cache_spec(model, cut, 1, page_size, dtype), cut.tp)


def step_workspace(model: ModelConfig, cut: Partition, capacity: Capacity, tile: tuple[int, int] | None,
                   partials: Callable[[Capacity], int] | None = None) -> int:
    """Bytes that a step needs for temporaries on one rank, before it is compiled.

    Rows R, of which at once T are in the layers and T' are drawn: `tile`, or all of them where it is None. Residual
    stream, queries and attention's output for all rows, in f32 for what rounding leaves around, and twenty alternatives a
    row; one layer's products for T rows; the keys and values of the block that attention looks at, for every segment at
    once where there are no tiles, or the partial sums of its kernel, which `partials` tells; ten times the f32 logits of
    T' rows over the whole vocabulary (raw, adjusted, noise and the threshold searches of sampling: XLA was seen to keep
    eight on a CPU); four words a token of history for prompt lookup.
    """
    r = capacity.rows
    t, drawn = tile or (r, r)
    heads = (cut.local_heads + 2 * cut.local_kv_heads) * model.head_size
    rows = r * 4 * (3 * model.width + 3 * heads) + r * 2 * 8 * capacity.tops
    products = t * 4 * (heads + 2 * model.width + 3 * cut.local_ff)
    blocks = 1 if tile else 8 * (capacity.slots + r // 8)  # pages: up to eight a segment of eight rows
    keys = 2 * blocks * 2 * cut.local_kv_heads * model.head_size * capacity.page_size * 4
    keys = keys if partials is None else partials(capacity)
    lookup = 4 * 4 * capacity.slots * capacity.length
    return rows + products + keys + 10 * 4 * drawn * cut.vocab_size + lookup


def draft_workspace(drafter: Drafter, model: ModelConfig, cut: Partition, capacity: Capacity,
                    tile: tuple[int, int] | None) -> int:
    """Bytes that a drafter adds to a step's temporaries on one rank, before it is compiled: the taps of all rows, twice;
    logits, noise and what was drawn from them for the slots that propose together (four where there are tiles); and the keys
    and values of one slot tile."""
    slots = min(4, capacity.slots) if tile else capacity.slots
    cache = rank_bytes(drafter.cache_specs(cut, slots, capacity.length, jax.numpy.float32), cut.tp)
    taps = 2 * 4 * capacity.rows * max(len(drafter.taps), 1) * model.width
    return taps + cache + 3 * 4 * slots * drafter.block * cut.vocab_size // cut.tp


def compiled_workspace(*programs: Any) -> int | None:
    """What XLA planned for the largest of the compiled programs on one rank: temporaries, and outputs that are not
    written over a donated input; of several groups, which run one behind the other, together. None where the platform
    does not say."""
    total = 0
    for group in programs:
        sizes = [0]
        for program in group:
            found = program.memory_analysis()
            if found is None:
                return None
            sizes.append(found.temp_size_in_bytes + max(found.output_size_in_bytes - found.alias_size_in_bytes, 0))
        total += max(sizes)
    return total


@dataclass(frozen=True, kw_only=True)
class MemoryPlan:
    memory: Memory
    share: float
    weights: int
    workspace: int
    state: int
    page: int  # bytes of one page over all layers
    capacity: Capacity
    drafter: int = 0  # bytes of its weights
    draft_cache: int = 0  # bytes of its keys and values, all slots
    window: int | None = None  # positions of a slot that they cover
    compiled: bool = False  # whether `workspace` is XLA's own figure

    @property
    def allowed(self) -> int:
        return int(self.memory.total * self.share)

    @property
    def pool(self) -> int:
        return self.capacity.pages * self.page

    @property
    def total(self) -> int:
        return (self.memory.used + self.weights + self.drafter + self.draft_cache + self.workspace + self.state + self.pool)

    def with_compiled(self, workspace: int | None) -> "MemoryPlan":
        """The plan with the workspace of one rank as compiled. Raises `UserError` where it no longer fits."""
        if workspace is None:
            return self
        plan = replace(self, workspace=workspace * self.memory.ranks, compiled=True)
        if plan.total > max(plan.allowed, int(SLACK * plan.memory.total)):
            raise _does_not_fit(plan, "gpu_memory_utilization")
        return plan

    def table(self) -> list[str]:
        """One line an item, for the start-up log."""
        capacity, ranks = self.capacity, self.memory.ranks
        pages = capacity.pages - 1  # page 0 is the bin
        tokens = pages * capacity.page_size
        of = f"{ranks} devices that share it" if ranks > 1 else "one device"
        rows = [
            ("weights", self.weights, ""),
            ("drafter", self.drafter, "weights" if self.drafter else "none: prompt lookup needs no weights"),
            *([("drafter's keys", self.draft_cache, f"{capacity.slots} sequences of up to {self.window} positions")]
              if self.draft_cache else []),
            ("step workspace", self.workspace, "as compiled" if self.compiled else "estimated"),
            ("device state", self.state, f"{capacity.slots} sequences of up to {capacity.length} tokens"),
            ("key/value pool", self.pool, f"{pages} pages of {capacity.page_size} tokens: {tokens} tokens, or "
             + f"{tokens / capacity.length:.1f} sequences of full length")]
        if self.memory.used:
            rows.append(("others", self.memory.used, "arrays this process holds already"))
        rows.append(("together", self.total, f"{readable(max(self.allowed - self.total, 0))} of the share are left"))
        head = (f"memory: {readable(self.memory.total)} of {self.memory.name}, {of}; a share of {self.share:g} is "
                f"{readable(self.allowed)}")
        return [head, *(f"  {name:15}{readable(size):>11}  {remark}".rstrip() for name, size, remark in rows)]


def plan_memory(config: EngineConfig, model: ModelConfig, cut: Partition, wanted: Capacity, tile: tuple[int, int] | None,
                dtype: Any, memory: Memory, drafter: Drafter | None = None,
                partials: Callable[[Capacity], int] | None = None) -> MemoryPlan:
    """Decides pages and context. `wanted` has the longest context and no pages yet; `tile`, `partials` as in `step_workspace`.

    The pool gets `kv_pages`, else as many pages as every slot can use at full length, within the share. A context that
    nobody asked for (`max_model_len` unset) shrinks to what fits. Raises `UserError` with the arithmetic where weights,
    workspace, state and one sequence of full length do not fit the share.
    """
    share = config.gpu_memory_utilization or (CPU_SHARE if memory.shared else DEVICE_SHARE)
    page_size, ranks = wanted.page_size, memory.ranks
    page = page_bytes(model, cut, page_size, dtype) * ranks
    weights = weight_bytes(model, cut, dtype) * ranks
    draft_weights = rank_bytes(drafter.param_specs(cut, dtype), cut.tp) * ranks if drafter else 0

    def with_context(length: int, pages: int) -> MemoryPlan:
        capacity = replace(wanted, length=length, pages=pages + 1)
        extra, workspace = {}, step_workspace(model, cut, capacity, tile, partials)
        if drafter is not None:
            extra = {"drafter": draft_weights, "window": ring(drafter, length), "draft_cache": rank_bytes(
                drafter.cache_specs(cut, capacity.slots, length, dtype), cut.tp) * ranks}
            workspace += draft_workspace(drafter, model, cut, capacity, tile)
        return MemoryPlan(
            memory=memory, share=share, page=page, capacity=capacity, weights=weights, workspace=workspace * ranks, **extra,
            state=rank_bytes(state_specs(capacity, cut.vocab_size), cut.tp) * ranks)

    def one_sequence(pages: int) -> MemoryPlan:
        return with_context(min(pages * page_size, wanted.length), pages)

    full = -(-wanted.length // page_size)
    too_many = lambda pages: one_sequence(pages).total > int(memory.total * share)  # noqa: E731
    room = bisect_left(range(1, full + 1), True, key=too_many)  # pages of the longest context that fits
    if room < 1:
        raise _does_not_fit(one_sequence(1), "gpu_memory_utilization")
    if config.max_model_len is None:
        room = min(room, config.kv_pages or room)
        if memory.shared and not config.kv_pages and not config.gpu_memory_utilization:
            room = min(room, max(int(memory.total * CPU_POOL_SHARE) // page, 1))
    length = wanted.length
    if room < full:
        if config.max_model_len is not None:
            raise _does_not_fit(with_context(length, full), "max_model_len")
        length, full = room * page_size, room
    if config.kv_pages and config.kv_pages < full:
        raise UserError(f"kv_pages must hold one sequence of max_model_len {length}: {full} pages of {page_size}; got "
                        f"{config.kv_pages}", param="kv_pages")
    if config.kv_pages:
        plan = with_context(length, config.kv_pages)
        if plan.total > plan.allowed:
            raise _does_not_fit(plan, "kv_pages")
        return plan
    plan = with_context(length, full)
    pages = min(wanted.slots * full, full + (plan.allowed - plan.total) // page)
    if memory.shared and not config.gpu_memory_utilization:
        pages = min(pages, max(int(memory.total * CPU_POOL_SHARE) // page, full))
    return with_context(length, pages)


def _does_not_fit(plan: MemoryPlan, param: str) -> UserError:
    pages, size = plan.capacity.pages - 1, plan.capacity.page_size
    pool = f"{pages} pages of {size} tokens" + (" for one sequence" if (pages - 1) * size < plan.capacity.length else "")
    parts = [("weights", plan.weights), ("drafter", plan.drafter), ("drafter's keys", plan.draft_cache),
             ("step workspace", plan.workspace), ("device state", plan.state), (pool, plan.pool)]
    if plan.memory.used:
        parts.append(("what this process holds already", plan.memory.used))
    advice = {"kv_pages": "Ask for fewer --kv-pages", "max_model_len": "Shorten --max-model-len"}.get(param, "Take a smaller model")
    return UserError(
        "it does not fit: " + " + ".join(f"{name} {readable(size)}" for name, size in parts if size)
        + f" = {readable(plan.total)}, but a share of {plan.share:g} of {readable(plan.memory.total)} of {plan.memory.name} is "
        f"{readable(plan.allowed)}. {advice}, lower --max-num-seqs, raise --gpu-memory-utilization"
        + ("" if plan.memory.shared else ", or cut the model over more devices with --mesh tp=N"), param=param)


def readable(size: int) -> str:
    """In:  3221225472    Out: "3.00 GiB" """
    for unit, step in (("TiB", 2**40), ("GiB", 2**30)):
        if size >= step:
            return f"{size / step:.2f} {unit}"
    return f"{size / 2**20:.1f} MiB"
