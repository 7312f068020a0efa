"""The drafter's part of a step, apart from any step: which rows it sees, for whom it proposes, and who wins."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from radiance_jax.config import EngineConfig
from radiance_jax.engine import drafting
from radiance_jax.engine.build import build
from radiance_jax.engine.choices import choose, drafting_lines
from radiance_jax.engine.drafting import CPU_SLOT_TILES, Drafting
from radiance_jax.engine.hooks import Hooks
from radiance_jax.engine.noise import gumbel, gumbel_at
from radiance_jax.engine.state import LOOKUP, NEURAL, Capacity, state_specs
from radiance_jax.errors import UserError
from radiance_jax.mesh import ArraySpec, make_mesh
from radiance_jax.models import llama
from radiance_jax.models.config import parse_config
from radiance_jax.models.partition import partition
from radiance_jax.spec.drafter import Noise, Proposal, Surroundings, draw, ring
from tests.exactness import neural
from tests.exactness.neural import toy_drafter
from tests.tiny_model import CONFIG

SLOTS, LENGTH, WIDTH, DEPTH = 6, 40, CONFIG["hidden_size"], 4
CONFIG_ = parse_config(CONFIG)
TOY = toy_drafter(block=DEPTH)
ALONE = Surroundings(tp=1, reduce=lambda x: x, gather=lambda x: x, rank=lambda: 0)


def random(rng, spec: ArraySpec) -> jax.Array:
    return jnp.asarray(rng.standard_normal(spec.shape), spec.dtype)


def trees(tp: int):
    """Random parameters of target and toy, a random cache, and the partition."""
    rng, cut, dtype = np.random.default_rng(0), partition(CONFIG_, tp), np.float32
    specs = (llama.param_specs(CONFIG_, cut, dtype), TOY.param_specs(cut, dtype),
             TOY.cache_specs(cut, SLOTS, LENGTH, dtype))
    is_spec = lambda leaf: isinstance(leaf, ArraySpec)  # noqa: E731
    made = tuple(jax.tree.map(partial(random, rng), tree, is_leaf=is_spec) for tree in specs)
    return made, tuple(jax.tree.map(lambda s: s.partition, tree, is_leaf=is_spec) for tree in specs), cut


def state_of(cut):
    """Sequences of various lengths, some sampled."""
    rng = np.random.default_rng(1)
    capacity = Capacity(slots=SLOTS, length=LENGTH, rows=32, pages=9, page_size=8, depth=DEPTH)
    state = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), state_specs(capacity, cut.vocab_size),
                         is_leaf=lambda leaf: isinstance(leaf, ArraySpec))
    length = np.array([2, 9, 17, 40, 5, 30], np.int32)
    return replace(
        state, length=length, prompt=length // 2, tokens=rng.integers(0, CONFIG["vocab_size"], state.tokens.shape, np.int32),
        draw=replace(state.draw, temperature=np.array([0, 1, 0, 5, 0.5, 0], np.float32), choice=np.arange(SLOTS, dtype=np.int32),
                     seed=rng.integers(0, 2**32, (SLOTS, 2), np.uint32)))


def test_slots_that_propose_a_few_at_a_time_propose_what_all_at_once_do():
    tp = 2
    (params, draft, cache), specs, cut = trees(tp)
    state = state_of(cut)
    whole = PartitionSpec()

    def made(tiles):
        knows = Drafting(drafter=TOY, config=CONFIG_, cut=cut, depth=DEPTH, length=LENGTH, slot_tiles=tiles, row_tiles=None)
        run = jax.shard_map(lambda d, c, p, s, w: drafting.propose(knows, d, c, p, s, w), mesh=make_mesh(tp),
                            in_specs=(specs[1], specs[2], specs[0], whole, whole), out_specs=whole, check_vma=False)
        return jax.jit(run)

    few, all_ = made(CPU_SLOT_TILES), made(None)
    for wants in ([], [3], [0, 5], [1, 2, 4], range(SLOTS)):
        mask = np.isin(np.arange(SLOTS), list(wants))
        a, b = few(draft, cache, params, state, mask), all_(draft, cache, params, state, mask)
        assert a.count.tolist() == b.count.tolist() == (mask * DEPTH).tolist()
        np.testing.assert_array_equal(a.tokens[mask], b.tokens[mask])
        assert not mask.any() or len(np.unique(a.tokens[mask])) > 1


@pytest.mark.slow
@pytest.mark.parametrize("family", neural.NEURAL)
def test_where_branches_are_dear_there_are_none(family):
    """On a GPU a loop or a branch in a program is a trip to the host."""
    drafter, cut, dtype = neural.read_drafter(neural.NEURAL[family]), partition(CONFIG_, 2), np.float32
    capacity = Capacity(slots=4, length=LENGTH, rows=32, pages=9, page_size=8, depth=7)
    specs = (drafter.param_specs(cut, dtype), drafter.cache_specs(cut, 4, LENGTH, dtype), llama.param_specs(CONFIG_, cut, dtype),
             state_specs(capacity, cut.vocab_size))
    is_spec = lambda leaf: isinstance(leaf, ArraySpec)  # noqa: E731
    parts, whole = jax.tree.map(lambda s: s.partition, specs, is_leaf=is_spec), PartitionSpec()
    shapes = jax.tree.map(lambda s: s.abstract(make_mesh(2)), specs, is_leaf=is_spec)
    rows, tap = jax.ShapeDtypeStruct((8,), np.int32), jax.ShapeDtypeStruct((8, WIDTH), dtype)

    def text(run, inputs, out, *arguments):
        mapped = jax.shard_map(run, mesh=make_mesh(2), in_specs=inputs, out_specs=out, check_vma=False)
        return jax.jit(mapped).lower(*arguments).as_text()

    for branches in (True, False) if family == "dflash" else (False,):
        knows = Drafting(drafter=drafter, config=CONFIG_, cut=cut, depth=7, length=LENGTH,
                         slot_tiles=CPU_SLOT_TILES if branches else None, row_tiles=((4, 1),) if branches else None)
        found = text(lambda d, c, p, s, knows=knows: drafting.propose(knows, d, c, p, s, jnp.ones(4, bool)), parts, whole,
                     *shapes)
        found += text(lambda d, c, taps, slot, at, knows=knows: drafting.observe(
            knows, d, c, taps, slot, at, at >= 0, jnp.full(4, 9), jnp.int32(8)), (*parts[:2], whole, whole, whole), parts[1],
            *shapes[:2], (tap,) * len(drafter.taps), rows, rows)
        assert any(word in found for word in ("stablehlo.while", "stablehlo.case", "stablehlo.if")) == branches


def test_a_ring_holds_the_taps_of_the_last_committed_tokens():
    """Against a NumPy ring, over steps of random rows, some refused, some longer than the ring."""
    rng, cut = np.random.default_rng(2), partition(CONFIG_, 1)
    rows, tiles = 24, ((8, 3), (2, 1))
    knows = {name: Drafting(drafter=TOY, config=CONFIG_, cut=cut, depth=DEPTH, length=LENGTH, slot_tiles=None, row_tiles=each)
             for name, each in {"whole": None, "tiles": tiles}.items()}
    places = ring(TOY, LENGTH)
    cache = {name: {"tap": jnp.zeros((SLOTS, places, WIDTH))} for name in knows}
    expected, length = np.zeros((SLOTS, places, WIDTH), np.float32), np.zeros(SLOTS, np.int32)
    observe = {name: jax.jit(partial(drafting.observe, each, {})) for name, each in knows.items()}
    for _ in range(12):
        slot = np.sort(rng.integers(0, SLOTS, rows)).astype(np.int32)
        total = int(rng.integers(0, rows + 1))
        inside = np.arange(rows) - np.searchsorted(slot, slot)
        position = (length[slot] + inside).astype(np.int32)
        kept = np.array([rng.integers(0, (slot[:total] == s).sum() + 1) for s in range(SLOTS)])
        keep = (np.arange(rows) < total) & (inside < kept[slot])
        taps = rng.standard_normal((rows, WIDTH)).astype(np.float32)
        length = length + kept
        for name in knows:
            cache[name] = observe[name](cache[name], (taps,), slot, position, keep, length, total)
        for row in np.flatnonzero(keep):
            expected[slot[row], position[row] % places] = taps[row]
        for name in knows:
            np.testing.assert_array_equal(cache[name]["tap"], expected, err_msg=name)
    assert length.max() > 3 * places


def test_lookup_fills_in_where_the_drafter_proposes_nothing():
    lookup = (jnp.full((3, 2), 7), jnp.array([2, 1, 0]))
    neural = Proposal(tokens=jnp.full((3, 2), 9), count=jnp.array([1, 0, 0]))
    drafts, count, kind = drafting.combine(neural, lookup)
    assert count.tolist() == [1, 1, 0] and kind.tolist() == [NEURAL, LOOKUP, LOOKUP]
    assert drafts[0, 0] == 9 and drafts[1, 0] == 7
    assert drafting.combine(None, lookup)[1].tolist() == [2, 1, 0]


# ---- drawing ----


def test_noise_of_some_tokens_is_that_of_the_whole_vocabulary():
    rng = np.random.default_rng(3)
    seed = tuple(jnp.asarray(x) for x in rng.integers(0, 2**32, (2, 5), np.uint32))
    choice, index = rng.integers(0, 4, 5).astype(np.int32), rng.integers(0, 99, 5).astype(np.int32)
    whole = np.asarray(jax.jit(gumbel, static_argnums=3)(seed, choice, index, 320))
    some = jax.jit(gumbel_at)
    for ids in (np.arange(160, 320), rng.integers(0, 320, (5, 160))):
        expected = np.take_along_axis(whole, np.broadcast_to(ids, (5, 160)), axis=1)
        np.testing.assert_allclose(some(seed, choice, index, ids), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("branches", (True, False))
def test_a_draft_is_drawn_as_the_target_draws(branches):
    rng = np.random.default_rng(4)
    heat = np.array([0, 0.7, 3, 0], np.float32)
    noise_of = rng.gumbel(size=(5, 4, 64)).astype(np.float32)
    noise = Noise(temperature=jnp.asarray(heat), gumbel=lambda k, ids: jnp.asarray(noise_of)[k][:, ids])
    scores = rng.standard_normal((4, 64)).astype(np.float32)
    scores[3, [5, 9]] = 9.0  # a tie
    around = Surroundings(tp=1, reduce=None, gather=None, rank=lambda: 0, branches=branches)
    for k in range(5):
        hot = np.where(heat[:, None] > 0, scores / np.where(heat > 0, heat, 1)[:, None] + noise_of[k], scores)
        assert draw(jnp.asarray(scores), jnp.arange(64), k, noise, around).tolist() == hot.argmax(1).tolist()
    cold = Noise(temperature=jnp.zeros(4), gumbel=lambda k, ids: jnp.full((4, 64), jnp.nan))
    assert draw(jnp.asarray(scores), jnp.arange(64)[::-1], 0, cold, ALONE).tolist() == (63 - scores.argmax(1)).tolist()


# ---- start-up ----


@pytest.mark.parametrize(("options", "depth", "lookup"), (
    ({}, 2, 2), ({"num_speculative_tokens": 4}, 4, 4), ({"num_speculative_tokens": 1}, 1, 1),
    ({"num_speculative_tokens": 0}, 0, 0),
    ({"spec_ngram": 0}, 2, 0), ({"spec_ngram": 1, "num_speculative_tokens": 4}, 4, 1), ({"spec_ngram": 9}, 2, 2)))
def test_auto_is_the_drafters_own_depth(options, depth, lookup):
    drafter = replace(TOY, config=replace(TOY.config, declared=2))
    chosen = choose(EngineConfig(**options), "cpu", drafter)
    assert (chosen.depth, chosen.lookup) == (depth, lookup)
    lines = "\n".join(drafting_lines(EngineConfig(**options), chosen, drafter, LENGTH))
    assert ("drafting: off; Toy, the drafter in the model's file, is not loaded" in lines) == (depth == 0)
    assert depth == 0 or f"Toy, {depth} tokens of at most 4; it reads the target behind layers 1 and looks at the last 2" in lines
    assert depth == 0 or ("prompt lookup" in lines) == (lookup > 0)


def test_without_a_drafter_lookup_has_the_depth():
    for options, depth in (({}, 7), ({"spec_ngram": 3}, 3), ({"num_speculative_tokens": 12}, 12), ({"spec_ngram": 0}, 0)):
        chosen = choose(EngineConfig(**options), "cpu")
        assert (chosen.depth, chosen.lookup) == (depth, depth)


def test_more_drafts_than_the_drafter_makes_are_refused(tiny):
    config = EngineConfig(model=str(tiny), num_speculative_tokens=5, max_model_len=64, compile_cache=False)
    with pytest.raises(UserError, match="must be at most 4, which is what Toy proposes at once; got 5"):
        build(config, lambda line: None, Hooks(drafter=(TOY, lambda name: None)))
