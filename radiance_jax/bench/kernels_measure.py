"""The parts of `bench kernels`: each returns a list of outcomes."""

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from radiance_jax.bench.config import numbers, words
from radiance_jax.bench.kernels import REPEATS, SHAPES, KernelsConfig, compile_all, repeated, seconds
from radiance_jax.bench.kernels_attention import attention  # noqa: F401  a part like the others
from radiance_jax.bench.record import log
from radiance_jax.pallas import norm, rope
from radiance_jax.pallas import product as products
from radiance_jax.pallas.paged_attention import make_segments
from radiance_jax.pallas.product import Tile
from radiance_jax.pallas.tiles import MOST_STAGES, SHARED_MEMORY, choose
from radiance_jax.pallas.verify_attention import make_places, segment_height

BF16, F32 = jnp.bfloat16, jnp.float32
MOST = 512


def _weights(k: int, n: int, gated: bool, many: bool) -> list[jax.Array]:
    """One weight, or so many that they do not fit the L2 cache together."""
    size = n * (2 if gated else 1)
    count = max(4, min(24, math.ceil(4e8 / (2 * k * size)))) if many else 1
    make = jax.jit(lambda key: (jax.random.normal(key, (size, k), BF16) * k**-0.5).astype(BF16))
    return [make(jax.random.key(i)) for i in range(count)]


def _bits(x: jax.Array) -> np.ndarray:
    return np.asarray(x).view(np.uint16 if x.dtype == BF16 else np.uint32)


def _floor(rows: int, k: int, n: int, gated: bool, out_bytes: int, bandwidth: float) -> float:
    return (2 * k * n * (2 if gated else 1) + 2 * rows * k + out_bytes * rows * n) / bandwidth


def product(config: KernelsConfig, bandwidth: float) -> list[dict[str, Any]]:
    """Right, row-invariant, and the time in the chosen tile beside XLA's."""
    out = []
    for shape in words("shapes", config.shapes, tuple(SHAPES)):
        for name, (k, n, gated) in SHAPES[shape].items():
            dtype = F32 if name == "head" else BF16
            size = jnp.dtype(dtype).itemsize
            x = jax.random.normal(jax.random.key(99), (MOST, k), BF16)
            counts = [r for r in numbers("rows", config.rows) if name != "head" or r <= 128]
            w = jax.ShapeDtypeStruct((n * (2 if gated else 1), k), BF16)
            many = _weights(k, n, gated, True)
            jobs: dict[Any, Any] = {}
            for rows in counts:
                tile = choose(rows, k, n, gated=gated, out_bytes=size)
                ours = partial(products.product, tile=tile, gated=gated, dtype=dtype)
                theirs = partial(products.oracle, gated=gated, dtype=dtype)
                a = jax.ShapeDtypeStruct((rows, k), BF16)
                jobs[rows, "one"] = (lambda x, w, f=ours: f(x, w)), (a, w)
                for who, f in (("ours", ours), ("xla", theirs)):
                    jobs[rows, who] = repeated(f), (a, *[w] * len(many))
            compiled = compile_all(jobs)
            whole = None
            for rows in reversed(counts):
                made = compiled[rows, "one"]
                if isinstance(made, Exception):
                    out.append({"kernel": name, "shape": shape, "rows": rows, "wrong": f"{type(made).__name__}: {made}"[:300]})
                    continue
                y = made(x[:rows], many[0])
                wide = np.asarray(products.oracle(x[:rows].astype(F32), many[0].astype(F32), gated=gated, dtype=F32))
                error = float(np.abs(np.asarray(y, np.float32) - wide).max() / np.abs(wide).max())
                bits = _bits(y)
                moved = _bits(made(jnp.roll(x[:rows], 3, 0), many[0]))
                whole = bits if whole is None else whole
                differ = int((bits != whole[:rows]).any(1).sum()) + int((np.roll(moved, -3, 0) != bits).any(1).sum())
                each = {"kernel": name, "shape": shape, "rows": rows, "tile": str(choose(rows, k, n, gated=gated, out_bytes=size)),
                        "differ": differ, "relative_error": error, "wrong": not error < 1e-2,
                        "floor_us": 1e6 * _floor(rows, k, n, gated, size, bandwidth)}
                for who in ("ours", "xla"):
                    if not isinstance(compiled[rows, who], Exception):
                        each[f"{who}_us"] = 1e6 * seconds(
                            lambda f=compiled[rows, who], x=x[:rows]: f(x, *many), 1) / len(many) / REPEATS
                out.append(each)
                log(f"{shape} {name} {rows} rows: {each.get('ours_us', 0):.1f} us, XLA {each.get('xla_us', 0):.1f}, floor "
                    f"{each['floor_us']:.1f}; {differ} rows differ, error {error:.1e}")
    return out


