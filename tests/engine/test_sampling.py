"""The pipeline by which the target draws a token, against NumPy and against itself in other company."""

from functools import partial

import jax
import numpy as np
import pytest

from radiance_jax.engine.noise import gumbel
from radiance_jax.engine.sampling import top_by_rounds
from sampling_rows import (ADJUST, DEPTH, KEEP, PIPELINE, RAW_LOGPROBS, REAL, ROWS, SAMPLE, VOCAB, history, make_draw,
                           make_logits, no_ancestors)

SLOT = np.arange(ROWS, dtype=np.int32)
FIRST = np.zeros(ROWS, np.int32)
NOISE = jax.jit(partial(gumbel, vocab_size=VOCAB))


def adjusted(x, row, counts, seen, bias, output_index):
    """The float64 form of one row's penalties, bias and minimum length; counts include the ancestors."""
    x = x.astype(np.float64)
    x = np.where((counts > 0) | seen, np.where(x > 0, x / row["repetition"], x * row["repetition"]), x)
    x = x - row["frequency"] * counts - row["presence"] * (counts > 0) + bias
    if output_index < row["min_tokens"]:
        x[list(row["stops"])] = -np.inf
    return x


def kept(x, row):
    """The tokens that top-k, top-p and min-p leave of one row, by sorting; how near top-p's sum came to its goal."""
    keep, margin = np.isfinite(x), np.inf
    if 0 < row["top_k"] < VOCAB:
        keep &= x >= np.sort(x)[-row["top_k"]]
    p = np.where(keep, np.exp(x.astype(np.float64) - x.max()), 0)
    p /= p.sum()
    if row["top_p"] < 1:
        order = np.sort(p)[::-1]
        total = np.cumsum(order)
        margin = np.abs(total - row["top_p"]).min()
        keep &= p >= order[np.argmax(total >= row["top_p"])]
    return keep & (p >= row["min_p"] * p.max()), margin


def random_penalties(rng):
    return dict(presence=rng.uniform(-2, 2), frequency=rng.uniform(-2, 2), repetition=rng.uniform(0.5, 2), adjusts=True,
                min_tokens=int(rng.integers(0, 4)), stops=tuple(rng.choice(REAL, 3, replace=False).tolist()))


def random_filters(rng):
    return dict(top_k=int(rng.choice([0, 1, 2, 5, 20, 60, 64, 1000])), top_p=rng.choice([1.0, 0.05, 0.5, 0.9, 0.99]),
                min_p=rng.choice([0.0, 0.02, 0.3, 1.0]))


@pytest.mark.parametrize("seed", range(6))
def test_penalties_bias_and_minimum_length_equal_numpy(seed):
    rng = np.random.default_rng(seed)
    rows, logits = [random_penalties(rng) for _ in range(ROWS)], make_logits(rng)
    counts, seen, bias = history(rng)
    slot, index = rng.permutation(ROWS).astype(np.int32), rng.integers(0, 5, ROWS).astype(np.int32)
    ancestors = rng.integers(-1, REAL, (ROWS, DEPTH)).astype(np.int32)
    ours = np.asarray(ADJUST(logits, make_draw(rows), counts, seen, bias, slot, index, ancestors))
    for r, row in enumerate(rows):
        total = counts[slot[r]] + sum(np.eye(VOCAB, dtype=np.int32)[a] for a in ancestors[r] if a >= 0)
        expected = adjusted(logits[r], row, total, seen[slot[r]], bias[slot[r]], index[r])
        np.testing.assert_allclose(ours[r], expected, rtol=1e-5, atol=1e-5)


def test_ancestors_count_as_if_they_were_committed():
    rng = np.random.default_rng(0)
    draw, logits = make_draw([random_penalties(rng) for _ in range(ROWS)]), make_logits(rng)
    counts, seen, bias = history(rng)
    ancestors = rng.integers(0, REAL, (ROWS, DEPTH)).astype(np.int32)
    ancestors[::2, 1] = ancestors[::2, 0]  # the same token twice counts twice
    ancestors[1, 2:] = ancestors[2, 1:] = ancestors[3] = -1
    committed = counts.copy()
    for r, row in enumerate(ancestors):
        np.add.at(committed[r], row[row >= 0], 1)
    ahead = ADJUST(logits, draw, counts, seen, bias, SLOT, FIRST, ancestors)
    after = ADJUST(logits, draw, committed, seen, bias, SLOT, FIRST, no_ancestors())
    np.testing.assert_array_equal(np.asarray(ahead), np.asarray(after))


