"""Chunks of a prompt, and lengths at the edges of pages. (Axis 5.)"""

from tests.exactness.lab import PAGE
from tests.exactness.requests import LONG, request

CHUNKS = (1, 7, 16, 63, 64, 65)


def test_chunks_of_a_prompt(lab):
    for rows in CHUNKS:
        for each in LONG:
            lab.oracle(each)
            before = lab.engine.stats().steps
            with lab.chunks(rows):
                answer = lab.ask(each, max_draft_tokens=0)
            lab.check(each, answer, f"in chunks of {rows}")
            prefills = lab.engine.stats().steps - before - len(answer.steps)
            assert prefills >= -(-len(each.prompt) // rows) > 1, "the prompt came in chunks"


def test_chunks_with_drafts(lab):
    for rows in (5, 7, 64):
        for each in LONG:
            lab.drafting("pattern", each)
            with lab.chunks(rows):
                answer = lab.check(each, lab.ask(each, max_draft_tokens=4), f"in chunks of {rows}, drafting")
            assert answer.stats.num_accepted_draft_tokens > 0


def test_prompts_that_end_at_the_edge_of_a_page(lab):
    for length in (1, 2, *(n * PAGE + d for n in (1, 2, 4) for d in (-1, 0, 1))):
        each = request(16, length, temperature=0.6, max_tokens=6, prompt_logprobs=3)
        lab.accepting(each, 2)
        with lab.chunks(7):
            lab.check(each, lab.ask(each, max_draft_tokens=3), f"a prompt of {length} tokens in chunks of 7")


def test_verify_rows_across_the_edge_of_a_page(lab):
    for length in range(PAGE - 6, PAGE + 2):
        each = request(17, length, max_tokens=12)
        lab.accepting(each, 3, 1, 5)
        answer = lab.check(each, lab.ask(each, max_draft_tokens=6), f"drafting from position {length}")
        assert answer.steps[:2] == [4, 2]
