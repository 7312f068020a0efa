"""Every family of neural drafters, with random weights, changes no bit at any mesh."""

import pytest

from tests.exactness import neural, test_neural
from tests.exactness.conftest import KIND
from tests.exactness.requests import GREEDY, WARM
from tests.exactness.test_neural import (  # noqa: F401 - run here for each family
    test_a_drafter_that_knows_nothing,
    test_drafts_forced_over_the_drafters,
    test_eight_at_once,
    test_every_circumstance,
    test_the_oracle_is_that_of_an_engine_without_a_drafter,
)

pytestmark = pytest.mark.long
CASES = [(family, tp) for family in neural.NEURAL for tp in (1, 2, 4)]


@pytest.fixture(scope="module", params=CASES, ids=lambda case: f"{case[0]}-tp{case[1]}")
def opened(folder, request):
    family, tp = request.param
    lab = neural.open_lab(KIND[tp], tp, folder, neural.read_drafter(neural.NEURAL[family]))
    yield lab
    lab.close()


@pytest.fixture
def lab(opened):
    opened.forget()
    return opened


def test_another_drafter_gives_the_same_answers(lab):
    """Other weights of the same family: other proposals, the same bits."""
    first = [lab.ask(each).stats.num_accepted_draft_tokens for each in (GREEDY, WARM)]
    with neural.weights(lab, neural.random_tensors(lab.hooks.drafter[0], seed=2)):
        for each in (GREEDY, WARM):
            lab.check(each, lab.ask(each), "with another drafter")
    assert len(first) == 2 and test_neural.DEPTH == lab.depth
