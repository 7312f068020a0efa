"""Faults that were found by probing the engine, and must not come back."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from radiance_jax.engine.request import SamplingParams
from radiance_jax.errors import UserError
from radiance_jax.pallas.paged_attention import AttentionShape, make_segments, paged_attention
from sampling_rows import KEEP, ROWS, SAMPLE, make_draw, make_logits

FIRST = np.zeros(ROWS, np.int32)


def test_the_smallest_top_p_that_is_accepted_keeps_the_likeliest_token():
    top_p = SamplingParams(top_p=1e-50).top_p  # "a number above 0"
    logits = make_logits(np.random.default_rng(0))
    drawn = np.asarray(SAMPLE(logits, make_draw([dict(top_p=top_p)] * ROWS), FIRST))
    assert drawn.tolist() == logits.argmax(1).tolist()


def test_the_smallest_temperatures_that_are_accepted_draw_the_likeliest_token():
    temperature = SamplingParams(temperature=2e-38).temperature
    logits = make_logits(np.random.default_rng(0))
    logits[:, [5, 9]] = (20.0, 30.0)
    drawn = np.asarray(SAMPLE(logits, make_draw([dict(temperature=temperature)] * ROWS), FIRST))
    assert drawn.tolist() == [9] * ROWS


def test_zeros_of_either_sign_tie_at_an_edge():
    logits = np.full((ROWS, 64), -5.0, np.float32)
    logits[:, 3], logits[:, 4] = 0.0, -0.0
    assert np.isfinite(np.asarray(KEEP(logits, make_draw([dict(top_k=1)] * ROWS)))).sum(1).tolist() == [2] * ROWS


@pytest.mark.parametrize(("field", "value"), (
    ("temperature", 10**400), ("top_p", -(10**400)), ("min_p", float("nan")), ("presence_penalty", float("inf")),
    ("logit_bias", ((3, 10**400),)), ("logit_bias", ((3, float("nan")),)), ("seed", 10**400), ("top_k", 10**400)),
    ids=lambda value: value if isinstance(value, str) else "")
def test_numbers_that_no_float_holds_are_refused_by_name(field, value):
    with pytest.raises(UserError) as error:
        SamplingParams(**{field: value})
    assert error.value.param == field


def one_decode_row(pages: int, block_pages: int, loop: bool) -> np.ndarray:
    rng = np.random.default_rng(0)
    cache = jnp.asarray(rng.normal(size=(1 + pages, 2, 1, 4, 8)).astype(np.float32))
    q = jnp.asarray(rng.normal(size=(2, 1, 8)).astype(np.float32))
    segments = make_segments(jnp.array([0]), jnp.array([1]), jnp.array([4 * pages - 1]), 2, 2)
    shape = AttentionShape(height=2, block_pages=block_pages, loop=loop)
    return np.asarray(paged_attention(q, cache, jnp.arange(1, pages + 1, dtype=jnp.int32)[None], segments, shape))[0]


@pytest.mark.parametrize(("pages", "block_pages"), ((5, 2), (5, 3), (3, 8)))
@pytest.mark.parametrize("loop", (True, False))
def test_a_page_table_need_not_be_a_multiple_of_the_block(pages, block_pages, loop):
    whole = one_decode_row(pages, 1, True)
    np.testing.assert_allclose(one_decode_row(pages, block_pages, loop), whole, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("page", (1, 2, 3))
def test_a_rows_place_in_its_segment_changes_no_bit_in_pages_of_any_size(page):
    """Nine query heads of three, as the tiny model has: the row at position 30 is read alone, and in every place of a segment."""
    rng, width = np.random.default_rng(0), 32
    cache = jnp.asarray(rng.normal(size=(1 + width, 2, 3, page, 16)).astype(np.float32))
    queries = rng.normal(size=(width, 9, 16)).astype(np.float32)
    shape, table = AttentionShape(height=4, block_pages=1, loop=True), jnp.arange(1, width + 1, dtype=jnp.int32)[None]
    run = jax.jit(lambda q, segments: paged_attention(q, cache, table, segments, shape))
    found = set()
    for first in range(27, 31):
        for count in range(31 - first, 5):
            q = np.zeros((8, 9, 16), np.float32)
            q[:min(count, width - first)] = queries[first:first + count]
            segments = make_segments(jnp.array([0]), jnp.array([min(count, width - first)]), jnp.array([first]), 4, 3)
            found.add(np.asarray(run(q, segments))[30 - first].tobytes())
    assert len(found) == 1
