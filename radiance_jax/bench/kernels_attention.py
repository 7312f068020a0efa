"""Attention in `bench kernels`: every form of the kernel on one and on eight sequences, a row's bits, an oracle, the time.

One program a form and bucket serves all cases: where segments stand is an argument. The tables of eight sequences are rotated
from call to call, so that one sequence's keys do not stay in the L2 cache from call to call.
"""

import faulthandler
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from radiance_jax.bench.config import numbers, words
from radiance_jax.bench.kernels import KernelsConfig, compile_all, seconds
from radiance_jax.bench.record import log
from radiance_jax.errors import UserError
from radiance_jax.pallas.paged_attention import AttentionShape, make_segments, paged_attention
from radiance_jax.pallas.splits import splits_of
from radiance_jax.pallas.verify_attention import SplitShape, make_places, segment_height, verify_attention

BF16, F32 = jnp.bfloat16, jnp.float32
HEADS, GROUPS, SIZE, PAGE, SLOTS = 32, 8, 128, 64, 8  # an 8B model's
SHARE = HEADS // GROUPS
HEIGHT = segment_height(SHARE, SIZE)
CASES = ((1, 1), (1, 8), (8, 1), (8, 8))  # sequences, rows of each
EACH = 16  # rows there are queries for
ROUNDS, CHAIN = 8, 3  # turns of a loop, and times in a turn that every rotation is called
# Seconds without a step forward: a kernel that waits for itself would hold the device for ever. Nothing runs during compilation.
PATIENCE, COMPILATION = 40.0, 240.0


def parse_form(text: str, most: int) -> SplitShape:
    """`"2x256x4x132x4"` (lanes, split, stages, walkers; splits of that length before they are twice as long, if they ever are)
    for contexts of at most `most` positions."""
    parts = text.split("x")
    if len(parts) not in (4, 5) or not all(part.isdigit() for part in parts):
        raise UserError(f"forms are LANESxSPLITxSTAGESxWALKERS or ...xFINE, such as 2x256x4x132x4; got {text!r}", param="forms")
    lanes, split, stages, walkers, *fine = map(int, parts)
    if split < 64 or split % 64 or min(stages, walkers) < 1:
        raise UserError(f"a form's split is a multiple of 64, its stages and walkers at least 1; got {text!r}", param="forms")
    begin = fine[0] * split if fine else None
    return SplitShape(lanes=lanes, split=split, fine=begin, most=splits_of(most, split, begin), stages=stages, walkers=walkers)


def _alive(patience: float = PATIENCE) -> None:
    """Called at every step forward: if none comes for so long, all stacks are written and the process ends."""
    faulthandler.dump_traceback_later(patience, exit=True)


def _bucket(sequences: int, each: int) -> int:
    return max(sequences * each, 8)


