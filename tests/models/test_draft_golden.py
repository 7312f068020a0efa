"""Drafters of every family in every published layout against their reference code (tests/golden/README.md)."""

import jax.numpy as jnp
import numpy as np
import pytest

from draft_golden import GOLDEN, SLOTS, VARIANTS, batch, feed, gumbel, run

CLOSE = {"atol": 1e-4, "rtol": 0}
# Each takes seconds to compile: here those that differ most, the others under `slow`.
FAST = {1: {"dflash_specforge", "dflash2_zlab", "dspark_specforge"}, 4: {"dspark_speculators"}}
TEMPERATURE = 0.7
CASES = [pytest.param(variant, tp, marks=[] if variant in FAST[tp] else pytest.mark.slow)
         for variant in VARIANTS for tp in (1, 4)]


def contexts(golden) -> list:
    """The rows of each slot's context, all slots interleaved, in the order of positions."""
    rows = [(slot, p, golden["taps"][p], True) for slot, s in enumerate(golden["positions"]) for p in range(s)]
    return sorted(rows, key=lambda row: (row[1], row[0]))


@pytest.mark.parametrize("variant, tp", CASES)
def test_logits_candidates_laws_and_walks_equal_the_references(variant: str, tp: int):
    """The reference has no cache here: ours is filled row by row, in steps that mix slots and hold rows to be dropped."""
    golden, running = np.load(GOLDEN / variant / "golden.npz"), run(variant, tp)
    drafter, count, width = running.drafter, len(golden["anchors"]), golden["logits"].shape[-1]
    cache = feed(running, running.empty, contexts(golden))
    made, logits = running.propose(cache, *batch(golden))
    assert golden["tokens"].shape == (count, drafter.block) and made.tokens.shape == (SLOTS, drafter.block)
    np.testing.assert_array_equal(made.tokens[:count], golden["tokens"])
    np.testing.assert_array_equal(made.count, [drafter.block] * count + [0])
    logits = np.asarray(logits)[:count]
    np.testing.assert_allclose(logits[..., :width], golden["logits"], **CLOSE)
    assert (logits[..., width:] == -np.inf).all() and np.abs(golden["logits"]).max() > 1
    if drafter.name == "DFlash2":
        ids, law = (np.asarray(x)[:count] for x in made.law)
        np.testing.assert_array_equal(ids, golden["candidates"])
        sharper = golden["law"] ** TEMPERATURE  # the walk at temperature 0 has the law of temperature 1
        np.testing.assert_allclose(law, sharper / sharper.sum(-1, keepdims=True), **CLOSE)
        hot, _ = running.propose(cache, *batch(golden, TEMPERATURE))
        np.testing.assert_allclose(hot.law[1][:count, 0], golden["law"][:, 0], **CLOSE)
    if "confidence" in golden:
        np.testing.assert_allclose(made.confidence[:count], golden["confidence"], **CLOSE)
    else:
        assert made.confidence is None


@pytest.mark.parametrize("variant", (
    "dspark_specforge", *(pytest.param(name, marks=pytest.mark.slow) for name in (
        "dflash_specforge", "dflash_speculators", "dflash2_zlab"))))
def test_above_temperature_zero_the_draft_is_drawn_with_the_targets_noise(variant: str):
    golden, running = np.load(GOLDEN / variant / "golden.npz"), run(variant, 1)
    cache = feed(running, running.empty, contexts(golden))
    anchor, position, live, _, path = batch(golden)
    for temperature in (TEMPERATURE, 3.0):
        mixed = jnp.array([temperature, 0.0, temperature, 0.0])
        tokens = np.asarray(running.propose(cache, anchor, position, live, mixed, path)[0].tokens)
        np.testing.assert_array_equal(tokens[1], golden["tokens"][1])
        for slot in (0, 2):
            if "law" in golden:
                scores, ids = TEMPERATURE * np.log(golden["law"][slot, 0]), golden["candidates"][slot, 0]
            else:
                scores, ids = golden["logits"][slot, 0], np.arange(golden["logits"].shape[-1])
            if variant == "dflash_speculators":
                ids = np.nonzero(kept_ids(variant))[0]
            noise = np.asarray(gumbel(0, jnp.asarray(ids)))[0]
            assert tokens[slot, 0] == ids[np.argmax(scores / temperature + noise)]
    assert (tokens[:3] != golden["tokens"]).any()


def kept_ids(variant: str) -> np.ndarray:
    """Which of the target's tokens a reduced head knows."""
    from safetensors.numpy import load_file
    return load_file(GOLDEN / variant / "model.safetensors")["t2d"]


@pytest.mark.parametrize("variant", ("dflash_specforge", "dflash2_zlab"))  # mixed and windowed rings
def test_the_cache_forgets_rejected_rows_and_whoever_sat_there_before(variant: str):
    """Slots are reused, rows come in rounds as verification keeps them, and rejected rows lie between: the proposal is that of
    the context alone."""
    golden, running = np.load(GOLDEN / variant / "golden.npz"), run(variant, 1)
    rng = np.random.default_rng(0)
    strangers = [(slot, p, rng.standard_normal(golden["taps"].shape[1:]).astype(np.float32), True)
                 for p in range(31) for slot in range(SLOTS)]
    cache = feed(running, running.empty, strangers)
    rows = []
    for row in contexts(golden):
        rows += [row, (row[0], row[1] + 1, row[2] + 50.0, False)]
    cache = feed(running, cache, rows)
    made, logits = running.propose(cache, *batch(golden))
    np.testing.assert_array_equal(made.tokens[:3], golden["tokens"])
    np.testing.assert_allclose(logits[:3, :, : golden["logits"].shape[-1]], golden["logits"], **CLOSE)


@pytest.mark.slow
def test_a_program_without_branches_proposes_the_same():
    golden = np.load(GOLDEN / "dflash2_zlab" / "golden.npz")
    running = run("dflash2_zlab", 1, branches=False)
    cache = feed(running, running.empty, contexts(golden))
    np.testing.assert_array_equal(running.propose(cache, *batch(golden))[0].tokens[:3], golden["tokens"])


def test_a_window_bounds_the_ring_of_its_own_layer():
    mixed, windowed = run("dflash_specforge", 1), run("dflash2_zlab", 1)
    assert [ring.shape[1] for ring in mixed.empty] == [7, 40] and mixed.drafter.window is None
    assert [ring.shape[1] for ring in windowed.empty] == [7, 7] and windowed.drafter.window == 7
