"""Circumstances two by two. (Each alone: the other files.)"""

import pytest

from tests.exactness.axes import AXES, pairs, run
from tests.exactness.requests import WARM


def test_circumstances_in_pairs(lab):
    drafts = accepted = 0
    for request, circumstances in pairs(28, seed=lab.config.mesh_size):
        answer = run(lab, request, circumstances)
        drafts += answer.stats.num_draft_tokens
        accepted += answer.stats.num_accepted_draft_tokens
    assert 0 < accepted < drafts


@pytest.mark.long
def test_circumstances_in_many_pairs(lab):
    for request, circumstances in pairs(400, seed=100 + lab.config.mesh_size):
        run(lab, request, circumstances)


def test_each_value_of_each_axis(labs):
    lab = labs(1)
    for name, axis in AXES.items():
        for value in axis.values:
            run(lab, WARM, {name: value})
