"""A logprob of decoding is the logprob of reading the same text. (Axis 10.)"""

from tests.exactness.lab import Difference, Request
from tests.exactness.requests import GREEDY, LONG, request

ADJUSTED = request(29, temperature=1.4, top_k=9, repetition_penalty=1.2, logit_bias=((40, 6.0), (41, -3.0)))
WAYS = (GREEDY, ADJUSTED, LONG[0])


def echo(lab, each, answer, rows: int):
    """The prompt logprobs of question and answer together, read in chunks."""
    whole = Request((*each.prompt, *answer.ids), dict(temperature=0.0, max_tokens=1, seed=30, prompt_logprobs=20))
    with lab.chunks(rows):
        scores = next(d.prompt_logprobs for d in lab.ask(whole).deltas if d.prompt_logprobs)
    return [(s.token_id, s.logprob.hex(), s.top) for s in scores[len(each.prompt):]]


def decoded(answer):
    return [(s.token_id, s.logprob.hex(), s.top) for d in answer.deltas for s in d.logprobs]


def check(lab, each, answer, rows: int):
    if echo(lab, each, answer, rows) != decoded(answer):
        raise Difference(f"decoding and reading differ, in chunks of {rows}")


def test_reading_equals_decoding(lab):
    for each in WAYS:
        for rows in (96, 7):
            check(lab, each, lab.oracle(each), rows)


def test_reading_equals_decoding_under_refused_drafts(lab):
    for each in WAYS:
        lab.drafting("liar", each)
        answer = lab.ask(each)
        assert answer.stats.num_accepted_draft_tokens == 0 < answer.stats.num_draft_tokens
        check(lab, each, answer, 64)


def test_reading_equals_decoding_under_accepted_drafts(lab):
    for each in WAYS:
        lab.drafting("oracle", each)
        check(lab, each, lab.ask(each), 64)
