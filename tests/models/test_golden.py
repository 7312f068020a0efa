"""Logits of tiny random Llama, Qwen2 and Qwen3 models against transformers (see tests/golden/README.md), at tp 1 and 4."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from radiance_jax import collectives
from radiance_jax.container.source import open_model
from radiance_jax.mesh import TENSOR_AXIS, make_mesh, zeros
from radiance_jax.models import llama
from radiance_jax.models.config import parse_config
from radiance_jax.models.load import load_params
from radiance_jax.models.partition import partition
from radiance_jax.models.rows import Rows, Tiles
from radiance_jax.pallas.paged_attention import AttentionShape, make_segments, paged_attention

GOLDEN = Path(__file__).parent.parent / "golden"
VARIANTS = sorted(str(path.parent.relative_to(GOLDEN)) for path in GOLDEN.glob("*/*/logits.npz"))
PAGE = 16


def whole_logits(folder: Path, tp: int, ids: np.ndarray) -> np.ndarray:
    """All logits [B, T, V] of ids [B, T] in one step of B prefill chunks, walked in tiles of 32 and of 8 rows."""
    model = open_model(folder)
    config = parse_config(model.config)
    cut, mesh = partition(config, tp), make_mesh(tp)
    params = load_params(config, cut, model, mesh, jnp.float32)
    specs = llama.param_specs(config, cut, jnp.float32)
    batch, length = ids.shape
    pages = batch * (length // PAGE)
    cache = llama.cache_spec(config, cut, pages, PAGE, jnp.float32)
    tables = jnp.arange(pages, dtype=jnp.int32).reshape(batch, -1)
    position = np.tile(np.arange(length), batch).astype(np.int32)
    slot = np.repeat(np.arange(batch), length)
    rows = Rows(jnp.asarray(ids.reshape(-1)), jnp.asarray(position), tables[slot, position // PAGE], jnp.asarray(position % PAGE))
    count = jnp.full(batch, length, jnp.int32)
    segments = make_segments(jnp.arange(batch, dtype=jnp.int32) * length, count, jnp.zeros(batch, jnp.int32), 8,
                             batch * length // 8 + batch)

    def run(params, caches, live_rows):
        around = llama.Surroundings(
            tiles=Tiles(((32, 17), (8, 1)), live_rows), reduce=lambda x: collectives.all_reduce(x, TENSOR_AXIS),
            attend=lambda q, c: paged_attention(q, c, tables, segments, AttentionShape(height=8)),
            reduce_add=lambda x, residual, bias: collectives.all_reduce_add(x, residual, TENSOR_AXIS, bias=bias),
            rank=lambda: jax.lax.axis_index(TENSOR_AXIS))
        x, *_ = llama.forward(params, config, cut, rows, caches, around)
        return collectives.all_gather_last(llama.head(params, x, config), TENSOR_AXIS)

    part = lambda tree: jax.tree.map(lambda s: s.partition, tree, is_leaf=lambda s: hasattr(s, "partition"))  # noqa: E731
    caches = (cache,) * config.num_layers
    step = jax.jit(jax.shard_map(run, mesh=mesh, in_specs=(part(specs), part(caches), jax.P()), out_specs=jax.P(), check_vma=False))
    logits = step(params, tuple(zeros(cache, mesh) for _ in caches), jnp.int32(batch * length))
    return np.asarray(logits)[:, : config.vocab_size].reshape(batch, length, -1)


@pytest.mark.parametrize(("variant", "tp"), [
    (variant, 1) for variant in VARIANTS] + [
    pytest.param(variant, 4, marks=() if variant in ("llama/bias", "qwen/qwen3") else pytest.mark.slow) for variant in VARIANTS])
def test_logits_equal_transformers(variant: str, tp: int):
    golden = np.load(GOLDEN / variant / "logits.npz")
    ids = golden[next(name for name in golden.files if "ids" in name and "greedy" not in name)]
    ours = whole_logits(GOLDEN / variant, tp, ids.astype(np.int32))
    assert np.abs(golden["logits"]).max() > 1
    np.testing.assert_allclose(ours, golden["logits"], atol=1e-4, rtol=0)
