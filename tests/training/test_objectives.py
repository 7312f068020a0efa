"""Objectives against NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from radiance_jax.spec.drafter import Shared
from radiance_jax.models.config import parse_config
from radiance_jax.models.draft.registry import read_drafter
from radiance_jax.training import blocks
from radiance_jax.training.config import TrainConfig
from radiance_jax.training.description import describe
from radiance_jax.training.objectives import objective_of
from radiance_jax.training.objectives.base import Part
from radiance_jax.training.objectives.dflash2 import likeliest
from tests import tiny_model

D, V, R, N, RANK = 64, tiny_model.VOCAB, 6, 3, 4


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


@pytest.fixture
def lesson():
    """Two blocks of three drafts; the drafter's states and its tables are random."""
    rng = np.random.default_rng(2)

    def make(family: str, **changes):
        config = TrainConfig(data="x", steps=1, family=family, block_size=N if family == "dspark" else N + 1, rank=RANK, candidates=5,
                             mask_id=3, **changes)
        drafter = read_drafter(describe(config, parse_config(tiny_model.CONFIG), tiny_model.CONFIG))
        f = lambda *shape: rng.standard_normal(shape).astype(np.float32)  # noqa: E731
        head, states = f(V, D) * 0.3, f(R, D)
        tables = {"before": f(V, RANK), "bias": f(V, RANK), "predecessors": f(V, RANK), "successors": f(V, RANK),
                  "selector": f(RANK, D) * 0.2, "confidence": f(1, D + RANK) * 0.2, "confidence_bias": f(1)}
        labels, before = rng.integers(0, V, R), rng.integers(0, V, R)
        labels[0] = int((states[0] @ head.T).argmax())
        law = f(R, V) * 2
        table = jnp.asarray(head)
        part = Part(drafter=drafter, params=jax.tree.map(jnp.asarray, tables), masters=jax.tree.map(jnp.asarray, tables),
                    shared=Shared(embed=lambda ids: ids, head=lambda x: blocks.frozen_product(x, table)), states=jnp.asarray(states),
                    labels=jnp.asarray(labels), before=jnp.asarray(before), target_logits=jnp.asarray(law))
        return objective_of(config), part, head, tables, law

    return make


LIVE = np.array([[[1, 1, 1], [1, 1, 0]]], bool)
WEIGHTS = LIVE * np.exp(-np.arange(N) / 4.0)


def whole(objective, part):
    terms = jax.tree.map(lambda x: np.asarray(x).reshape(1, 2, N), objective.terms(part))
    loss, parts = objective.loss(jax.tree.map(jnp.asarray, terms), jnp.asarray(LIVE), jnp.asarray(LIVE))
    return terms, float(loss), {name: float(value) for name, value in parts.items()}


def by_block(x):
    return np.asarray(x).reshape(1, 2, N)


def test_dflash(lesson):
    objective, part, head, *_ = lesson("dflash")
    q = softmax(np.asarray(part.states) @ head.T)
    ce = by_block(-np.log(q[np.arange(R), part.labels]))
    terms, loss, _ = whole(objective, part)
    assert terms["hit"].ravel().tolist() == (q.argmax(-1) == np.asarray(part.labels)).tolist() and terms["hit"][0, 0, 0]
    assert loss == pytest.approx((ce * WEIGHTS).sum() / WEIGHTS.sum(), rel=1e-5)


def test_dpace_weighs_a_slot_by_the_length_that_depends_on_it(lesson):
    objective, part, head, *_ = lesson("dflash", objective="dpace", smoothing=0.25)
    q = softmax(np.asarray(part.states) @ head.T)
    gold = by_block(q[np.arange(R), part.labels])
    expected = 0.0
    for block in range(2):
        chain = [0.75 * gold[0, block, k] + 0.25 for k in range(N) if LIVE[0, block, k]]
        reached = np.cumprod(chain)
        for k in range(len(chain)):
            expected += reached[k:].sum() * -np.log(gold[0, block, k])
    assert whole(objective, part)[1] == pytest.approx(expected / 2, rel=1e-5)


