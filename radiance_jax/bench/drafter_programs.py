"""The programs that `bench drafter` times: the engine's `propose` and `observe`, a copy, and an 8B-shaped verify step."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from radiance_jax.bench.config import numbers
from radiance_jax.bench.drafter_shapes import TARGET_8B, target_of
from radiance_jax.bench.tile import sequence_of
from radiance_jax.engine import drafting
from radiance_jax.engine.choices import CPU_TILES, DTYPES
from radiance_jax.engine.device import Device
from radiance_jax.engine.drafting import CPU_SLOT_TILES, Drafting
from radiance_jax.engine.memory import rank_bytes
from radiance_jax.engine.scheduler import Entry, Plan
from radiance_jax.engine.state import DECODE, PREFILL, Capacity, admission_size, pack_plan, state_specs
from radiance_jax.engine.steps import Programs, StepShape, lower_admission, lower_step
from radiance_jax.mesh import ArraySpec, is_spec, partitions, zeros, zeros_of
from radiance_jax.models import llama
from radiance_jax.models.config import parse_config
from radiance_jax.models.draft.registry import read_drafter
from radiance_jax.models.partition import Partition, partition
from radiance_jax.spec import evidence

COPY_BYTES, CPU_COPY_BYTES = 2 << 30, 128 << 20
TABLES = ("embed", "predecessors", "successors", "before", "head_ids")  # of which only rows are fetched
CONTEXT = ("fc", "context_norm", "kv", "kv_bias", "k_norm")  # what `observe` reads
ONLY_CONTEXT = ("fc", "context_norm")  # and `propose` does not


def random_arrays(specs: Any, mesh: Mesh) -> Any:
    """A tree of `ArraySpec` to random arrays made on the devices: small matrices, norms near one, integers zero."""
    makers: dict[Any, Any] = {}

    def make(number: int, spec: ArraySpec) -> jax.Array:
        if not jnp.issubdtype(spec.dtype, jnp.floating):
            return zeros(spec, mesh)
        key = (spec.shape, spec.dtype, spec.partition)
        if key not in makers:
            middle = float(len(spec.shape) == 1)
            makers[key] = jax.jit(lambda k: middle + 0.02 * jax.random.normal(k, spec.shape, spec.dtype),
                                  out_shardings=spec.sharding(mesh))
        return makers[key](jax.random.key(number))

    leaves, tree = jax.tree.flatten(specs, is_leaf=is_spec)
    return jax.tree.unflatten(tree, [make(number, spec) for number, spec in enumerate(leaves)])


def copy_speed(mesh: Mesh) -> float:
    """GB/s, read and written together, of a plain elementwise copy on every device at once; the best of ten."""
    cpu = jax.default_backend() == "cpu"
    size = (CPU_COPY_BYTES if cpu else COPY_BYTES) // 4
    sharding = NamedSharding(mesh, PartitionSpec("tp"))
    x = jax.jit(lambda: jnp.ones(size * mesh.size, jnp.float32), out_shardings=sharding)()
    step = jax.jit(lambda x: x * 1.0000001, donate_argnums=0)
    best, x = 0.0, jax.block_until_ready(step(x))
    for _ in range(10):
        start = time.perf_counter()
        for _ in range(4):
            x = step(x)
        jax.block_until_ready(x)
        best = max(best, 4 * 2 * 4 * size / (time.perf_counter() - start) / 1e9)
    return best


@dataclass(eq=False)
class Subject:
    """A drafter of random weights, with the ends of a target and a full cache."""

    drafting: Drafting
    mesh: Mesh
    dtype: Any
    specs: dict[str, Any]
    params: Any = None
    ends: Any = None
    programs: dict[int, Any] = field(default_factory=dict)  # propose, by sequences

    @classmethod
    def make(cls, raw: dict[str, Any], mesh: Mesh, config: Any) -> "Subject":
        """With its arrays, on the devices."""
        made = cls.sized(raw, mesh, config)
        made.params, made.ends = random_arrays(made.specs["params"], mesh), random_arrays(made.specs["ends"], mesh)
        return made

    @classmethod
    def sized(cls, raw: dict[str, Any], mesh: Mesh, config: Any) -> "Subject":
        """Without them."""
        drafter, target, dtype = read_drafter(raw), parse_config(target_of(raw)), DTYPES[config.dtype]
        cut, cpu = partition(target, mesh.size), jax.default_backend() == "cpu"
        length = max(numbers("contexts", config.contexts)) + 1 + drafter.block
        specs = {"params": drafter.param_specs(cut, dtype),
                 "ends": {name: spec for name, spec in llama.param_specs(target, cut, dtype).items() if name != "layers"}}
        knows = Drafting(drafter=drafter, config=target, cut=cut, depth=drafter.block, length=length,
                         slot_tiles=CPU_SLOT_TILES if cpu else None, row_tiles=CPU_TILES if cpu else None)
        return cls(knows, mesh, dtype, specs)

    @property
    def tp(self) -> int:
        return self.mesh.size

    def cache_specs(self, slots: int) -> Any:
        return self.drafting.drafter.cache_specs(self.drafting.cut, slots, self.drafting.length, self.dtype)

    def figures(self) -> dict[str, Any]:
        """Sizes on one device."""
        d = self.drafting.drafter
        return {"name": d.name, "drafts": d.block, "taps": list(d.taps), "window": d.window,
                "weight_bytes": rank_bytes(self.specs["params"], self.tp),
                "cache_bytes_per_sequence": rank_bytes(self.cache_specs(1), self.tp)}

    def propose(self, slots: int, context: int, temperature: float) -> tuple[Callable[[], Any], int]:
        """A call that proposes for `slots` sequences of so many tokens each, and the bytes it must move on one device."""
        knows, cache = self.drafting, self.cache_specs(slots)
        capacity = Capacity(slots=slots, length=knows.length, rows=slots * (1 + knows.depth), pages=2, page_size=64,
                            depth=knows.depth)
        specs = state_specs(capacity, knows.cut.vocab_size)
        state = zeros_of(specs, self.mesh)
        whole = NamedSharding(self.mesh, PartitionSpec())
        filled = lambda like, value: jax.device_put(np.full(like.shape, value, like.dtype), whole)  # noqa: E731
        state = replace(state, length=filled(state.length, context + 1), prompt=filled(state.prompt, context),
                        draw=replace(state.draw, temperature=filled(state.draw.temperature, temperature)))
        if slots not in self.programs:
            self.programs[slots] = self._program(lambda params, cache, ends, state: drafting.propose(
                knows, params, cache, ends, state, jnp.ones(slots, bool)),
                (self.specs["params"], cache, self.specs["ends"], specs), PartitionSpec())
        program = self.programs[slots]
        arguments = (self.params, random_arrays(cache, self.mesh), self.ends, state)
        return lambda: program(*arguments), self.propose_bytes(slots, context)

    def propose_bytes(self, slots: int, context: int) -> int:
        """On one device: the weights that a block goes through, the head it ends in, and the context in reach."""
        weights = self._bytes(lambda name: name not in ONLY_CONTEXT + TABLES)
        head = 0 if "head" in self.specs["params"] else rank_bytes(self.specs["ends"]["head"], self.tp)
        return weights + head + self._cache_bytes(slots, context)

    def observe_bytes(self, rows: int) -> int:
        """On one device: the weights of keys and values, the taps, and what is written."""
        taps = rows * len(self.drafting.drafter.taps) * self.drafting.config.width * np.dtype(self.dtype).itemsize
        return self._bytes(CONTEXT.__contains__) + taps + self._cache_bytes(1, rows)

    def _cache_bytes(self, slots: int, positions: int) -> int:
        return sum(min(positions, spec.shape[1]) * spec.nbytes // spec.shape[1] // (self.tp if any(spec.partition) else 1)
                   for spec in jax.tree.leaves(self.cache_specs(slots), is_leaf=is_spec))

    def observe(self, rows: int) -> tuple[Callable[[], Any], int]:
        """A call that observes so many rows of one sequence, and the bytes it must move on one device."""
        knows, specs = self.drafting, self.cache_specs(1)
        width, taps = knows.config.width, len(knows.drafter.taps)
        tallest = knows.row_tiles[0][0] if knows.row_tiles else 1
        padded = -(-rows // tallest) * tallest
        tap = ArraySpec((padded, width), np.dtype(self.dtype), (None, None))

        def run(params: Any, cache: Any, *taps: jax.Array) -> Any:
            at = jnp.arange(padded, dtype=jnp.int32)
            return drafting.observe(knows, params, cache, taps, jnp.zeros_like(at), at, at < rows, jnp.full(1, rows),
                                    jnp.int32(rows))

        program = self._program(run, (self.specs["params"], specs, *[tap] * taps), partitions(specs), donate=1)
        arguments, cache = random_arrays((tap,) * taps, self.mesh), [random_arrays(specs, self.mesh)]

        def call() -> Any:
            cache[0] = program(self.params, cache[0], *arguments)
            return cache[0]

        return call, self.observe_bytes(rows)

    def _bytes(self, counts: Callable[[str], bool]) -> int:
        """Bytes on one device of the parameters whose name counts."""
        paths = jax.tree_util.tree_flatten_with_path(self.specs["params"], is_leaf=is_spec)[0]
        return rank_bytes([spec for path, spec in paths if counts(path[-1].key)], self.tp)

    def _program(self, run: Callable[..., Any], specs: tuple, out: Any, donate: int | None = None) -> Any:
        mapped = jax.shard_map(run, mesh=self.mesh, in_specs=partitions(specs), out_specs=out, check_vma=False)
        return jax.jit(mapped, donate_argnums=() if donate is None else donate)


def verify_steps(config: Any, mesh: Mesh, timed: Callable[[Callable[[], Any], Any], list[float]],
                 depth: int = 7) -> list[dict[str, Any]]:
    """Milliseconds of the engine's own step for an 8B-shaped target, by sequences and context: each sequence with its
    anchor and up to `depth` drafts of prompt lookup."""
    target, dtype = parse_config(TARGET_8B), DTYPES[config.dtype]
    cut, page = partition(target, mesh.size), 64
    params = random_arrays(llama.param_specs(target, cut, dtype), mesh)
    return [_verify_step(config, mesh, timed, target, cut, params, dtype, sequences, context, depth, page)
            for sequences in numbers("sequences", config.sequences) for context in numbers("contexts", config.contexts)]


def _verify_step(config: Any, mesh: Mesh, timed: Callable, target: Any, cut: Partition, params: Any, dtype: Any, sequences: int,
                 context: int, depth: int, page: int) -> dict[str, Any]:
    more = (1 + config.repeats * config.rounds) * (1 + depth) + 2
    length, rows = context + more, sequences * (1 + depth)
    capacity = Capacity(slots=sequences, length=length, rows=rows, pages=1 + sequences * -(-length // page), page_size=page,
                        depth=depth)
    shape = StepShape(rows=rows, tiles=None, head_tile=rows, segment=8, block_pages=8, ngram_longest=4, ngram_shortest=2,
                      lookup=depth)
    specs, cache = llama.param_specs(target, cut, dtype), llama.cache_spec(target, cut, capacity.pages, page, dtype)
    step = lower_step(target, cut, capacity, shape, mesh, specs, (cache,) * target.num_layers).compile()
    admit = lower_admission(capacity, cut.vocab_size, mesh, admission_size(capacity)).compile()
    device = Device(mesh=mesh, params=params, capacity=capacity, programs=Programs(steps={rows: step}, admit=admit),
                    cache_specs=(cache,) * target.num_layers, padded_vocab=cut.vocab_size)
    for sequence in (sequence_of(slot, context, more, capacity) for slot in range(sequences)):
        device.admit(sequence)
        for first in range(0, context, rows):
            chunk = min(rows, context - first)
            device.send(Plan(entries=[Entry(sequence, sequence.slot, PREFILL, chunk=chunk, first=first)]))
    plan = pack_plan(capacity, [(slot, DECODE, 0, evidence.pack(evidence.alike(depth))) for slot in range(sequences)], [])
    seconds = timed(lambda: device._start(rows, None, plan), config)
    middle = sorted(seconds)[len(seconds) // 2]
    return {"sequences": sequences, "context": context, "rows": rows, "ms": middle * 1e3, "least_ms": min(seconds) * 1e3}
