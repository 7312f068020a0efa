"""The programs that `bench step` runs: forward pass and head of random weights over a paged cache."""

import re
import tempfile
import time
from collections import Counter, defaultdict
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from radiance_jax.bench.kernels import compile_all
from radiance_jax.bench.step import SHAPES
from radiance_jax.engine.launches import ONE_BY_ONE, one_by_one, weight_bytes
from radiance_jax.mesh import is_spec
from radiance_jax.models import llama, llama_mosaic
from radiance_jax.models.config import parse_config
from radiance_jax.models.llama_mosaic import KernelSurroundings
from radiance_jax.models.partition import partition
from radiance_jax.models.rows import Rows
from radiance_jax.pallas import product as products
from radiance_jax.pallas.paged_attention import make_segments
from radiance_jax.pallas.splits import splits_of
from radiance_jax.pallas.verify_attention import SplitShape, make_places, segment_height

SLOTS, PAGE = 8, 64
BUCKETS = (8, 16, 32, 64, 128, 512, 4096)
DRIVER_CALL = re.compile(r"cu(da)?[A-Z]")
DRAWN = 128  # rows that go through the head, at most


def xla_product(x: jax.Array, w: jax.Array, bias: jax.Array | None = None, *, gated: bool = False, dtype: Any = None,
                interpret: Any = None) -> jax.Array:
    """XLA's own product in place of the row-invariant one."""
    del interpret
    return products.oracle(x, w, bias, gated=gated, dtype=dtype)


