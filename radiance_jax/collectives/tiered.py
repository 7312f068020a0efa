"""The lossy wire of three and four ranks: int8 in three tiers, on both hops of the two-shot form.

32 consecutive elements travel in 38 bytes: 32 codes, a record of 4 bytes and a scale f16(amax / 127); 9.5 bits an element.
m1 >= m2 being the two largest magnitudes and m the least one that matters (at least 1/96 of the root mean square of all but
the largest):

- plain, m1 <= 253 m: amax = m1. Every element that matters gets a code of at least a half.
- patched, m2 <= 253 m: amax = m2; the largest element travels whole, its place and its 16 bits in the record.
- rotated, otherwise: the codes are those of the orthonormal Walsh-Hadamard transform, and amax is its largest magnitude.

Each rank owns a share: it folds its own part, unrounded, with what the others sent, in f32 in rank order, rounds once to the
payload's dtype, sends the sum encoded again, and keeps what the others will decode: all ranks end with the same bits.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from radiance_jax.collectives.exact import narrowed, shares
from radiance_jax.collectives.rounding import butterflies, nearest_code, quotient_bits, value_of
from radiance_jax.wire import GROUPS, TIERED

GROUP = GROUPS[TIERED]
PLAIN, PATCHED, ROTATED = 0, 1, 2
SPAN = np.float32(253)  # 2 * 127 - 1: magnitudes this far apart still have codes that are not zero
FLOOR = np.float32(31 * 96 * 96)  # |v| >= rms / 96, squared and cleared of fractions
ORTHONORMAL = np.float32(32**-0.5)
NONE = np.uint32(0x7E00)  # bits of f16 NaN


def _total(x: jax.Array) -> jax.Array:
    """Sum of the last axis (a power of two) by halves, an order of its own."""
    while x.shape[-1] > 1:
        half = x.shape[-1] // 2
        x = x[..., :half] + x[..., half:]
    return x


def encode(x: jax.Array) -> jax.Array:
    """bf16 [G, 32] to uint8 [G, 38]: codes, record (low byte first: 16 value bits, 5 of the place, tier from bit 30), scale."""
    wide = x.astype(jnp.float32)
    size = jnp.abs(wide)
    place = jnp.argmax(size, axis=-1, keepdims=True).astype(jnp.uint32)
    peak = jnp.arange(GROUP, dtype=jnp.uint32) == place
    rest = jnp.where(peak, 0, size)
    first, second = jnp.max(size, axis=-1, keepdims=True), jnp.max(rest, axis=-1, keepdims=True)
    matters = (size > 0) & (size * size * FLOOR >= _total(rest * rest))
    reach = SPAN * jnp.min(jnp.where(matters, size, jnp.inf), axis=-1, keepdims=True)
    tier = jnp.where(first <= reach, PLAIN, jnp.where(second <= reach, PATCHED, ROTATED)).astype(jnp.uint32)
    turned = jnp.where(tier == ROTATED, butterflies(wide) * ORTHONORMAL, wide)
    amax = jnp.where(tier == PATCHED, second, jnp.max(jnp.abs(turned), axis=-1, keepdims=True))
    scale = quotient_bits(amax, 127, jnp.float16)
    sound = jnp.isfinite(_total(wide))
    tier, scale = jnp.where(sound, tier, PLAIN), jnp.where(sound, scale, NONE)  # an infinity or NaN stays visible
    silent = scale == 0
    step = jnp.where(silent, 1, value_of(2 * scale, jnp.float16))
    codes = jnp.where(silent, 0, jnp.clip(nearest_code(turned, step), -127, 127)).astype(jnp.int32).astype(jnp.uint32)
    value = jnp.sum(jnp.where(peak, lax.bitcast_convert_type(x, jnp.uint16).astype(jnp.uint32), 0), axis=-1, keepdims=True)
    record = jnp.where(tier == PATCHED, place << 16 | value, 0) | tier << 30
    record = [record >> shift for shift in (0, 8, 16, 24)]
    return (jnp.concatenate([codes, *record, scale, scale >> 8], axis=-1) & 255).astype(jnp.uint8)


def decode(sent: jax.Array) -> jax.Array:
    """uint8 [..., 38] to f32 [..., 32]."""
    wide = sent[..., GROUP:].astype(jnp.uint32)
    record = wide[..., 0:1] | wide[..., 1:2] << 8 | wide[..., 2:3] << 16 | wide[..., 3:4] << 24
    scale = lax.bitcast_convert_type((wide[..., 4:5] | wide[..., 5:6] << 8).astype(jnp.uint16), jnp.float16)
    codes = lax.bitcast_convert_type(sent[..., :GROUP], jnp.int8).astype(jnp.float32)
    plain = codes * scale.astype(jnp.float32)
    tier = record >> 30
    peak = jnp.arange(GROUP, dtype=jnp.uint32) == (record >> 16 & 31)
    whole = lax.bitcast_convert_type(record << 16, jnp.float32)
    return jnp.where(tier == ROTATED, butterflies(plain) * ORTHONORMAL,
                     jnp.where((tier == PATCHED) & peak, whole, plain))


def all_reduce(x: jax.Array, axis: str) -> jax.Array:
    """bf16, of a multiple of 32 elements."""
    ranks, me = lax.axis_size(axis), lax.axis_index(axis)
    flat = shares(x, ranks, GROUP).reshape(ranks, -1, GROUP)
    sent = encode(flat.reshape(-1, GROUP)).reshape(*flat.shape[:2], -1)
    came = decode(lax.all_to_all(sent, axis, split_axis=0, concat_axis=0, tiled=True))
    own = lax.dynamic_index_in_dim(flat, me, keepdims=False).astype(jnp.float32)
    parts = [jnp.where(me == rank, own, came[rank]) for rank in range(ranks)]
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    mine = encode(narrowed(total, x.dtype))
    whole = narrowed(decode(lax.all_gather(mine, axis, axis=0, tiled=True)), x.dtype)
    return whole.reshape(-1)[: x.size].reshape(x.shape)