def _candidates(rows: int, k: int, n: int, gated: bool, out_bytes: int) -> list[Tile]:
    parts, found = 2 if gated else 1, []
    for columns in (16, 32, 48, 64, 96, 128, 192, 256):
        if n % columns or parts * columns > 256 or not 60 <= n // columns <= (1300 if n > 20000 else 400):
            continue
        for depth in (64, 128):
            if k % depth:
                continue
            for share in (1, 2):
                fitting = [s for s in range(2, MOST_STAGES + 1) if Tile(columns=columns, depth=depth, stages=s).shared_memory(
                    rows, parts, out_bytes) <= SHARED_MEMORY // share]
                if fitting and n // columns > 132 * (share - 1):
                    found.append(Tile(columns=columns, depth=depth, stages=fitting[-1]))
    return list(dict.fromkeys(found))


def tiles(config: KernelsConfig, bandwidth: float) -> list[dict[str, Any]]:
    """Time of products in many tiles; their bits must all be the same."""
    out = []
    for shape in words("shapes", config.shapes, tuple(SHAPES)):
        for name, (k, n, gated) in SHAPES[shape].items():
            dtype = F32 if name == "head" else BF16
            size = jnp.dtype(dtype).itemsize
            many = _weights(k, n, gated, True)
            x = jax.random.normal(jax.random.key(99), (MOST, k), BF16)
            w = jax.ShapeDtypeStruct(many[0].shape, BF16)
            for rows in numbers("tile_rows", config.tile_rows):
                jobs: dict[Any, Any] = {}
                for tile in _candidates(rows, k, n, gated, size):
                    f = partial(products.product, tile=tile, gated=gated, dtype=dtype)
                    a = jax.ShapeDtypeStruct((rows, k), BF16)
                    jobs[tile, "once"], jobs[tile, "often"] = (f, (a, w)), (repeated(f), (a, *[w] * len(many)))
                made = compile_all(jobs)
                best, first = [], None
                for tile in dict.fromkeys(tile for tile, _ in jobs):
                    once, often = made[tile, "once"], made[tile, "often"]
                    if isinstance(once, Exception) or isinstance(often, Exception):
                        log(f"{tile}: {once} {often}"[:150])
                        continue
                    bits = _bits(once(x[:rows], many[0]))
                    first = bits if first is None else first
                    took = seconds(lambda f=often, x=x[:rows]: f(x, *many), 1) / len(many) / REPEATS
                    best.append((1e6 * took, tile, int((bits != first).any(1).sum())))
                best.sort(key=lambda each: each[0])
                floor = 1e6 * _floor(rows, k, n, gated, size, bandwidth)
                log(f"{shape} {name} {rows} rows, floor {floor:.1f}: " + "; ".join(
                    f"{us:.1f} {t.columns}x{t.depth}x{t.stages}" for us, t, _ in best[:5]))
                out.append({"kernel": name, "shape": shape, "k": k, "n": n, "gated": gated, "rows": rows, "floor_us": floor,
                            "differ": sum(d for *_, d in best), "tiles": [[us, str(t)] for us, t, _ in best]})
    return out


def small(config: KernelsConfig, bandwidth: float) -> list[dict[str, Any]]:
    """Norm and rope: right, and how long."""
    out = []
    for width in (576, 4096):
        weight = jax.random.normal(jax.random.key(3), (width,), BF16)
        xs = [jax.random.normal(jax.random.key(i), (MOST, width), BF16) for i in range(20)]
        y = jax.random.normal(jax.random.key(50), (MOST, width), BF16)
        for rows in (8, 64, 512):
            add = lambda y, x: norm.add_norm(x, y, weight, 1e-5)  # noqa: E731
            got, want = jax.jit(add)(y[:rows], xs[0][:rows]), norm.oracle(xs[0][:rows], y[:rows], weight, 1e-5)
            wrong = int((_bits(got[0]) != _bits(want[0])).sum()) + int(
                (jnp.abs(got[1].astype(F32) - want[1].astype(F32)) > 2**-7 * jnp.abs(want[1].astype(F32)) + 1e-6).sum())
            f = jax.jit(repeated(lambda y, x: add(y, x)[1]))
            took = seconds(lambda f=f, y=y[:rows], x=[x[:rows] for x in xs]: f(y, *x), 1) / len(xs) / REPEATS
            out.append({"kernel": "add_norm", "width": width, "rows": rows, "us": 1e6 * took, "wrong": wrong})
            log(f"add_norm {width} {rows} rows: {1e6 * took:.1f} us, {wrong} wrong")
    for heads, groups, size, normed in ((9, 3, 64, False), (32, 8, 128, True)):
        for rows in (8, 64, 512):
            height = segment_height(heads // groups, size)
            segments = make_segments(jnp.zeros(1, jnp.int32), jnp.full(1, rows), jnp.zeros(1, jnp.int32), height, 1 + rows // height)
            places = make_places(segments, rows)
            qkv = jax.random.normal(jax.random.key(1), (rows, (heads + 2 * groups) * size), BF16)
            angle = jnp.arange(rows)[:, None] * 1e4 ** (-jnp.arange(0, size, 2) / size)
            page, offset = 1 + jnp.arange(rows, dtype=jnp.int32) // 64, jnp.arange(rows, dtype=jnp.int32) % 64
            norms = tuple(jax.random.normal(jax.random.key(i), (size,), BF16) for i in (8, 9)) if normed else None
            caches = [jnp.full((10, 2 * groups, 64, size), i, BF16) for i in range(10)]

            def run(qkv, *caches, n=norms, h=heads, p=places, a=angle, g=page, o=offset):
                made = []
                for cache in caches:
                    ref = jax.new_ref(cache)
                    made.append((rope.rope_and_store(qkv, jnp.cos(a), jnp.sin(a), g, o, ref, n, 1e-5, h, p), jax.freeze(ref)))
                return made

            f = jax.jit(run)
            q, cache = f(qkv, *caches)[0]
            want_q, want_cache = rope.oracle(qkv, jnp.cos(angle), jnp.sin(angle), page, offset, caches[0], norms, 1e-5, heads)
            share = heads // groups
            got_q = q[:, :, :height * share].reshape(-1, groups, height, share, size)[places.segment, :, places.index]
            wrong = sum(int((jnp.abs(a.astype(F32) - b.astype(F32)) > 2**-6 * jnp.abs(b.astype(F32)) + 2**-7).sum())
                        for a, b in ((got_q, want_q), (cache, want_cache)))
            took = seconds(lambda f=f, q=qkv, c=caches: f(q, *c), 3) / len(caches)
            out.append({"kernel": "rope_and_store", "heads": heads, "rows": rows, "us_with_a_copy_of_the_cache": 1e6 * took,
                        "wrong": wrong})
            log(f"rope_and_store {heads} heads, {rows} rows: {1e6 * took:.1f} us with a copy of the cache, {wrong} wrong")
    return out