def _segments(rows: int, count: jax.Array, position: jax.Array):
    segments = make_segments(jnp.cumsum(count) - count, count, position, HEIGHT, SLOTS + rows // HEIGHT)
    return segments, make_places(segments, rows)


def _tiles(flat: jax.Array, rows: int, count: jax.Array, position: jax.Array) -> jax.Array:
    """Queries [rows, GROUPS, SHARE, SIZE] where the kernel looks for them."""
    segments, places = _segments(rows, count, position)
    q = jnp.zeros((places.segments + 1, GROUPS, HEIGHT, SHARE, SIZE), BF16).at[places.segment, :, places.index].set(flat)
    q = q.reshape(places.segments + 1, GROUPS, HEIGHT * SHARE, SIZE)
    return jnp.pad(q, ((0, 0), (0, 0), (0, 64 - HEIGHT * SHARE), (0, 0)))


def _program(rows: int, how: SplitShape) -> Callable:
    """(flat queries, cache, tables, count, position) to the rows of slot by slot, after a call for every rotation of
    the tables, of which the last is none, `ROUNDS` times `CHAIN` times: lists of work are made once a turn."""
    def run(flat, cache, tables, count, position):
        segments, places = _segments(rows, count, position)
        call = jax.jit(lambda q, table: verify_attention(q, cache, table, segments, places, share=SHARE, how=how))
        turned = [jnp.roll(tables, SLOTS - 1 - i, axis=0) for i in range(SLOTS)]

        def once(_, carry):
            q, made = carry[0], []
            for _ in range(CHAIN):
                made = [call(q, table) for table in turned]
                # What is added is zero, but the compiler cannot know.
                q = q + sum(jnp.where(jnp.isfinite(y[0, 0]), 0, 1).astype(q.dtype) for y in made)
            return q, made[-1]

        q = _tiles(flat, rows, count, position)
        return lax.fori_loop(0, ROUNDS, once, (q, jnp.zeros((rows, HEADS * SIZE), BF16)))[1]

    return run


def _oracle(rows: int) -> Callable:
    def run(flat, cache, tables, count, position):
        segments, _ = _segments(rows, count, position)
        wide = cache.reshape(-1, 2, GROUPS, PAGE, SIZE)
        shape = AttentionShape(height=HEIGHT, block_pages=1, loop=False)
        return paged_attention(flat.reshape(rows, HEADS, SIZE).astype(F32), wide.astype(F32), tables, segments, shape)

    return run


def attention(config: KernelsConfig, bandwidth: float) -> list[dict[str, Any]]:
    """Decode and verify rows of one and of eight sequences in every form. `differ`: rows whose bits are not those of the same
    row in another case, or in an earlier form that promises the same (equal lanes, split and fine)."""
    out, contexts = [], numbers("context", config.context)
    forms = {text: parse_form(text, max(contexts)) for text in words("forms", config.forms)}
    buckets = tuple(dict.fromkeys(_bucket(*case) for case in CASES))
    pages = -(-max(contexts) // PAGE)
    of = jax.ShapeDtypeStruct
    few = of((SLOTS,), jnp.int32)
    arguments = {rows: (of((rows, GROUPS, SHARE, SIZE), BF16), of((SLOTS * pages + 1, 2 * GROUPS, PAGE, SIZE), BF16),
                        of((SLOTS, pages), jnp.int32), few, few) for rows in buckets}
    _alive(COMPILATION)
    jobs = {(form, rows): (_program(rows, how), arguments[rows]) for form, how in forms.items() for rows in buckets}
    made = compile_all(jobs | {("oracle", rows): (_oracle(rows), arguments[rows]) for rows in buckets})
    log(f"{len(made)} programs compiled")
    _alive()
    cache = jax.random.normal(jax.random.key(5), arguments[buckets[0]][1].shape, BF16)
    tables = 1 + jax.random.permutation(jax.random.key(6), SLOTS * pages).reshape(SLOTS, pages).astype(jnp.int32)
    every = jax.random.normal(jax.random.key(7), (SLOTS, EACH, GROUPS, SHARE, SIZE), BF16)
    kept: dict[tuple, np.ndarray] = {}
    want: dict[tuple, np.ndarray] = {}
    for form, how in forms.items():
        for context in contexts:
            for sequences, each in CASES:
                rows = _bucket(sequences, each)
                program, live = made[form, rows], sequences * each
                if isinstance(program, Exception):
                    log(f"attention {form}: {program}"[:300])
                    out.append({"kernel": "attention", "form": form, "wrong": True, "error": str(program)[:300]})
                    continue
                count = jnp.where(jnp.arange(SLOTS) < sequences, each, 0).astype(jnp.int32)
                position = jnp.full(SLOTS, context - EACH, jnp.int32)
                flat = jnp.zeros((rows, GROUPS, SHARE, SIZE), BF16)
                flat = flat.at[:live].set(every[:sequences, :each].reshape(live, GROUPS, SHARE, SIZE))
                given = (flat, cache, tables, count, position)
                _alive()
                y = np.asarray(program(*given)[:live].astype(F32))
                _alive()
                case = (context, sequences, each)
                if case not in want:
                    want[case] = np.asarray(made["oracle", rows](*given))[:live].reshape(live, -1)
                error = float(np.abs(y - want[case]).max() / np.abs(want[case]).max())
                bits = y.reshape(sequences, each, -1)
                like = how.lanes, how.split, how.fine, context
                differ = sum(int((kept.setdefault((*like, s, r), bits[s, r]) != bits[s, r]).any())
                             for s in range(sequences) for r in range(each))
                _alive()
                took = seconds(lambda f=program, given=given: f(*given), 2) / (ROUNDS * CHAIN * SLOTS)
                moved = sequences * 2 * GROUPS * SIZE * 2 * (context - EACH + each) + 2 * 2 * live * HEADS * SIZE
                out.append({"kernel": "attention", "form": form, "context": context, "sequences": sequences, "rows_each": each,
                            "us": 1e6 * took, "gb_s": 1e-9 * moved / took, "floor_us": 1e6 * moved / bandwidth,
                            "of_copy_bandwidth": moved / took / bandwidth, "differ": differ, "relative_error": error,
                            "wrong": not (math.isfinite(error) and error < 1e-2)})
                log(f"attention {form}, context {context}, {sequences} x {each} rows: {1e6 * took:.1f} us, "
                    f"{1e-9 * moved / took:.0f} GB/s, {100 * moved / took / bandwidth:.0f} % of copy bandwidth, {differ} differ, "
                    f"error {error:.1e}")
    faulthandler.cancel_dump_traceback_later()
    return out
