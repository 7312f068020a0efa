"""All-reduce: the same bits on every rank, in both forms, and those of an f32 sum in ascending rank order."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from radiance_jax import collectives, wire
from radiance_jax.mesh import TENSOR_AXIS, make_mesh
from tests.collectives.ranks import on_ranks

RANKS = (3, 8, *(pytest.param(ranks, marks=pytest.mark.slow) for ranks in (2, 4)))
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
def test_long_messages_take_the_two_shot_form_to_the_same_bits(ranks, monkeypatch):
    monkeypatch.setattr(wire, "HOP_SECONDS", 5e-8)  # tens of kilobytes are long then
    most = int(wire.two_shot_from(ranks)) // 4
    rng = np.random.default_rng(1)
    arrays = [rng.normal(size=(ranks, n)).astype(np.float32) for n in (most + 1, most)]
    reduced = on_ranks(ranks, collectives.all_reduce, arrays)
    for parts, sums in zip(arrays, reduced, strict=True):
        assert all(got.tobytes() == in_rank_order(parts).tobytes() for got in sums)

    def program(size: int) -> str:
        run = jax.shard_map(lambda x: collectives.all_reduce(x[0], TENSOR_AXIS), mesh=make_mesh(ranks),
                            in_specs=P(TENSOR_AXIS), out_specs=P(), check_vma=False)
        return str(jax.make_jaxpr(run)(jax.ShapeDtypeStruct((ranks, size), jnp.float32)))

    assert "all_to_all" in program(most + 1) and "all_to_all" not in program(most)
    assert not any("psum" in program(size) for size in (most + 1, most))  # it promises no order, if it keeps one on CPUs


def test_where_the_two_shot_form_begins():
    """What it saves grows with the ranks; with two it saves nothing."""
    edges = [wire.two_shot_from(ranks) for ranks in (2, 3, 4, 5, 6, 8)]
    assert edges[0] == float("inf") and edges == sorted(edges, reverse=True)
    assert 1 << 19 < edges[-1] < 1 << 21


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("ranks", (1, 3, pytest.param(2, marks=pytest.mark.slow), pytest.param(8, marks=pytest.mark.slow)))
def test_the_fused_sum_has_the_bits_of_its_steps(ranks, dtype, monkeypatch):
    """residual + (sum + bias), each step rounded, in both forms and inside one program: no rounding may be dropped."""
    rng = np.random.default_rng(2)
    arrays = messages(ranks, DTYPES[dtype])
    residuals, biases = ([rng.normal(size=parts.shape[1:]).astype(parts.dtype) * 8 for parts in arrays] for _ in range(2))
    widen = lambda xs: [np.broadcast_to(x, (ranks, *x.shape)) for x in xs]  # noqa: E731

    def plus(x, y):
        return (x.astype(np.float32) + y.astype(np.float32)).astype(x.dtype)

    def fused(x, residual, bias, axis):
        return jnp.stack([collectives.all_reduce_add(x, residual, axis),
                          collectives.all_reduce_add(x, residual, axis, bias=bias)])

    for hop in (1e9, 0):  # one-shot, two-shot
        monkeypatch.setattr(wire, "HOP_SECONDS", hop)
        found = on_ranks(ranks, fused, arrays, widen(residuals), widen(biases))
        for parts, residual, bias, got in zip(arrays, residuals, biases, found, strict=True):
            total = in_rank_order(parts)
            expected = np.stack([plus(residual, total), plus(residual, plus(total, bias))])
            for mine in got:
                assert mine.tobytes() == expected.tobytes(), (parts.shape, hop)


def test_norm_and_gates_after_a_sum_see_rounded_bits():
    rng = np.random.default_rng(3)
    bf16 = DTYPES["bf16"]
    x, residual = rng.normal(size=(2, 5, 32)).astype(bf16), np.tile(rng.normal(size=(1, 5, 32)).astype(bf16), (2, 1, 1))
    streams, gate = np.tile(rng.normal(size=(1, 5, 3, 32)).astype(bf16), (2, 1, 1, 1)), np.tile(
        rng.normal(size=(1, 5, 3)).astype(bf16), (2, 1, 1))
    wide = lambda r: r.astype(jnp.float32) * 3  # noqa: E731
    both = on_ranks(2, lambda x, r, axis: jnp.concatenate(
        [p.astype(jnp.float32) for p in collectives.all_reduce_add_norm(x, r, wide, axis)]), [x], [residual])[0]
    total = in_rank_order(x)
    expected = (total.astype(np.float32) + residual[0].astype(np.float32)).astype(bf16).astype(np.float32)
    np.testing.assert_array_equal(both[0], np.concatenate([expected, expected * 3]))
    gated = on_ranks(2, lambda x, s, g, axis: collectives.all_reduce_gated(x, s, g, axis), [x], [streams], [gate])[0]
    product = (gate[0].astype(np.float32)[..., None] * total.astype(np.float32)[:, None]).astype(bf16)
    expected = (streams[0].astype(np.float32) + product.astype(np.float32)).astype(bf16)
    assert all(mine.tobytes() == expected.tobytes() for mine in gated)


@pytest.mark.parametrize("ranks", (2, 3, 4, 8))
@pytest.mark.slow
def test_sizes_up_to_eight_mebibytes(ranks):
    rng = np.random.default_rng(4)
    sizes = (1, 2, 15, 4095, 4097, 65537, (1 << 20) - 3, 1 << 22)
    arrays = [(rng.normal(size=(ranks, n)) * 2.0 ** rng.integers(-6, 6, (ranks, n))).astype(DTYPES["bf16"]) for n in sizes]
    for parts, forms in zip(arrays, on_ranks(ranks, every_form, arrays), strict=True):
        for got in forms.reshape(-1, *parts.shape[1:]):
            assert got.tobytes() == in_rank_order(parts).tobytes(), parts.shape


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