def test_dflash2_adds_the_choice_among_candidates(lesson):
    objective, part, head, tables, _ = lesson("dflash2", candidate_weight=0.7)
    logits = np.asarray(part.states) @ head.T
    ce, among, hit = [], [], []
    for row, (label, before) in enumerate(zip(np.asarray(part.labels), np.asarray(part.before), strict=True)):
        score = lambda b: logits[row, b] + (tables["predecessors"][before] * (tables["selector"] @ np.asarray(part.states)[row])  # noqa: E731, B023
                                            ) @ tables["successors"][b]
        best = np.argsort(-logits[row], kind="stable")[:5]
        hit.append(best[np.argmax([score(b) for b in best])] == label)
        chosen = best if label in best else np.append(best[:-1], label)
        p = softmax(np.array([score(b) for b in chosen]))
        among.append(-np.log(p[list(chosen).index(label)]))
        ce.append(-np.log(softmax(logits[row])[label]))
    terms, loss, parts = whole(objective, part)
    assert terms["hit"].ravel().tolist() == hit
    plain, chosen = (by_block(ce) * WEIGHTS).sum() / WEIGHTS.sum(), (by_block(among) * LIVE).sum() / LIVE.sum()
    assert loss == pytest.approx(plain + 0.7 * chosen, rel=1e-5) and 0 < parts["missing"] < 1


@pytest.mark.parametrize("size", (150, 192, 2048))
def test_candidates_are_the_likeliest_of_any_vocabulary_in_order(size):
    logits = np.random.default_rng(0).standard_normal((40, size)).astype(np.float32)
    logits[3, 70] = logits[3, 5] = 9.0  # ties in the order of ids
    logits[:, -20:] = -np.inf
    np.testing.assert_array_equal(jax.jit(likeliest, static_argnums=1)(logits, 7), np.argsort(-logits, kind="stable")[:, :7])


def test_dspark_is_distance_cross_entropy_and_confidence(lesson):
    objective, part, head, tables, law = lesson("dspark")
    e, y = tables["before"][np.asarray(part.before)], np.asarray(part.states)
    q = softmax(y @ head.T + e @ tables["bias"].T)
    l1 = np.abs(q - softmax(law)).sum(-1)
    ce = -np.log(q[np.arange(R), part.labels])
    sure = 1 / (1 + np.exp(-(np.concatenate([y, e], 1) @ tables["confidence"][0] + tables["confidence_bias"][0])))
    bce = -((1 - l1 / 2) * np.log(sure) + l1 / 2 * np.log(1 - sure))
    mean = lambda x: (by_block(x) * WEIGHTS).sum() / WEIGHTS.sum()  # noqa: E731
    _, loss, parts = whole(objective, part)
    assert parts["l1"] == pytest.approx(mean(l1), rel=1e-5) and parts["bce"] == pytest.approx(mean(bce), rel=1e-4)
    assert loss == pytest.approx(0.1 * mean(ce) + 0.9 * mean(l1) + mean(bce), rel=1e-5)


@pytest.mark.parametrize("product,table", ((blocks.frozen_product, False), (blocks.trained_product, True)))
def test_products_with_tables_have_the_gradients_of_plain_ones(product, table):
    rng = np.random.default_rng(0)
    x, w, c = (jnp.asarray(rng.standard_normal(shape), jnp.float32) for shape in ((4, 3), (7, 3), (4, 7)))
    ours = jax.grad(lambda x, w: (jnp.sin(product(x, w)) * c).sum(), argnums=(0, 1))(x, w)
    plain = jax.grad(lambda x, w: (jnp.sin(x @ w.T) * c).sum(), argnums=(0, 1))(x, w)
    np.testing.assert_allclose(ours[0], plain[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(ours[1], plain[1] if table else np.zeros((7, 3)), rtol=1e-5, atol=1e-6)
