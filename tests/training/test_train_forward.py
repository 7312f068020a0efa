"""The networks of a training step are those of the engine: the target's against transformers, the drafter's against `propose`."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from radiance_jax.container.source import open_model
from radiance_jax.models.config import parse_config
from radiance_jax.models.draft.registry import read_drafter
from radiance_jax.models.layers import rms_norm
from radiance_jax.models.partition import partition
from radiance_jax.spec.drafter import Noise, Shared, Surroundings
from radiance_jax.training import blocks, parameters, target
from radiance_jax.training.config import TrainConfig
from radiance_jax.training.description import describe
from radiance_jax.training.sharding import training_mesh
from tests import tiny_model

GOLDEN = Path(__file__).parents[1] / "golden"
VARIANTS = ("llama/bias", pytest.param("llama/untied_llama3", marks=pytest.mark.slow), pytest.param("qwen/qwen3", marks=pytest.mark.slow))
SEQUENCES, LENGTH, ANCHORS = 3, 20, 5
SERVED = Surroundings(tp=1, reduce=lambda x: x, gather=lambda x: x, rank=lambda: 0)


def loaded(folder: Path, taps: tuple[int, ...]):
    model = open_model(folder)
    config = parse_config(model.config)
    cut = partition(config, 1)
    return target.Target(config=config, cut=cut, taps=taps), target.load(config, cut, model, training_mesh(1, 1), jnp.float32)


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_target_equals_transformers_and_taps_what_it_says(variant):
    golden = np.load(GOLDEN / variant / "logits.npz")
    ids = golden[next(name for name in golden.files if "ids" in name and "greedy" not in name)].astype(np.int32)
    layers = parse_config(open_model(GOLDEN / variant).config).num_layers
    described, params = loaded(GOLDEN / variant, (layers - 1, -1, 0))
    taps, last = jax.jit(lambda params, ids: target.states(params, described, ids))(params, ids)
    logits = target.logits(params, described, last.reshape(-1, last.shape[-1]))[:, :described.config.vocab_size]
    np.testing.assert_allclose(logits.reshape(golden["logits"].shape), golden["logits"], atol=1e-4, rtol=0)
    norm = lambda x: rms_norm(x, params["norm"], described.config.norm_eps)  # noqa: E731
    np.testing.assert_allclose(norm(taps[:, :, 0]), last, atol=1e-6)
    np.testing.assert_array_equal(taps[:, :, 1], params["embed"][ids])
    first = params | {"layers": jax.tree.map(lambda x: x[:1], params["layers"])}
    one = target.Target(config=described.config.__class__(**{**vars(described.config), "num_layers": 1}), cut=described.cut, taps=())
    np.testing.assert_allclose(norm(taps[:, :, 2]), target.states(first, one, ids)[1], atol=1e-5)


KINDS = {"plain": {"layers": 1}, "windowed and causal": {"window": 6, "causal": True}, "windowed": {"window": 3, "layers": 1},
         "a mask token": {"mask_id": 7, "taps": (0,)}}
FAST = {("dspark", "windowed")}


@pytest.mark.parametrize("family,kind", [
    pytest.param(family, kind, marks=() if (family, kind) in FAST else pytest.mark.slow)
    for family in ("dflash", "dflash2", "dspark") for kind in KINDS])
def test_blocks_that_share_a_context_see_what_a_server_sees(family, kind):
    """Logits of every slot, by training's attention over whole sequences and by the engine's over rings."""
    config = TrainConfig(**{"data": "x", "steps": 1, "family": family, "length": LENGTH, "anchors": ANCHORS, "block_size": 4,
                            "rank": 8, "ff_width": 48, "num_heads": 4, "num_kv_heads": 2, "head_size": 16} | KINDS[kind])
    tiny = parse_config(tiny_model.CONFIG)
    cut = partition(tiny, 1)
    drafter = read_drafter(describe(config, tiny, tiny_model.CONFIG)).holding([] if config.mask_id else ["mask_embedding"], "x")
    rng = np.random.default_rng(3)
    tensors = {name: (value + 0.1 * rng.standard_normal(value.shape)).astype(np.float32)
               for name, value in parameters.first_tensors(drafter, 0).items()}
    params = parameters.fused(drafter, cut, tensors.__getitem__)
    embed = jnp.asarray(rng.standard_normal((cut.vocab_size, tiny.width)) * 0.3, jnp.float32)
    real_ids = jnp.arange(cut.vocab_size) < tiny.vocab_size
    shared = Shared(embed=lambda ids: embed[ids], head=lambda x: jnp.where(real_ids, x @ embed.T, -jnp.inf))
    tokens = rng.integers(0, tiny.vocab_size, (SEQUENCES, LENGTH)).astype(np.int32)
    taps = jnp.asarray(rng.standard_normal((SEQUENCES, LENGTH, len(drafter.taps), tiny.width)), jnp.float32)
    batch = blocks.Batch(tokens=jnp.asarray(tokens), answer_start=jnp.array([2, 9, 0]), length=jnp.array([LENGTH, 18, 15]),
                         index=jnp.arange(3))
    position, real = blocks.choose_anchors(jax.random.key(0), batch, ANCHORS)
    assert bool(real.all()) and len(set(np.asarray(position).ravel().tolist())) > 6
    slots, anchors = np.repeat(np.arange(SEQUENCES), ANCHORS), np.asarray(position).reshape(-1)
    anchor, where, live = jnp.asarray(tokens[slots, anchors]), jnp.asarray(anchors), jnp.ones(len(slots), bool)
    cold = Noise(temperature=jnp.zeros(len(slots)), gumbel=lambda k, ids: jnp.zeros((len(slots), ids.shape[-1])))

    @jax.jit
    def trained(params):
        states = blocks.block_states(drafter, params, shared, taps, blocks.blocks_at(batch, position, real, drafter.block))
        contexts = blocks.contexts(drafter, params, taps)
        made = drafter.propose(params, shared, contexts, anchor, where, live, cold, blocks.ALONE)
        return drafter.logits(params, shared, states.reshape(len(slots), drafter.block, -1), blocks.ALONE)[0], made.tokens

    @jax.jit
    def served(params):
        """Each sequence's context goes into a ring of its own, place by place up to the anchor, and one block is drafted."""
        def observe(place, cache):
            place = jnp.full(len(slots), place)
            return drafter.observe(params, cache, taps[slots, place], jnp.arange(len(slots)), place, place < where, SERVED)

        cache = tuple(jnp.full(s.shape, 9.0) for s in drafter.cache_specs(cut, len(slots), LENGTH, np.float32))
        cache = jax.lax.fori_loop(0, LENGTH, observe, cache)
        states = drafter.states(params, shared, cache, anchor, where, SERVED)
        made = drafter.propose(params, shared, cache, anchor, where, live, cold, SERVED)
        return drafter.logits(params, shared, states, SERVED)[0], made.tokens

    (ours, drafts), (theirs, served_drafts) = trained(params), served(params)
    assert np.isfinite(np.asarray(ours)[..., :tiny.vocab_size]).all()
    np.testing.assert_allclose(ours, theirs, atol=1e-4, rtol=0)
    np.testing.assert_array_equal(drafts, served_drafts)


def test_labels_stand_where_drafts_do_and_anchors_are_of_answers():
    tokens = np.arange(100, 112)[None].repeat(2, 0)
    batch = blocks.Batch(tokens=jnp.asarray(tokens), answer_start=jnp.array([4, 9]), length=jnp.array([10, 11]), index=jnp.arange(2))
    position, real = blocks.choose_anchors(jax.random.key(1), batch, 7)
    assert sorted(np.asarray(position)[0][np.asarray(real)[0]].tolist()) == [4, 5, 6, 7, 8]  # the last token has none behind it
    assert np.asarray(position)[1][np.asarray(real)[1]].tolist() == [9]
    made = blocks.blocks_at(batch, jnp.array([[4, 7], [9, 0]]), jnp.array([[True, True], [True, False]]), 3)
    assert made.before[0].tolist() == [[104, 105, 106], [107, 108, 109]]
    assert made.labels[0].tolist() == [[105, 106, 107], [108, 109, 110]]
    assert made.live.tolist() == [[[True] * 3, [True, True, False]], [[True, False, False], [False] * 3]]
