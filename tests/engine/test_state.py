"""What the host packs is what the device reads, to the bit; and what an admission does to its slot and to no other."""

import struct
from dataclasses import fields
from functools import partial

import jax
import numpy as np
import pytest

from radiance_jax.engine.request import SamplingParams
from radiance_jax.engine.state import (DECODE, IDLE, PREFILL, SLOT_FIELDS, STOPS, Capacity, admission_size,
                                       pack_admission, pack_plan, state_specs, unpack_admission, unpack_results)
from radiance_jax.engine.steps import lower_admission
from radiance_jax.mesh import ArraySpec, make_mesh, zeros

CAPACITY = Capacity(slots=3, length=40, rows=16, pages=12, page_size=8, depth=4)
VOCAB = 64
UNPACK = jax.jit(partial(unpack_admission, CAPACITY))
NEVER_NEUTRAL = dict(temperature=0.7, top_k=-1, top_p=0.9, min_p=0.1, presence_penalty=-0.3, frequency_penalty=0.1,
                     repetition_penalty=1.1, min_tokens=2, logit_bias=((3, -100.0), (9, 0.1), (3, 40.0)))


def admission(params=None, *, slot=1, tokens=range(5), prompt=5, seed=0, stops=(), pages=(4, 2), limit=30, choice=0):
    return pack_admission(CAPACITY, slot=slot, pages=list(pages), tokens=list(tokens), prompt=prompt, limit=limit,
                          params=params or SamplingParams(), seed=seed, choice=choice, stops=list(stops))


def unpacked(packed: np.ndarray) -> dict[str, np.ndarray]:
    return {name: np.asarray(value) for name, value in UNPACK(packed).items()}


def test_every_field_of_an_admission_comes_back():
    params = SamplingParams(**NEVER_NEUTRAL, logprobs=3)
    packed = admission(params, tokens=range(10, 17), prompt=5, stops=(2, 50), choice=6, limit=33)
    assert packed.dtype == np.int32 and packed.shape == (admission_size(CAPACITY),)
    f = unpacked(packed)
    whole = dict(slot=1, length=7, computed=0, prompt=5, limit=33, wants_top=1, wants_prompt=0, top_k=0, min_tokens=2,
                 choice=6, adjusts=1)
    assert {name: int(f[name]) for name in whole} == whole
    real = dict(temperature=0.7, top_p=0.9, min_p=0.1, presence=-0.3, frequency=0.1, repetition=1.1)
    assert {name: f[name].tobytes() for name in real} == {name: np.float32(x).tobytes() for name, x in real.items()}
    assert f["stops"].tolist() == [2, 50] + [-1] * (STOPS - 2)
    assert f["bias_ids"][:4].tolist() == [3, 9, 3, -1] and (f["bias_ids"][3:] == -1).all()
    assert f["bias_values"][:3].tobytes() == np.array([-100.0, 0.1, 40.0], np.float32).tobytes()
    assert f["table"].tolist() == [4, 2, 0, 0, 0]
    assert f["tokens"][:7].tolist() == list(range(10, 17))


@pytest.mark.parametrize("seed", (0, 1, 2**31, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1, -1, -(2**31), -(2**63),
                                  0x123456789ABCDEF0))
def test_a_seed_keeps_its_64_bits(seed):
    f = unpacked(admission(seed=seed))
    words = [int(f[name]) & 0xFFFFFFFF for name in ("seed_low", "seed_high")]
    assert words[0] | words[1] << 32 == seed % 2**64


@pytest.mark.parametrize("value", (1.0, 0.1, 1e-3, 99.99999, 1 / 3))
def test_a_float_keeps_its_f32_bits(value):
    bits = unpacked(admission(SamplingParams(temperature=value)))["temperature"].tobytes()
    assert bits == struct.pack("<f", value)


@pytest.mark.parametrize("change", (dict(presence_penalty=0.1), dict(frequency_penalty=-0.1), dict(min_tokens=1),
                                    dict(logit_bias=((1, 1.0),)), dict(repetition_penalty=1.01)))
def test_whatever_adjusts_logits_says_so(change):
    assert int(unpacked(admission(SamplingParams(**change)))["adjusts"]) == 1
    assert int(unpacked(admission(SamplingParams(temperature=0.5, top_k=3, top_p=0.5, min_p=0.5)))["adjusts"]) == 0


@pytest.mark.parametrize(("asked", "top", "prompt"), (
    (dict(), 0, 0), (dict(logprobs=0), 0, 0), (dict(logprobs=1), 1, 0), (dict(prompt_logprobs=0), 0, 1),
    (dict(prompt_logprobs=2), 1, 1)))
def test_logprobs_asked_for_are_flagged(asked, top, prompt):
    f = unpacked(admission(SamplingParams(**asked)))
    assert (int(f["wants_top"]), int(f["wants_prompt"])) == (top, prompt)


