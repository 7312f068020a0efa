"""Mates, slots, arrivals and ends of others. (Axis 4.)"""

import time

from tests.exactness.requests import ALL, GREEDY, LONG, WARM, request


def test_every_number_of_mates(lab):
    for count in (2, 3, 4, 5, 7, 8):
        for each in ALL[:count]:
            lab.drafting("pattern", each)
        for each, answer in zip(ALL[:count], lab.ask_all(ALL[:count], max_draft_tokens=5), strict=True):
            lab.check(each, answer, f"one of {count}")
            assert answer.stats.num_draft_tokens > 0


def test_more_requests_than_slots(lab):
    answers = lab.ask_all([*ALL, *LONG])
    for each, answer in zip([*ALL, *LONG], answers, strict=True):
        lab.check(each, answer, "in a crowd of twelve")
    assert len(answers) > lab.built.capacity.slots


def test_a_crowd_without_drafts(lab):
    for each, answer in zip(ALL, lab.ask_all(ALL, max_draft_tokens=0), strict=True):
        lab.check(each, answer, "in a crowd that does not draft")


def test_each_slot(lab):
    for slot in range(lab.built.capacity.slots):
        with lab.slot(slot):
            answer = lab.ask(WARM)
        lab.check(WARM, answer, f"in slot {slot}")


def test_two_that_draft_side_by_side(lab):
    """Proposals, noise and verdicts of one are not those of the other."""
    first, second = request(12, temperature=0.7), request(13, temperature=1.2)
    for one, pattern in ((first, (2, 0, 3)), (second, (0, 4))):
        lab.accepting(one, *pattern)
    answers = lab.ask_all([first, second], max_draft_tokens=4)
    for each, answer, pattern in ((first, answers[0], [3, 1, 4]), (second, answers[1], [1, 5, 1])):
        lab.check(each, answer, "beside another that drafts")
        assert answer.steps[:3] == pattern


def test_prompts_and_verify_rows_in_one_step(lab):
    """A prompt arrives while others verify; chunks and drafts share steps."""
    mates = [request(14, max_tokens=40, temperature=0.5), request(15, max_tokens=40)]
    for each in mates:
        lab.drafting("liar", each)
    for each in LONG:
        lab.oracle(each)
    with lab.chunks(16):
        started = [lab.start(each, max_draft_tokens=3)[1] for each in mates]
        while not started[0].deltas:
            time.sleep(1e-3)
        late = [lab.start(each)[1] for each in LONG]
        for each, answer in zip([*mates, *LONG], [*started, *late], strict=True):
            lab.check(each, answer.wait(), "prompts beside verify rows")


def test_mates_that_leave(lab):
    """Aborted at any time, beside one that stays; the slots and pages they leave are used again."""
    lab.drafting("pattern", GREEDY)
    for count in range(1, 5):
        with lab.held():
            leaving = [lab.start(each, max_tokens=60) for each in ALL[2:5]]
            stays = lab.start(GREEDY, max_draft_tokens=4)[1]
        while len(leaving[0][1].deltas) < count and not stays.done.is_set():
            time.sleep(2e-4)
        for number, _ in leaving:
            lab.engine.abort(number)
        again = lab.start(WARM)[1]
        lab.check(GREEDY, stays.wait(), "beside some that leave")
        lab.check(WARM, again.wait(), "where others have been")
        assert any(answer.wait().deltas[-1].finish_reason == "abort" for _, answer in leaving)


def test_the_same_request_again(lab):
    """What an engine has done before leaves no trace."""
    for _ in range(2):
        for each in (GREEDY, WARM):
            lab.check(each, lab.ask(each, max_draft_tokens=0), "once more")
