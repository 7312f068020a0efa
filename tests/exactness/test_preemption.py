"""A sequence that gives its pages back and is computed again, at any time. (Axis 7.)"""

from tests.exactness.requests import ADJUSTED, GREEDY, LONG, WARM, request


def test_a_preemption_before_each_step(lab):
    each = request(18, temperature=0.9, frequency_penalty=0.4, max_tokens=12)
    lab.oracle(each)
    for step in range(1, 12):
        with lab.preempting(step) as done:
            answer = lab.ask(each, max_draft_tokens=0)
        lab.check(each, answer, f"preempted before step {step}")
        assert answer.stats.preemptions == len(done) == 1, "it was preempted"


def test_a_preemption_between_verify_steps(lab):
    for each in (WARM, *ADJUSTED):
        lab.accepting(each, 2, 0, 1)
        for step in (2, 3, 4):
            with lab.preempting(step) as done:
                answer = lab.ask(each, max_draft_tokens=3)
            lab.check(each, answer, f"preempted before step {step}, drafting")
            assert done and answer.stats.preemptions == 1 and answer.stats.num_draft_tokens > 0


def test_several_preemptions_of_one_answer(lab):
    lab.accepting(GREEDY, 1)
    with lab.preempting(1, 2, 5, 6, 9) as done:
        answer = lab.ask(GREEDY, max_draft_tokens=2)
    lab.check(GREEDY, answer, "preempted again and again")
    assert answer.stats.preemptions == len(done) > 2


def test_a_prompt_sent_away_between_its_chunks(lab):
    for each in LONG:
        lab.oracle(each)
        with lab.chunks(16), lab.preempting(3) as done:
            answer = lab.ask(each, max_draft_tokens=0)
        lab.check(each, answer, "preempted inside its prompt")
        assert answer.stats.preemptions == len(done) == 1


def test_a_pool_that_runs_dry(lab):
    many = [request(seed, 40, max_tokens=50, temperature=seed % 2 * 0.8) for seed in range(20, 26)]
    for each in many:
        lab.oracle(each)
    for drafter in ("lookup", "liar"):
        for each in many:
            lab.drafting(drafter, each)
        before = lab.scheduler.preemptions
        with lab.pool(16):
            answers = lab.ask_all(many)
        for each, answer in zip(many, answers, strict=True):
            lab.check(each, answer, f"in a small pool, with {drafter}")
        assert lab.scheduler.preemptions > before, "the pool ran dry"


def test_abort_and_try_again(lab):
    for count in (1, 3):
        number, answer = lab.start(WARM)
        while len(answer.deltas) < count and not answer.done.is_set():
            pass
        lab.engine.abort(number)
        answer.wait()
        lab.check(WARM, lab.ask(WARM), "tried again")
