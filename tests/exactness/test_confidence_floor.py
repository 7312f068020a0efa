"""`--draft-p-min` with a drafter that tells its confidence: proposals of all lengths, and no bit changes."""

from collections import Counter
from dataclasses import replace
from unittest.mock import patch

import pytest

from radiance_jax.engine import results
from tests.exactness import neural
from tests.exactness.requests import ALL

FLOOR, SEED = 0.5, 2  # of weights whose confidence lies on both sides of the floor


@pytest.mark.slow
def test_proposals_cut_by_confidence_change_no_bit(folder):
    drafter = neural.read_drafter(neural.NEURAL["dspark"])
    lab = neural.open_lab("untied", 1, folder, drafter, draft_p_min=FLOOR)
    # The planner cuts by the floor as well, from what was accepted, and random drafts never are: here the device cuts alone.
    lab.built = replace(lab.built, rules=replace(lab.built.rules, p_min=0.0))
    lab.restart()
    verified, count, asked = Counter(), results.Reader._count_verify, [each.but(max_tokens=40) for each in ALL]

    def counted(reader, sequence, drafts, *rest):
        if sequence.limit - len(sequence.tokens) > 2 * (1 + lab.depth):  # the end of the answer is far: only the floor cuts
            verified[drafts] += 1
        return count(reader, sequence, drafts, *rest)

    try:
        with neural.weights(lab, neural.random_tensors(drafter, SEED)), patch.object(results.Reader, "_count_verify", counted):
            for each in asked:
                lab.check(each, lab.ask(each), f"cut at {FLOOR}")
            for each, answer in zip(asked, lab.ask_all(asked), strict=True):
                lab.check(each, answer, f"cut at {FLOOR}, in a crowd")
        assert set(verified) == set(range(lab.depth + 1)), verified
    finally:
        lab.close()
