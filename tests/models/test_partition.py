"""Padding and cutting a network for tensor parallelism changes nothing: all in float64 NumPy."""

from itertools import product

import numpy as np
import pytest

from radiance_jax.errors import UserError
from radiance_jax.models import llama
from radiance_jax.models.config import ModelConfig
from radiance_jax.models.partition import VOCAB_MULTIPLE, partition

WIDTH, SIZE, TIME = 12, 4, 5
HEADS = ((1, 1), (2, 1), (4, 2), (9, 3), (6, 6), (8, 2), (15, 5), (5, 1), (7, 7), (6, 2), (10, 5), (32, 8))  # (N, G)
RANKS = range(1, 9)


def make_config(heads: int, groups: int, ff: int = 30, vocab: int = 151) -> ModelConfig:
    return ModelConfig(architecture="llama", vocab_size=vocab, width=WIDTH, ff_width=ff, num_layers=1, num_heads=heads,
                       num_kv_heads=groups, head_size=SIZE, norm_eps=1e-5, max_position=64, tied_head=False,
                       attention_bias=True, output_bias=True, mlp_bias=True)


def checkpoint(config: ModelConfig, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {name: rng.normal(0, 0.5, shape) for name, shape in llama.tensor_shapes(config).items()}


def attention(x, qkv, bias, out, heads, groups):
    """x [T, D] through one rank's fused weights: causal attention, query head i reads key head i // (N / G)."""
    y = (x @ qkv.T + bias).reshape(len(x), heads + 2 * groups, SIZE)
    q, k, v = y[:, :heads], y[:, heads:heads + groups], y[:, heads + groups:]
    mixed = np.empty_like(q)
    for head in range(heads):
        group = head // (heads // groups)
        score = np.where(np.tri(len(x), dtype=bool), q[:, head] @ k[:, group].T * SIZE**-0.5, -np.inf)
        weight = np.exp(score - score.max(1, keepdims=True))
        mixed[:, head] = weight / weight.sum(1, keepdims=True) @ v[:, group]
    return mixed.reshape(len(x), -1) @ out.T


def swiglu(x, gate_up, bias, down):
    gate, up = np.split(x @ gate_up.T + bias, 2, axis=1)
    return gate / (1 + np.exp(-gate)) * up @ down.T


def over_ranks(config, tensors, tp, names):
    """One tuple of fused weights per rank, as the layer's parameters are sharded."""
    cut = partition(config, tp)
    fused = [llama.fuse(tensors.__getitem__, config, cut, ("layers", 0, name)) for name in names]
    assert all(len(array) == tp for array in fused)
    specs = llama.param_specs(config, cut, np.float32)["layers"][0]
    assert [array.shape for array in fused] == [specs[name].shape for name in names]
    return cut, zip(*fused, strict=True)


@pytest.mark.parametrize(("heads", "groups"), HEADS)
@pytest.mark.parametrize("tp", RANKS)
def test_attention_summed_over_ranks_is_attention(heads, groups, tp):
    config = make_config(heads, groups)
    tensors, x = checkpoint(config), np.random.default_rng(1).normal(size=(TIME, WIDTH))
    p = "model.layers.0.self_attn."
    fused = (np.concatenate([tensors[f"{p}{n}_proj.{kind}"] for n in "qkv"]) for kind in ("weight", "bias"))
    whole = attention(x, *fused, tensors[p + "o_proj.weight"], heads, groups)
    cut, ranks = over_ranks(config, tensors, tp, ("qkv", "qkv_bias", "out"))
    parts = [attention(x, *rank, cut.local_heads, cut.local_kv_heads) for rank in ranks]
    assert np.abs(whole).max() > 0.1
    np.testing.assert_allclose(sum(parts), whole, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("ff", "tp"), [(ff, tp) for ff, tp in product((1, 7, 30, 64), RANKS) if tp <= max(ff, 2)])
def test_swiglu_summed_over_ranks_is_swiglu(ff, tp):
    config = make_config(2, 1, ff=ff)
    tensors, x = checkpoint(config), np.random.default_rng(1).normal(size=(TIME, WIDTH))
    p = "model.layers.0.mlp."
    fused = (np.concatenate([tensors[f"{p}{n}_proj.{kind}"] for n in ("gate", "up")]) for kind in ("weight", "bias"))
    whole = swiglu(x, *fused, tensors[p + "down_proj.weight"])
    _, ranks = over_ranks(config, tensors, tp, ("gate_up", "gate_up_bias", "down"))
    assert np.abs(whole).max() > 0.01
    np.testing.assert_allclose(sum(swiglu(x, *rank) for rank in ranks), whole, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("vocab", "tp"), list(product((1, 64, 151, 49152), RANKS)))
def test_the_vocabulary_is_padded_with_zero_rows_behind(vocab, tp):
    config = make_config(1, 1, vocab=vocab)
    cut, tensors = partition(config, tp), checkpoint(config)
    assert cut.vocab_size % (VOCAB_MULTIPLE * tp) == 0 and vocab <= cut.vocab_size < vocab + VOCAB_MULTIPLE * tp
    for path, name in (("embed", "model.embed_tokens.weight"), ("head", "lm_head.weight")):
        table = llama.fuse(tensors.__getitem__, config, cut, (path,))
        np.testing.assert_array_equal(table[:vocab], tensors[name])
        assert table.shape == (cut.vocab_size, WIDTH) and not table[vocab:].any()


@pytest.mark.parametrize(("heads", "groups"), HEADS)
@pytest.mark.parametrize("tp", RANKS)
def test_a_partition_divides_and_keeps_queries_with_their_key_head(heads, groups, tp):
    cut = partition(make_config(heads, groups), tp)
    assert cut.heads % tp == cut.kv_heads % tp == cut.ff_width % tp == 0
    assert cut.kv_heads // cut.kv_copies >= groups and cut.group_heads >= heads // groups
    assert cut.heads == cut.kv_heads // cut.kv_copies * cut.group_heads
    assert cut.local_heads % cut.local_kv_heads == 0
    if tp == 1:
        assert (cut.heads, cut.kv_heads, cut.kv_copies, cut.ff_width) == (heads, groups, 1, 30)


def test_ranks_that_could_only_hold_padding_are_refused_by_name():
    with pytest.raises(UserError, match="intermediate_size=7 stands in the way. Use --mesh tp=7 or fewer"):
        partition(make_config(2, 1, ff=7), 8)
    with pytest.raises(UserError, match="num_attention_heads=6 stands in the way"):
        partition(make_config(6, 2, ff=5), 7)


def test_what_is_padded_is_said():
    config = make_config(9, 3)
    assert partition(config, 3).padding(config) == ""
    assert partition(config, 4).padding(config) == "heads 9/3 served as 12/4, feed-forward 30 as 32"
    assert partition(config, 8).padding(config) == "heads 9/3 served as 16/8, feed-forward 30 as 32"


def test_the_examples_of_the_module_hold():
    four, eight = (partition(make_config(9, 3), tp) for tp in (4, 8))
    assert (four.kv_heads, four.kv_copies, four.group_heads, four.local_heads) == (4, 1, 3, 3)
    assert (eight.kv_heads, eight.kv_copies, eight.group_heads, eight.local_heads) == (8, 2, 4, 2)
    assert partition(make_config(32, 8), 8).heads == 32  # what divides is not padded