def test_the_largest_admission_fits():
    bias = tuple((i % VOCAB, float(i % 100)) for i in range(512))
    f = unpacked(admission(SamplingParams(logit_bias=bias), tokens=range(40), stops=range(STOPS), pages=range(1, 6)))
    assert f["bias_ids"].tolist() == [i for i, _ in bias] and f["bias_values"].tolist() == [x for _, x in bias]
    assert f["stops"].tolist() == list(range(STOPS))
    assert f["table"].tolist() == list(range(1, 6)) and f["tokens"].tolist() == list(range(40))


def test_a_plan_holds_slots_by_number_and_page_updates_behind_them():
    plan = pack_plan(CAPACITY, [(2, DECODE, 0, 4), (0, PREFILL, 7, 0)], [(2, 3, 9), (0, 1, 5)])
    assert plan.dtype == np.int32
    assert plan[:3].tolist() == [[PREFILL, 7, 0], [IDLE, 0, 0], [DECODE, 0, 4]]
    assert plan[3:].tolist() == [[2, 3, 9], [0, 1, 5]] + [[-1] * 3] * (CAPACITY.updates - 2)


def test_a_plan_refuses_more_page_updates_than_it_carries():
    pack_plan(CAPACITY, [], [(0, 0, 1)] * CAPACITY.updates)
    with pytest.raises(AssertionError, match="more page-table updates"):
        pack_plan(CAPACITY, [], [(0, 0, 1)] * (CAPACITY.updates + 1))


def test_results_come_back_by_slot_and_by_row():
    rng = np.random.default_rng(0)
    slots = rng.integers(0, 99, (CAPACITY.slots, SLOT_FIELDS)).astype(np.int32)
    tokens = rng.integers(0, VOCAB, 16).astype(np.int32)
    logprobs = np.array([-0.0, -np.inf, np.nan, -1e-30] * 4, np.float32)
    results = unpack_results(CAPACITY, np.concatenate([slots.reshape(-1), tokens, logprobs.view(np.int32)]))
    np.testing.assert_array_equal(results.slots, slots)
    np.testing.assert_array_equal(results.tokens, tokens)
    assert results.logprobs.tobytes() == logprobs.tobytes()


@pytest.fixture(scope="module")
def admit():
    """The state after some admissions into an empty one."""
    mesh = make_mesh(1)
    program = lower_admission(CAPACITY, VOCAB, mesh, admission_size(CAPACITY)).compile()

    def state_after(*admissions: np.ndarray):
        specs = state_specs(CAPACITY, VOCAB)
        state = jax.tree.map(lambda s: zeros(s, mesh), specs, is_leaf=lambda s: isinstance(s, ArraySpec))
        for packed in admissions:
            state = program(state, packed)
        return jax.tree.map(np.asarray, state)

    return state_after


FULL = dict(params=SamplingParams(**NEVER_NEUTRAL), tokens=(7, 7, 8, 3, 9, 9, 3), prompt=4, stops=(2,), seed=-5,
            choice=1)


def test_an_admission_counts_prompt_and_output_apart_and_adds_biases_up(admit):
    state = admit(admission(**FULL))
    assert np.flatnonzero(state.seen[1]).tolist() == [3, 7, 8]
    assert {int(t): int(state.counts[1, t]) for t in np.flatnonzero(state.counts[1])} == {3: 1, 9: 2}
    expected = np.zeros(VOCAB, np.float32)
    expected[[3, 9]] = (-60.0, 0.1)
    np.testing.assert_array_equal(state.bias[1], expected)
    assert state.draw.seed[1].tolist() == [2**32 - 5, 2**32 - 1]
    assert state.tokens[1].tolist() == [7, 7, 8, 3, 9, 9, 3] + [0] * (CAPACITY.length + CAPACITY.depth + 1 - 7)
    assert (state.length[1], state.computed[1], state.prompt[1], state.limit[1]) == (7, 0, 4, 30)
    assert state.draw.adjusts.dtype == bool and state.draw.adjusts.tolist() == [False, True, False]


def test_an_admission_leaves_nothing_of_the_slots_last_owner_and_touches_no_other(admit):
    neighbour, plain = admission(**FULL | dict(slot=2)), admission(seed=3, tokens=(1, 2), prompt=2, pages=(3,))
    reused, fresh = admit(neighbour, admission(**FULL), plain), admit(neighbour, plain)
    for item in fields(reused):
        leaves = (jax.tree.leaves(getattr(state, item.name)) for state in (reused, fresh))
        for a, b in zip(*leaves, strict=True):
            np.testing.assert_array_equal(a, b, err_msg=item.name)
    alone = admit(neighbour)
    for a, b in zip(jax.tree.leaves(reused), jax.tree.leaves(alone), strict=True):
        np.testing.assert_array_equal(a[[0, 2]], b[[0, 2]])
