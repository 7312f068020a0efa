"""Gumbel noise as a pure function of (seed, choice index, output index, global token id).

Nothing is consumed from a stream: whoever asks for the noise of a token gets the same value, at any batch, slot,
step, draft depth or vocabulary shard. The generator is Threefry-2x32 with 20 rounds (Salmon et al. 2011).
"""

import jax
import jax.numpy as jnp
import numpy as np

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = np.uint32(0x1BD11BDA)


def threefry2x32(key: tuple[jax.Array, jax.Array], counter: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
    """Two uint32 words from a two-word key and a two-word counter, element by element (broadcasting)."""
    keys = (key[0], key[1], key[0] ^ key[1] ^ _PARITY)
    a, b = counter[0] + keys[0], counter[1] + keys[1]
    for group in range(5):
        for rotation in _ROTATIONS[group % 2]:
            a = a + b
            b = (b << np.uint32(rotation)) | (b >> np.uint32(32 - rotation))
            b = a ^ b
        a = a + keys[(group + 1) % 3]
        b = b + keys[(group + 2) % 3] + np.uint32(group + 1)
    return a, b


def gumbel(seed: tuple[jax.Array, jax.Array], choice: jax.Array, output_index: jax.Array, vocab_size: int) -> jax.Array:
    """f32 [R, V] of standard Gumbel noise; seed words uint32 [R], choice and output_index [R], V even.

    The words of tokens 2j and 2j + 1 come from one Threefry block. With u uniform, -log(-log1p(-u)) keeps full
    relative precision where the winners are: at small u, in steps of 2^-32.
    """
    row_key = threefry2x32(seed, (choice.astype(jnp.uint32), output_index.astype(jnp.uint32)))
    pair = jnp.arange(vocab_size // 2, dtype=jnp.uint32)[None]
    even, odd = threefry2x32((row_key[0][:, None], row_key[1][:, None]), (pair, jnp.zeros_like(pair)))
    return _gumbel(jnp.stack([even, odd], axis=-1).reshape(-1, vocab_size))


def gumbel_at(seed: tuple[jax.Array, jax.Array], choice: jax.Array, output_index: jax.Array, ids: jax.Array) -> jax.Array:
    """The same noise for some token ids only: ids [R, C] or [C], to f32 [R, C]."""
    row_key = threefry2x32(seed, (choice.astype(jnp.uint32), output_index.astype(jnp.uint32)))
    ids = jnp.broadcast_to(ids, (choice.shape[0], ids.shape[-1])).astype(jnp.uint32)
    even, odd = threefry2x32((row_key[0][:, None], row_key[1][:, None]), (ids >> 1, jnp.zeros_like(ids)))
    return _gumbel(jnp.where(ids & 1, odd, even))


def _gumbel(bits: jax.Array) -> jax.Array:
    uniform = jnp.minimum((bits.astype(jnp.float32) + 0.5) * np.float32(2.0**-32), np.float32(1 - 2.0**-24))
    return -jnp.log(-jnp.log1p(-uniform))