def test_neutral_parameters_change_no_bit():
    rng = np.random.default_rng(1)
    logits, (counts, seen, _) = make_logits(rng), history(rng)
    stops = [dict(stops=(1, 2, 3), min_tokens=2)] * ROWS
    after = FIRST + 2
    draw = make_draw(stops)
    ours = ADJUST(logits, draw, counts, seen, np.zeros((ROWS, VOCAB), np.float32), SLOT, after, no_ancestors() + 3)
    assert np.asarray(ours).tobytes() == logits.tobytes()
    unlimited = make_draw([dict(top_k=k) for k in (0, VOCAB, 1000, 0)] * 2)
    assert np.asarray(KEEP(logits, unlimited)).tobytes() == logits.tobytes()


@pytest.mark.parametrize("seed", range(12))
def test_filters_keep_the_tokens_that_sorting_keeps(seed):
    rng = np.random.default_rng(seed)
    rows, logits = [random_filters(rng) for _ in range(ROWS)], make_logits(rng)
    ours, checked = np.asarray(KEEP(logits, make_draw(rows))), 0
    for x, row, mine in zip(logits, rows, ours, strict=True):
        keep, margin = kept(x, row)
        if margin > 1e-5:  # nearer than that, f32 and f64 sums may fall on different sides of top-p
            np.testing.assert_array_equal(mine, np.where(keep, x, -np.inf))
            checked += 1
    assert checked >= ROWS - 2


def test_ties_at_an_edge_are_kept_together():
    logits = np.full((ROWS, VOCAB), -np.inf, np.float32)
    logits[:, [40, 3, 17, 9]] = (2.0, 1.0, 1.0, -1.0)
    rows = [dict(top_k=2), dict(top_p=0.6), dict(min_p=0.3), dict(top_k=2, top_p=0.6), dict(top_k=1), dict(top_p=0.1),
            dict(min_p=0.9), dict(top_k=4)]
    sizes = np.isfinite(np.asarray(KEEP(logits, make_draw(rows)))).sum(1)
    assert sizes.tolist() == [3, 3, 3, 3, 1, 1, 1, 4]


def test_tokens_one_ulp_apart_are_told_apart():
    for value in (1.0, -1.0, 30.0, -1e-20, 1e30):
        logits = np.full((ROWS, VOCAB), -np.inf, np.float32)
        logits[:, 7], logits[:, 3] = value, np.nextafter(np.float32(value), np.float32(-np.inf))
        kept_ids = np.isfinite(np.asarray(KEEP(logits, make_draw([dict(top_k=1)] * ROWS)))).nonzero()[1]
        assert kept_ids.tolist() == [7] * ROWS


def test_the_likeliest_token_always_stays():
    rng = np.random.default_rng(2)
    logits = make_logits(rng, spread=40.0)
    rows = [dict(top_k=1), dict(top_p=1e-6), dict(min_p=1.0), dict(top_k=1, top_p=1e-6, min_p=1.0)] * 2
    ours = np.asarray(KEEP(logits, make_draw(rows)))
    assert (np.isfinite(ours).sum(1) == 1).all()
    assert (ours.argmax(1) == logits.argmax(1)).all()


@pytest.mark.parametrize("seed", range(8))
def test_a_draw_is_the_argmax_of_what_is_kept_plus_noise(seed):
    rng = np.random.default_rng(seed)
    rows = [random_filters(rng) | dict(temperature=rng.choice([0.0, 0.3, 1.0, 1.7]), choice=int(rng.integers(0, 4)),
                                       seed=tuple(rng.integers(0, 2**32, 2))) for _ in range(ROWS)]
    logits, index = make_logits(rng), rng.integers(0, 100, ROWS).astype(np.int32)
    draw = make_draw(rows)
    noise = np.asarray(NOISE((draw.seed[:, 0], draw.seed[:, 1]), draw.choice, index))
    ours, checked = np.asarray(SAMPLE(logits, draw, index)), 0
    for r, row in enumerate(rows):
        scaled = logits[r] / np.float32(row["temperature"] or 1)
        keep, margin = kept(scaled, row)
        score = np.where(keep, scaled + noise[r], -np.inf) if row["temperature"] else logits[r]
        if margin > 1e-5:
            assert ours[r] == score.argmax()
            checked += 1
    assert checked >= ROWS - 2


