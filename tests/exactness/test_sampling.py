"""Temperature, filters, penalties, bias and choices under drafting and in company. (Axis 9.)"""

from dataclasses import replace

from tests.exactness.lab import Difference
from tests.exactness.requests import ADJUSTED, SAMPLED, prompt, request


def test_noise_belongs_to_the_place_in_the_answer(lab):
    for each in SAMPLED:
        lab.accepting(each, 2, 0, 3)
        answer = lab.check(each, lab.ask(each, max_draft_tokens=4), "noise under drafting")
        assert answer.stats.num_accepted_draft_tokens > 0


def test_noise_does_not_come_from_a_mates_seed(lab):
    for each, answer in zip(SAMPLED, lab.ask_all(SAMPLED, max_draft_tokens=0), strict=True):
        lab.check(each, answer, "noise beside others")


def test_penalties_count_the_drafts_before_a_row_once(lab):
    """A few tokens, some of the prompt, lead far, and which of them comes next is for the penalties to say."""
    few = tuple((token, 60.0) for token in (*prompt(26)[:3], 40, 41, 42))
    each = request(26, frequency_penalty=1.0, presence_penalty=0.5, repetition_penalty=1.3, logit_bias=few)
    lab.accepting(each, 6)
    answer = lab.check(each, lab.ask(each, max_draft_tokens=6), "penalties under drafting")
    assert answer.steps[0] == 7


def test_bias_and_penalties_beside_others(lab):
    for each in ADJUSTED:
        lab.drafting("pattern", each)
    for each, answer in zip(ADJUSTED, lab.ask_all(ADJUSTED, max_draft_tokens=3), strict=True):
        lab.check(each, answer, "adjusted logits beside others")


def test_each_has_the_bias_it_asked_for(lab):
    many = [request(seed, temperature=1.0, logit_bias=((40 + seed, 8.0), (60 + seed, 8.0)), max_tokens=8)
            for seed in range(4, 9)]
    for each, answer in zip(many, lab.ask_all(many), strict=True):
        lab.check(each, answer, "beside others with another bias")


def test_choices_draw_answers_of_their_own(lab):
    choices = [replace(request(27, temperature=1.2), choice=n) for n in range(4)]
    for each in choices:
        lab.oracle(each)
    lab.accepting(choices[0], 2, 1)
    answers = lab.ask_all(choices, max_draft_tokens=3)
    for each, answer in zip(choices, answers, strict=True):
        lab.check(each, answer, f"choice {each.choice} of four")
    if len({tuple(answer.ids) for answer in answers}) < 4:
        raise Difference("choices of one seed gave one answer")


def test_the_engines_own_seed_can_be_asked_for(lab):
    """Without a seed in the request the engine draws one, and only from its own seed."""
    each = request(28, temperature=1.0)
    first = [lab.ask(each.but(seed=None)).ids for _ in range(2)]
    lab.restart()
    again = [lab.ask(each.but(seed=None)).ids for _ in range(2)]
    if first != again:
        raise Difference("an engine's second life draws other seeds")
