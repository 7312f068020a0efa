"""Widths that the other tests do not visit: on equals off at each. (Axis 12.)"""

import pytest

from tests.exactness import test_batches, test_closure, test_drafters, test_mesh, test_preemption
from tests.exactness.lab import Lab

KIND = {3: "biased", 5: "untied", 6: "tied", 8: "biased"}
CHECKS = (
    test_drafters.test_lookup, test_drafters.test_a_drafter_that_is_always_right,
    test_drafters.test_a_drafter_that_is_always_wrong,
    test_drafters.test_a_pattern_of_right_and_wrong, test_batches.test_more_requests_than_slots,
    test_batches.test_two_that_draft_side_by_side, test_batches.test_prompts_and_verify_rows_in_one_step,
    test_closure.test_reading_equals_decoding, test_preemption.test_a_preemption_between_verify_steps,
    test_mesh.test_every_rank_holds_the_same_state)


@pytest.mark.long
@pytest.mark.parametrize("tp", KIND)
def test_on_equals_off_at_other_widths(folder, tp):
    lab = Lab.open(KIND[tp], tp, folder)
    try:
        for check in CHECKS:
            lab.forget()
            check(lab)
    finally:
        lab.close()
