"""Running our drafters on the golden ones (see tests/golden/README.md)."""

from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from radiance_jax import collectives
from radiance_jax.container.drafter import open_drafter
from radiance_jax.mesh import TENSOR_AXIS, ArraySpec, make_mesh, zeros
from radiance_jax.models.draft.backbone import BlockDrafter
from radiance_jax.models.load import place_params
from radiance_jax.models.partition import VOCAB_MULTIPLE, Partition, pad_axis
from radiance_jax.spec.drafter import Noise, Shared, Surroundings

GOLDEN = Path(__file__).parent.parent / "golden" / "draft"
VARIANTS = sorted(path.parent.name for path in GOLDEN.glob("*/golden.npz"))
SLOTS, LENGTH = 4, 40


@dataclass(frozen=True)
class Running:
    """One drafter on a mesh, compiled once: `observe(cache, taps, slot, position, keep)`; `propose(cache, anchor, position, live,
    temperature, path)` gives the Proposal and the logits of the slots [S, N, C], behind the tokens `path` [S, N] where a
    family's depend on them."""

    drafter: BlockDrafter
    observe: Any
    propose: Any
    empty: Any


def target_cut(tp: int, vocab: int) -> Partition:
    """Of the target only the ranks and the padded vocabulary matter."""
    return Partition(tp=tp, heads=tp, kv_heads=tp, kv_copies=1, group_heads=1, ff_width=tp,
                     vocab_size=-(-vocab // (VOCAB_MULTIPLE * tp)) * VOCAB_MULTIPLE * tp)


def partitions(tree: Any) -> Any:
    return jax.tree.map(lambda s: s.partition, tree, is_leaf=lambda s: isinstance(s, ArraySpec))


def surroundings(tp: int, branches: bool = True) -> Surroundings:
    return Surroundings(
        tp=tp, reduce=lambda x: collectives.all_reduce(x, TENSOR_AXIS), branches=branches,
        gather=lambda x: collectives.all_gather_last(x, TENSOR_AXIS), rank=lambda: jax.lax.axis_index(TENSOR_AXIS))


def gumbel(k: Any, ids: jax.Array) -> jax.Array:
    """A made-up noise that a test can compute too: [S, C] for every slot alike."""
    return jnp.broadcast_to(jnp.sin(12.9898 * ids + 78.233 * (k + 1)), (SLOTS, ids.shape[-1]))


@cache
def run(variant: str, tp: int, branches: bool = True, dtype: Any = jnp.float32) -> Running:
    checkpoint = open_drafter(GOLDEN / variant)
    drafter, mesh = checkpoint.drafter, make_mesh(tp)
    ends = np.load(GOLDEN / "target.npz")
    vocab = ends["embed"].shape[0]
    cut, around = target_cut(tp, vocab), surroundings(tp, branches)
    specs, caches = drafter.param_specs(cut, dtype), drafter.cache_specs(cut, SLOTS, LENGTH, dtype)
    params = place_params(specs, lambda path: drafter.fuse(checkpoint.read, cut, path), mesh)
    embed, head = (pad_axis(ends[name], 0, cut.vocab_size).astype(dtype) for name in ("embed", "head"))

    def shared() -> Shared:
        def logits(x: jax.Array) -> jax.Array:
            count = cut.vocab_size // tp
            first = around.rank() * count
            local = jax.lax.dynamic_slice_in_dim(jnp.asarray(head), first, count)
            return jnp.where(first + jnp.arange(count) < vocab, (x @ local.T).astype(jnp.float32), -jnp.inf)
        return Shared(embed=lambda ids: jnp.asarray(embed)[ids], head=logits)

    def propose(params, cache, anchor, position, live, temperature, path):
        seen: dict[str, Any] = {}

        class Spied(type(drafter)):  # the same drafter, that lets its states and logits be seen
            def states(self, *arguments):
                seen["states"] = super().states(*arguments)
                return seen["states"]

            def logits(self, *arguments):
                seen["logits"] = super().logits(*arguments)
                return seen["logits"]

        spied = Spied(**{field.name: getattr(drafter, field.name) for field in fields(drafter)})
        noise = Noise(temperature=temperature, gumbel=gumbel)
        made = spied.propose(params, shared(), cache, anchor, position, live, noise, around)
        logits = seen["logits"][0]
        if getattr(drafter, "kind", None):
            logits = logits + biases(params, anchor, path, seen["states"])
        return made, around.gather(logits)

    def biases(params, anchor, path, states):
        before, memory = anchor, jnp.zeros((SLOTS, drafter.rank), dtype)
        out = []
        for k in range(drafter.block):
            bias, memory = drafter.bias(params, memory, params["before"][before], states[:, k])
            out, before = [*out, bias], path[:, k]
        return jnp.stack(out, axis=1)

    def program(function, outputs):
        count = function.__code__.co_argcount
        mapped = jax.shard_map(function, mesh=mesh, in_specs=(partitions(specs), partitions(caches), *(jax.P(),) * (count - 2)),
                               out_specs=outputs, check_vma=False)
        compiled = jax.jit(mapped)
        return lambda *arguments: compiled(params, *arguments)

    def observe(params, cache, taps, slot, position, keep):
        return drafter.observe(params, cache, taps, slot, position, keep, around)

    return Running(drafter, program(observe, partitions(caches)), program(propose, jax.P()),
                   jax.tree.map(lambda s: zeros(s, mesh), caches, is_leaf=lambda s: isinstance(s, ArraySpec)))


ROWS = 12


def feed(running: Running, cache: Any, rows: list[tuple[int, int, np.ndarray, bool]]) -> Any:
    """Observes rows (slot, position, taps, keep) in steps of twelve."""
    for first in range(0, len(rows), ROWS):
        part = rows[first:first + ROWS]
        part = part + [(0, 0, np.full_like(part[0][2], 99.0), False)] * (ROWS - len(part))
        cache = running.observe(cache, jnp.stack([jnp.asarray(row[2]) for row in part]), *(
            jnp.array([row[i] for row in part]) for i in (0, 1, 3)))
    return cache


def batch(golden: Any, temperature: float = 0.0) -> tuple[jax.Array, ...]:
    """The arguments of `propose` for the golden proposals, one slot each; the last slot is empty."""
    count = len(golden["anchors"])
    spare = ((0, SLOTS - count),)
    pad = lambda x: jnp.asarray(np.pad(x, spare + ((0, 0),) * (x.ndim - 1)))  # noqa: E731
    return (pad(golden["anchors"]), pad(golden["positions"]), jnp.arange(SLOTS) < count, jnp.full(SLOTS, temperature),
            pad(golden["tokens"]))
