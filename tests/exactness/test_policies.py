"""Whatever policy decides the depths, and however often it changes its mind in the middle of an answer. (Axis "policy".)"""

from tests.exactness.axes import AXES, run
from tests.exactness.requests import ALL, GREEDY, LONG, WARM


def test_every_policy_switching_mid_request(lab):
    drafted = {name: sum(run(lab, each, {"policy": name}).stats.num_draft_tokens for each in (GREEDY, WARM))
               for name in AXES["policy"].values}
    assert drafted["off"] == 0 < drafted["fixed"]


def test_policies_in_a_crowd_that_drafts(lab):
    """One plan for sequences of which each has its own record, prompts beside them."""
    for each in [*ALL, *LONG]:
        lab.drafting("pattern", each)
    for name in ("adaptive", "switching"):
        with AXES["policy"].around(lab, GREEDY, name), lab.chunks(48):
            answers = lab.ask_all([*ALL, *LONG], draft_window="adaptive")
            for each, answer in zip([*ALL, *LONG], answers, strict=True):
                lab.check(each, answer, f"in a crowd with policy {name}")
        assert len(lab.depths) > 1 or name == "adaptive"


def test_fixed_and_adaptive_requests_side_by_side(lab):
    for each in ALL:
        lab.oracle(each)
    with lab.held():
        started = [lab.start(each, draft_window=window)[1] for each, window in zip(ALL, ("fixed", "adaptive") * 5, strict=True)]
    for each, answer in zip(ALL, started, strict=True):
        lab.check(each, answer.wait(), "beside requests of the other window")
