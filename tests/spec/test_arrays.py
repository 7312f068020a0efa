"""Many sequences at once against one at a time: what the policy works out in arrays is what records and bids say singly."""

import random

import numpy as np
import pytest

from radiance_jax.spec.bids import Bid, Bids
from radiance_jax.spec.evidence import LEVELS, LOOKUP_LEVELS, NEURAL, NOTHING
from radiance_jax.spec.record import (
    OWN_KEEP,
    OWN_WEIGHT,
    SHARED_KEEP,
    SHARED_WEIGHT,
    Acceptance,
    Flow,
    chances_of,
    rates_of,
)

PLACES = 5


@pytest.mark.parametrize("bands", (1, 3))
@pytest.mark.parametrize("count", (1, PLACES, PLACES + 2))
def test_rates_of_many_records_are_those_of_each(bands, count):
    """Also of records that lean on different ones, and for places beyond the last."""
    chance = random.Random(bands)
    shared = [Acceptance(PLACES, SHARED_KEEP, SHARED_WEIGHT) for _ in range(bands)]
    records = [Acceptance(PLACES, OWN_KEEP, OWN_WEIGHT, chance.choice(shared)) for _ in range(7)]
    for _ in range(300):
        chance.choice(records[1:]).add(chance.randrange(LEVELS), chance.randrange(PLACES + 1), chance.random() < 0.6)
    for levels in (range(LOOKUP_LEVELS), (NEURAL,)):
        found = rates_of(records, levels, count)
        np.testing.assert_allclose(found, [[record.rates(level, count) for level in levels] for record in records], rtol=1e-12)
    assert len({rates.tobytes() for rates in rates_of(records, range(LOOKUP_LEVELS), count)}) > 5, "they differ"


def test_chances_of_many_flows_are_those_of_each():
    chance, shared = random.Random(0), Flow(SHARED_KEEP, SHARED_WEIGHT)
    flows = [Flow(OWN_KEEP, OWN_WEIGHT, shared) for _ in range(6)]
    steps = range(NOTHING, NOTHING + LOOKUP_LEVELS + 1)
    for _ in range(200):
        chance.choice(flows[1:]).add(chance.choice(steps), chance.choice(steps))
    before = [chance.choice(steps) for _ in flows]
    found = chances_of(flows, before)
    np.testing.assert_allclose(found, [flow.after(level) for flow, level in zip(flows, before, strict=True)], rtol=1e-12)
    np.testing.assert_allclose(found.sum(1), 1)


def test_bids_go_into_arrays_and_come_back():
    bids = [Bid(chance=(0.2, 0.5), gains=((0.9, 0.5), (0.25,)), last=(1, 2)), Bid(chance=(0.1, 0.0), gains=((), ()), fixed=True),
            Bid(chance=(0.3, 0.4), gains=((0.5,), (0.75, 0.5, 0.125)))]
    arrays = Bids.of(bids)
    assert list(arrays) == bids == [arrays[i] for i in range(3)] and arrays[1:] == bids[1:] and Bids.of(arrays) is arrays
    assert arrays.last_depths().tolist() == [list(bid.last_or_none()) for bid in bids]
    assert arrays.deepest.tolist() == [2, 0, 3]
    np.testing.assert_allclose(arrays.mean_gains, [[0.2 * 0.9 + 0.5 * 0.25, 0.2 * 0.5, 0], [0, 0, 0], [0.45, 0.2, 0.05]])
    assert arrays.tokens([(1, 1), (0, 0), (0, 2)]) == pytest.approx(3 + 0.2 * 0.9 + 0.5 * 0.25 + 0.4 * 1.25)
