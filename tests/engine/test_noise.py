"""Noise that depends on (seed, choice, output index, token) and on nothing else, and that is Gumbel noise."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.random import threefry_2x32
from scipy import stats

from radiance_jax.engine.noise import gumbel, threefry2x32

# Random123's published vectors for threefry2x32 with 20 rounds: key, counter, result.
KNOWN = (
    ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
    ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
    ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
)


@partial(jax.jit, static_argnums=3)
def noise(seed, choice, index, vocab_size):
    return gumbel((seed[:, 0], seed[:, 1]), choice, index, vocab_size)


def rows(rng, count):
    seed = rng.integers(0, 2**32, (count, 2), dtype=np.uint32)
    return seed, rng.integers(0, 5, count).astype(np.int32), rng.integers(0, 1000, count).astype(np.int32)


@pytest.mark.parametrize(("key", "counter", "result"), KNOWN)
def test_threefry_gives_the_published_words(key, counter, result):
    words = threefry2x32(tuple(jnp.uint32(k) for k in key), tuple(jnp.uint32(c) for c in counter))
    assert tuple(int(w) for w in words) == result


def test_threefry_agrees_with_jax_on_random_keys_and_counters():
    rng = np.random.default_rng(0)
    for _ in range(8):
        key, counter = rng.integers(0, 2**32, (2, 2), dtype=np.uint32)
        ours = threefry2x32((key[0], key[1]), (jnp.uint32(counter[0]), jnp.uint32(counter[1])))
        assert [int(w) for w in ours] == np.asarray(threefry_2x32(jnp.asarray(key), jnp.asarray(counter))).tolist()


def test_noise_of_a_token_is_a_word_of_two_nested_threefry_blocks():
    """Pins the definition, with jax's own generator: a seed promises the same answer tomorrow."""
    seed, choice, index = rows(np.random.default_rng(4), 4)
    ours = np.asarray(noise(seed, choice, index, 64), np.float64)
    for r in range(4):
        key = threefry_2x32(seed[r], np.array([choice[r], index[r]], np.uint32))
        for token in (0, 1, 2, 37, 63):
            word = int(threefry_2x32(key, np.array([token // 2, 0], np.uint32))[token % 2])
            assert ours[r, token] == pytest.approx(-np.log(-np.log1p(-(word + 0.5) / 2**32)), rel=1e-4, abs=1e-5)


def test_a_tokens_noise_does_not_depend_on_the_vocabulary_size():
    arguments = rows(np.random.default_rng(1), 8)
    largest = np.asarray(noise(*arguments, 640))
    for size in (64, 128, 320, 448):
        np.testing.assert_array_equal(np.asarray(noise(*arguments, size)), largest[:, :size])


def test_a_rows_noise_does_not_depend_on_its_place_or_its_mates():
    rng = np.random.default_rng(2)
    mine = rows(rng, 1)
    seen = set()
    for place in range(8):
        mates = rows(rng, 8)
        for mate, own in zip(mates, mine, strict=True):
            mate[place] = own[0]
        seen.add(np.asarray(noise(*mates, 128))[place].tobytes())
    assert len(seen) == 1


def test_every_part_of_the_key_and_every_token_draws_anew():
    seed = np.array([[5, 6], [7, 6], [5, 7], [6, 5], [5, 6], [5, 6], [5, 6]], np.uint32)
    choice = np.array([0, 0, 0, 0, 1, 0, 1], np.int32)
    index = np.array([0, 0, 0, 0, 0, 1, 1], np.int32)
    values = np.asarray(noise(seed, choice, index, 128))
    assert np.isfinite(values).all()
    assert len(np.unique(values)) > values.size - 4  # f32 values may meet once in a while


def test_noise_has_the_gumbel_law():
    values = np.asarray(noise(*rows(np.random.default_rng(3), 256), 128), np.float64).reshape(-1)
    assert stats.kstest(values, stats.gumbel_r.cdf).pvalue > 1e-3


def test_noise_of_neighbours_in_token_index_and_choice_is_uncorrelated():
    count = 4096
    seed = np.tile(np.array([[11, 12]], np.uint32), (count, 1))
    at = np.arange(count, dtype=np.int32)
    by_index, by_choice = noise(seed, 0 * at, at, 4), noise(seed, at, 0 * at, 4)
    for values in (np.asarray(by_index), np.asarray(by_choice)):
        for a, b in ((values[:, 0], values[:, 1]), (values[:, 1], values[:, 2]), (values[1:, 0], values[:-1, 0])):
            assert abs(np.corrcoef(a, b)[0, 1]) < 4 / np.sqrt(count)


@pytest.mark.parametrize("varied", ("seed low", "seed high", "choice", "output index"))
def test_argmax_of_perturbed_logits_has_the_softmax_law(varied):
    count, logits = 20_000, np.array([2.0, 1.0, 0.0, 0.5, -1.0, -2.0], np.float32)
    at = np.arange(count)
    seed = np.tile(np.array([[3, 4]], np.uint32), (count, 1))
    if varied.startswith("seed"):
        seed[:, ("seed low", "seed high").index(varied)] = at
    choice, index = (at if varied == name else 0 * at for name in ("choice", "output index"))
    values = np.asarray(noise(seed, choice.astype(np.int32), index.astype(np.int32), 6))
    drawn = np.bincount((logits + values).argmax(1), minlength=6)
    law = np.exp(logits.astype(np.float64))
    assert stats.chisquare(drawn, count * law / law.sum()).pvalue > 1e-3
