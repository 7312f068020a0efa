"""Whatever proposes, whatever is accepted, however deep: the same answer. (Axes 1, 2 and 3.)"""

import numpy as np

from tests.exactness.lab import DRAFTERS
from tests.exactness.requests import ALL, GREEDY, WARM


def test_lookup(lab):
    answers = [lab.check(each, lab.ask(each), "with lookup") for each in ALL]
    assert sum(each.stats.num_draft_tokens for each in answers) > 0


def test_a_drafter_that_is_always_right(lab):
    for each in ALL:
        lab.drafting("oracle", each)
        answer = lab.check(each, lab.ask(each), "with right drafts")
        assert answer.stats.num_decode_steps == 1, "one step verifies a whole answer"
        if answer.deltas[-1].finish_reason == "length":
            assert answer.stats.num_accepted_draft_tokens == answer.stats.num_draft_tokens > 0


def test_a_drafter_that_is_always_wrong(lab):
    for each in ALL:
        lab.drafting("liar", each)
        answer = lab.check(each, lab.ask(each), "with wrong drafts")
        assert answer.stats.num_accepted_draft_tokens == 0 < answer.stats.num_draft_tokens
        assert set(answer.steps) == {1}


def test_a_pattern_of_right_and_wrong(lab):
    for each in ALL:
        lab.drafting("pattern", each)
        answer = lab.check(each, lab.ask(each, max_draft_tokens=7), "with a pattern")
        right = answer.stats.num_accepted_draft_tokens
        assert 0 < right < answer.stats.num_draft_tokens


def test_the_target_as_its_own_drafter(lab):
    for each in ALL:
        lab.drafting("self", each)
        answer = lab.check(each, lab.ask(each, max_draft_tokens=5), "with its own drafts")
        assert answer.stats.num_draft_tokens > 0
    assert answer.stats.num_draft_tokens > answer.stats.num_accepted_draft_tokens


def test_hostile_drafts(lab):
    """Ids outside the vocabulary, negative ones, the end token."""
    for each in ALL:
        lab.drafting("evil", each)
        answer = lab.check(each, lab.ask(each), "with hostile drafts")
        assert answer.stats.num_draft_tokens > 0


def test_every_drafter_of_the_list_has_a_test():
    assert set(DRAFTERS) == {"lookup", "oracle", "liar", "pattern", "self", "evil"}, "give a new drafter its test"


def test_refusing_at_each_place_of_a_run(lab):
    for accepted in range(8):
        lab.accepting(WARM, accepted)
        answer = lab.check(WARM, lab.ask(WARM, max_draft_tokens=7), f"accepting {accepted} of 7 each time")
        assert answer.steps[:-1] == [accepted + 1] * (len(answer.steps) - 1), "accepted as forced"


def test_a_random_pattern(lab):
    chance = np.random.default_rng(3)
    for each in (GREEDY, WARM):
        pattern = chance.integers(0, 5, 20).tolist()
        lab.accepting(each, *pattern)
        answer = lab.check(each, lab.ask(each, max_draft_tokens=6), f"accepting {pattern}")
        assert answer.steps[:-1] == [right + 1 for right in pattern[:len(answer.steps) - 1]]


def test_every_depth(lab):
    lab.accepting(WARM, lab.depth)
    for depth in (*range(17), lab.depth):
        answer = lab.check(WARM, lab.ask(WARM, max_draft_tokens=depth), f"{depth} deep")
        assert max(answer.steps) == min(depth + 1, len(answer.ids) - 1)


def test_a_request_without_drafts_beside_drafting_ones(lab):
    lab.drafting("pattern", GREEDY)
    answers = lab.ask_all([GREEDY, WARM.but(max_draft_tokens=0)])
    lab.check(GREEDY, answers[0], "beside one that does not draft")
    lab.check(WARM.but(max_draft_tokens=0), answers[1], "beside one that drafts")
    assert answers[0].stats.num_draft_tokens > 0 == answers[1].stats.num_draft_tokens
