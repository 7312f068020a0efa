"""With the promise off, the same comparisons must find differences: they can see what the promise forbids."""

import pytest

from tests.exactness.lab import Difference, Lab
from tests.exactness.requests import ALL


def test_without_the_promise_drafting_and_company_change_bits(folder):
    """One program per row count: a row alone goes through another product than a row with company."""
    lab = Lab.open("tied", 1, folder, bit_exact="off", max_num_seqs=2, max_num_batched_tokens=2,
                   num_speculative_tokens=1, max_model_len=128)
    try:
        assert lab.built.device._programs.steps.keys() == {1, 2}
        for each in ALL[:4]:
            lab.drafting("oracle", each)
            with pytest.raises(Difference):
                answer = lab.ask(each)
                assert answer.stats.num_accepted_draft_tokens > 0
                lab.check(each, answer, "drafting with the promise off")
        found = 0
        for pair in (ALL[:2], ALL[2:4]):
            for each, answer in zip(pair, lab.ask_all(pair, max_draft_tokens=0), strict=True):
                try:
                    lab.check(each, answer, "in company with the promise off")
                except Difference:
                    found += 1
        assert found > 0
    finally:
        lab.close()
