"""All-reduce: the same bits on every rank, in both forms, and those of an f32 sum in ascending rank order."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from radiance_jax import collectives
from radiance_jax.mesh import TENSOR_AXIS, make_mesh

RANKS = (2, 3, 4, 8)
SHAPES = ((1,), (3,), (8,), (5, 13), (3, 1, 129), (1001,))
DTYPES = {"f32": np.float32, "bf16": ml_dtypes.bfloat16}


def messages(ranks: int, dtype, seed: int = 0) -> list[np.ndarray]:
    """[W, *shape] each. Two ranks hold large numbers that cancel, so that the order of a sum shows in its bits."""
    rng = np.random.default_rng(seed)
    arrays = []
    for shape in SHAPES:
        parts = rng.normal(size=(ranks, *shape)) * 2.0 ** rng.integers(-6, 12, (ranks, *shape))
        if ranks > 1:
            large = (rng.normal(size=shape) * 2.0**30).astype(dtype).astype(np.float64)
            order = rng.permuted(np.tile(np.arange(ranks).reshape(-1, *[1] * len(shape)), (1, *shape)), axis=0)
            parts = np.where(order == 0, large, np.where(order == 1, -large, parts))
        arrays.append(parts.astype(dtype))
    return arrays


def in_rank_order(parts: np.ndarray) -> np.ndarray:
    total = parts[0].astype(np.float32)
    for part in parts[1:]:
        total = total + part.astype(np.float32)
    return total.astype(parts.dtype)


def on_ranks(ranks: int, form, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """`form(x, axis)` of every array on every rank, [W, ...] each; one program for all arrays."""
    def each(xs):
        return [form(x[0], TENSOR_AXIS)[None] for x in xs]

    run = jax.shard_map(each, mesh=make_mesh(ranks), in_specs=P(TENSOR_AXIS), out_specs=P(TENSOR_AXIS), check_vma=False)
    return [np.asarray(x) for x in jax.jit(run)(arrays)]


def every_form(x, axis):
    """[3, ...]: one-shot, two-shot, and whichever `all_reduce` takes."""
    return jnp.stack([collectives.one_shot(x, axis), collectives.two_shot(x, axis), collectives.all_reduce(x, axis)])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("ranks", RANKS)
def test_every_form_is_the_sum_in_rank_order_on_every_rank(ranks, dtype):
    arrays = messages(ranks, DTYPES[dtype])
    for parts, forms in zip(arrays, on_ranks(ranks, every_form, arrays), strict=True):
        for got in forms.reshape(-1, *parts.shape[1:]):
            assert got.tobytes() == in_rank_order(parts).tobytes(), parts.shape


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_messages_tell_orders_apart(dtype):
    """Guards the test above: with other orders of summation its messages give other bits."""
    parts = messages(8, DTYPES[dtype])[-1]
    other = in_rank_order(np.roll(parts, 1, axis=0))
    rounded = parts[0]
    for part in parts[1:]:
        rounded = (rounded + part).astype(parts.dtype)
    assert (other != in_rank_order(parts)).any()
    assert dtype == "f32" or (rounded != in_rank_order(parts)).any()


@pytest.mark.parametrize("ranks", (3, 8))
def test_long_messages_take_the_two_shot_form_to_the_same_bits(ranks):
    long, short = collectives.TWO_SHOT_BYTES // 4 + 1, collectives.TWO_SHOT_BYTES // 4 - 1
    rng = np.random.default_rng(1)
    arrays = [rng.normal(size=(ranks, n)).astype(np.float32) for n in (long, short)]
    reduced = on_ranks(ranks, collectives.all_reduce, arrays)
    for parts, sums in zip(arrays, reduced, strict=True):
        assert all(got.tobytes() == in_rank_order(parts).tobytes() for got in sums)

    def program(size: int) -> str:
        run = jax.shard_map(lambda x: collectives.all_reduce(x[0], TENSOR_AXIS), mesh=make_mesh(ranks),
                            in_specs=P(TENSOR_AXIS), out_specs=P(), check_vma=False)
        return str(jax.make_jaxpr(run)(jax.ShapeDtypeStruct((ranks, size), jnp.float32)))

    assert "all_to_all" in program(long) and "all_to_all" not in program(short)
    assert not any("psum" in program(size) for size in (long, short))  # it promises no order, if it keeps one on CPUs


def test_one_rank_keeps_its_message():
    parts = messages(1, np.float32)
    for part, forms in zip(parts, on_ranks(1, every_form, parts), strict=True):
        assert [got.tobytes() for got in forms[0]] == [part.tobytes()] * 3


@pytest.mark.parametrize("ranks", (1, 3, 8))
def test_gathered_shards_stand_in_rank_order(ranks):
    arrays = messages(ranks, np.float32)
    gathered = on_ranks(ranks, collectives.all_gather_last, arrays)
    for parts, wholes in zip(arrays, gathered, strict=True):
        for whole in wholes:
            np.testing.assert_array_equal(whole, np.concatenate(list(parts), axis=-1))