def test_greedy_ties_go_to_the_lowest_id():
    logits = np.zeros((ROWS, VOCAB), np.float32)
    logits[:, [50, 20, 30]] = 4.0
    for hot_mates in (False, True):
        rows = [dict(temperature=0.0)] * 4 + [dict(temperature=1.0 if hot_mates else 0.0)] * 4
        assert np.asarray(SAMPLE(logits, make_draw(rows), FIRST))[:4].tolist() == [20] * 4


KINDS = dict(
    greedy=dict(temperature=0.0), plain=dict(), cool=dict(temperature=0.4), top_k=dict(top_k=5), top_p=dict(top_p=0.8),
    min_p=dict(min_p=0.1), penalties=dict(adjusts=True, presence=1.1, frequency=0.3, repetition=1.3),
    everything=dict(temperature=0.8, top_k=20, top_p=0.9, min_p=0.01, adjusts=True, repetition=0.8, min_tokens=3,
                    stops=(1, 2)))


@pytest.mark.parametrize("kind", KINDS)
def test_a_rows_draw_is_unchanged_by_its_mates(kind):
    """The probed row alone among neutral mates, and in every place among mates of every kind."""
    rng = np.random.default_rng(3)
    own_history = [x[0] for x in history(rng)]
    if not KINDS[kind].get("adjusts"):  # who has a bias says so
        own_history[2] = np.zeros(VOCAB, np.float32)
    for trial in range(6):
        own_logits, drawn = make_logits(rng, 1)[0], set()
        own = KINDS[kind] | dict(seed=(trial, 7))
        for place in range(ROWS):
            mates = [KINDS[str(name)] | dict(seed=(place, trial)) for name in rng.choice(list(KINDS), ROWS)]
            rows = mates if place else [dict(temperature=0.0)] * ROWS
            rows[place] = own
            logits, past = make_logits(rng), history(rng)
            logits[place] = own_logits
            for array, mine in zip(past, own_history, strict=True):
                array[place] = mine
            drawn.add(int(PIPELINE(logits, make_draw(rows), *past, SLOT, FIRST, no_ancestors())[place]))
        assert len(drawn) == 1


def test_raw_logprobs_equal_the_float64_log_softmax():
    rng = np.random.default_rng(4)
    for spread in (0.1, 3.0, 50.0):
        logits, label = make_logits(rng, spread=spread), rng.integers(0, REAL, ROWS).astype(np.int32)
        normaliser, logprob = map(np.asarray, RAW_LOGPROBS(logits, label))
        wide = logits.astype(np.float64)
        expected = wide.max(1) + np.log(np.exp(wide - wide.max(1, keepdims=True)).sum(1))
        np.testing.assert_allclose(normaliser, expected, rtol=1e-6, atol=1e-5)
        np.testing.assert_allclose(logprob, wide[np.arange(ROWS), label] - expected, rtol=1e-6, atol=1e-5)


def test_padded_vocabulary_is_never_drawn():
    rng = np.random.default_rng(5)
    counts, seen, _ = history(rng)
    bias = np.full((ROWS, VOCAB), 100.0, np.float32)
    for trial in range(200):
        rows = [dict(temperature=100.0, adjusts=True, presence=-2.0, repetition=0.8, min_tokens=3, stops=(1, 2),
                     seed=(trial, r)) for r in range(ROWS)]
        drawn = PIPELINE(make_logits(rng, spread=0.1), make_draw(rows), counts, seen, bias, SLOT, FIRST, no_ancestors())
        assert (np.asarray(drawn) < REAL).all()


def test_stop_tokens_are_not_drawn_before_the_minimum_length():
    logits = make_logits(np.random.default_rng(6))
    logits[:, [4, 5]] = (50.0, 60.0)
    draw = make_draw([dict(temperature=0.0, adjusts=True, min_tokens=4, stops=(4, 5))] * ROWS)
    none = np.zeros((ROWS, VOCAB), np.int32)
    drawn = PIPELINE(logits, draw, none, none > 0, none.astype(np.float32), SLOT, SLOT, no_ancestors())
    assert (np.asarray(drawn)[:4] == logits[:4, :REAL].argsort(1)[:, -3]).all()
    assert (np.asarray(drawn)[4:] == 5).all()


def test_the_likeliest_by_rounds_are_those_of_a_sort():
    rng = np.random.default_rng(7)
    logits = make_logits(rng)
    logits[3] = np.round(logits[3])  # many ties
    logits[4, :REAL] = 1.0
    for mine, other in zip(jax.jit(partial(top_by_rounds, count=20))(logits), jax.lax.top_k(logits, 20), strict=True):
        np.testing.assert_array_equal(np.asarray(mine), np.asarray(other))