class Steps:
    BEFORE = 5  # rows of another sequence before those whose bits are compared

    def __init__(self, shape: str, split: int, fine: int | None, lanes: int, length: int, launches: str = "auto"):
        self.config = parse_config({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "rms_norm_eps": 1e-6,
                                    "max_position_embeddings": 65536, "hidden_act": "silu"} | SHAPES[shape])
        self.cut = partition(self.config, 1)
        length, self.launches = max(length, BUCKETS[-1]), launches
        self.pages = -(-length // PAGE)
        self.how = SplitShape(split=split, fine=fine, lanes=lanes, most=splits_of(self.pages * PAGE, split, fine))
        specs = llama.param_specs(self.config, self.cut, jnp.bfloat16)
        leaves, tree = jax.tree.flatten(specs, is_leaf=is_spec)
        made = [self._random(i, spec.shape) for i, spec in enumerate(leaves)]
        self.params = jax.tree.unflatten(tree, made)
        self.weight_bytes = weight_bytes(specs, 1)
        self.kv_bytes = 2 * 2 * self.config.num_layers * self.config.num_kv_heads * self.config.head_size
        cache = (SLOTS * self.pages + 1, 2, self.cut.kv_heads, PAGE, self.config.head_size)
        self.caches = tuple(self._random(1000 + i, cache) for i in range(self.config.num_layers))
        self.table = jnp.asarray(1 + np.random.default_rng(0).permutation(SLOTS * self.pages).reshape(SLOTS, -1), jnp.int32)
        self.programs: dict[tuple[int, str], Any] = {}

    @staticmethod
    def _random(seed: int, shape: tuple[int, ...]) -> jax.Array:
        if len(shape) == 1:
            return jnp.ones(shape, jnp.bfloat16)
        return (jax.random.normal(jax.random.key(seed), shape, jnp.bfloat16) * shape[-1] ** -0.5).astype(jnp.bfloat16)

    def bucket(self, rows: int) -> int:
        return next(b for b in BUCKETS if b >= rows)

    def _step(self, rows: int, linear: Any, params: Any, caches: Any, tables: jax.Array, tokens: jax.Array, start: jax.Array,
              count: jax.Array, position: jax.Array) -> tuple[jax.Array, Any]:
        height = segment_height(self.config.num_heads // self.config.num_kv_heads, self.config.head_size)
        segments = make_segments(start, count, position, height, SLOTS + rows // height)
        places = make_places(segments, rows)
        index = jnp.arange(rows, dtype=jnp.int32)
        slot = jnp.minimum(jnp.sum(index[:, None] >= (start + count)[None], 1), SLOTS - 1)
        live = index < (start + count).max()
        at = jnp.where(live, position[slot] + index - start[slot], 0)
        page = jnp.where(live, tables[slot, at // PAGE], 0)
        around = KernelSurroundings(tables=tables, segments=segments, places=places, how=self.how, reduce=lambda x: x, linear=linear)
        x, y, caches, _ = llama_mosaic.forward(params, self.config, self.cut, Rows(tokens, at, page, at % PAGE), params["embed"][tokens],
                                            caches, around)
        drawn = min(rows, DRAWN)
        return llama_mosaic.head(params, x[:drawn], y[:drawn], self.config, linear), caches

    def compile(self, buckets: list[int], ways: tuple[str, ...]) -> None:
        abstract = partial(jax.tree.map, lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype))
        four = [jax.ShapeDtypeStruct((SLOTS,), jnp.int32)] * 3
        linear = {"exact": llama_mosaic.row_invariant, "mixed": xla_product}
        alone = self.launches == "alone" or self.launches == "auto" and one_by_one(self.config.num_layers, self.weight_bytes)
        options = ONE_BY_ONE if alone else {}
        jobs = {(rows, way): (jax.jit(partial(self._step, rows, linear[way]), donate_argnums=1, compiler_options=options), (
            abstract(self.params), abstract(self.caches), abstract(self.table), jax.ShapeDtypeStruct((rows,), jnp.int32), *four))
            for rows in buckets for way in ways}
        for key, made in compile_all(jobs).items():
            if isinstance(made, Exception):
                raise made
            self.programs[key] = made

    def run(self, way: str, sequences: int, rows: int, context: int, tokens: np.ndarray | None = None, first: int = 0) -> jax.Array:
        """Logits of a step; the caches are kept. `first`: rows of another sequence before these."""
        bucket = self.bucket(first + sequences * rows)
        count = np.zeros(SLOTS, np.int32)
        count[:sequences] = rows
        if first:
            count[1], count[0], sequences = rows, first, 2
        start = np.cumsum(count) - count
        if tokens is None:
            tokens = np.arange(bucket)
        padded = np.zeros(bucket, np.int32)
        padded[:len(tokens)] = tokens[:bucket]
        logits, self.caches = self.programs[bucket, way](
            self.params, self.caches, self.table, padded, start.astype(np.int32), count, np.full(SLOTS, context, np.int32))
        return logits

    def seconds(self, way: str, sequences: int, rows: int, context: int, calls: int = 10) -> tuple[float, float]:
        """Of a step among others; and of a lone one until the call returns, which is the host's part."""
        jax.block_until_ready(self.run(way, sequences, rows, context))
        start = time.perf_counter()
        out = self.run(way, sequences, rows, context)
        sent = time.perf_counter() - start
        jax.block_until_ready(out)
        start = time.perf_counter()
        for _ in range(calls):
            out = self.run(way, sequences, rows, context)
        jax.block_until_ready(out)
        return (time.perf_counter() - start) / calls, sent

    def profile(self, way: str, sequences: int, rows: int, context: int, calls: int = 5) -> dict[str, Any]:
        """Kernels as the device saw them: by name, launches a step and microseconds each; what lies between first and last. And the
        driver's calls of a step by name (graphs are launched whole, kernels one by one)."""
        jax.block_until_ready(self.run(way, sequences, rows, context))
        with tempfile.TemporaryDirectory() as folder:
            with jax.profiler.trace(folder):
                for _ in range(calls):
                    out = self.run(way, sequences, rows, context)
                jax.block_until_ready(out)
            (path,) = Path(folder).rglob("*.xplane.pb")
            data = jax.profiler.ProfileData.from_file(str(path))
        seen = [(event.start_ns, event.start_ns + event.duration_ns, event.name) for plane in data.planes if "GPU" in plane.name
                for line in plane.lines if "Stream" in line.name for event in line.events]
        asked = Counter(event.name for plane in data.planes if "GPU" not in plane.name for line in plane.lines
                        for event in line.events if DRIVER_CALL.match(event.name))
        by_name: dict[str, list[float]] = defaultdict(list)
        busy = end = 0.0
        for first, last, name in sorted(seen):
            by_name[name].append(last - first)
            busy, end = busy + max(0.0, last - max(first, end)), max(end, last)
        span = (end - min(first for first, *_ in seen)) if seen else 0.0
        ranked = sorted(by_name.items(), key=lambda each: -sum(each[1]))
        return {"kernels_per_step": len(seen) / calls, "span_us": span / calls / 1e3, "busy_us": busy / calls / 1e3,
                "driver_calls": {name: count / calls for name, count in asked.most_common(8)}, "by_time": [
            {"name": name[:60], "per_step": len(times) / calls, "us": float(np.median(times)) / 1e3} for name, times in ranked[:30]]}

    def prompt_bits(self, length: int, chunks: tuple[int, ...]) -> list[dict[str, Any]]:
        """All last-layer keys of a prompt of `length` tokens that is read in chunks of so many rows, and the logits of a token
        behind it."""
        tokens = np.random.default_rng(2).integers(1, self.config.vocab_size, length)
        table, want, out = np.asarray(self.table[0]), None, []
        for rows in chunks:
            for start in range(0, length, rows):
                part = tokens[start:start + rows]
                self.run("exact", 1, len(part), start, part)
            last = np.asarray(self.run("exact", 1, 1, length)[0])
            at = np.arange(length)
            keys = np.asarray(self.caches[-1][:, 0][table[at // PAGE], :, at % PAGE]).view(np.uint16).reshape(length, -1)
            got = (last.view(np.uint32), keys)
            want = want or got
            out.append({"prompt": length, "rows": rows, "compared": length, "finite": bool(np.isfinite(last).all()),
                        "differ": int((want[1] != got[1]).any(1).sum()) + int((want[0] != got[0]).any())})
        return out

    def bits(self, counts: tuple[int, ...], context: int = 100) -> list[dict[str, Any]]:
        """Logit bits and cache bits of the same tokens behind the same context, in steps of every row count."""
        rng = np.random.default_rng(1)
        tokens = rng.integers(1, self.config.vocab_size, max(counts))
        want: dict[bool, Any] = {}
        out = []
        for rows in sorted(counts, reverse=True):
            for first in (0, self.BEFORE):
                if (self.bucket(rows + first), "exact") not in self.programs:
                    continue
                given = np.concatenate([rng.integers(1, self.config.vocab_size, first), tokens[:rows]])
                logits = self.run("exact", 1, rows, context, given, first)
                kept = min(rows, DRAWN - first)
                table = np.asarray(self.table[1 if first else 0])
                at = context + np.arange(kept)
                keys = np.asarray(self.caches[-1][table[at // PAGE], :, :, at % PAGE])
                got = (np.asarray(logits[first:first + kept]).view(np.uint32), keys.view(np.uint16).reshape(kept, -1))
                # Behind other rows it stands on other pages, after other keys: each kind is compared with its like.
                base = want.setdefault(first > 0, got)
                differ = int(((base[0][:kept] != got[0]).any(1) | (base[1][:kept] != got[1]).any(1)).sum())
                out.append({"rows": rows, "rows_before": first, "compared": kept, "differ": differ})
        return out
