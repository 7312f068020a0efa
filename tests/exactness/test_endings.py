"""A stop token, the end token, a stop string and the length cap, at each place of an accepted run. (Axis 2, 9.)"""

from dataclasses import replace

from radiance_jax.bench import forced
from tests.exactness import targets
from tests.exactness.lab import ENTRIES, VOCAB
from tests.exactness.requests import request

DEPTH = 6


def scripted(seed: int, **params):
    """A request whose answer is known: the script after its last token, twice."""
    return request(seed, 9, **{"max_tokens": 16} | params)


def answer_of(asked) -> list[int]:
    return targets.script(asked.prompt[-1], asked.params["max_tokens"])


def ask_both_ways(lab, asked):
    """As accepted runs of DEPTH + 1, and of changing length."""
    for pattern in ((DEPTH,), (2, 0, DEPTH, 1)):
        lab.accepting(asked.but(stop_token_ids=(), stop=(), min_tokens=0, ignore_eos=True), *pattern)
        answer = lab.check(asked, lab.ask(asked, max_draft_tokens=DEPTH), f"accepting {pattern}")
        assert answer.stats.num_accepted_draft_tokens > 0 or len(answer.ids) < 3
    return answer


def test_the_script_is_written(script_lab):
    asked = scripted(20)
    assert script_lab.oracle(asked).ids == answer_of(asked)
    ask_both_ways(script_lab, asked)


def test_a_stop_token_at_each_place(script_lab):
    for place in range(1, 10):
        asked = scripted(21, temperature=0.3)
        asked = asked.but(stop_token_ids=(answer_of(asked)[place],))
        answer = ask_both_ways(script_lab, asked)
        assert len(answer.ids) == place + 1 and answer.deltas[-1].finish_reason == "stop"


def test_the_end_token_at_each_place(script_lab):
    for place in range(1, 10):
        asked = replace(scripted(31, ignore_eos=False), prompt=(5, 6, targets.before_the_end(place)))
        answer = ask_both_ways(script_lab, asked)
        assert answer.ids[-1] == targets.END and len(answer.ids) == place + 1
        assert answer.deltas[-1].finish_reason == "stop"


def test_the_length_cap_at_each_place(script_lab):
    for tokens in range(1, 10):
        asked = scripted(22).but(max_tokens=tokens)
        script_lab.propose(asked, _deep(script_lab, asked))
        answer = script_lab.check(asked, script_lab.ask(asked, max_draft_tokens=DEPTH), f"{tokens} tokens at most")
        assert len(answer.ids) == tokens and answer.deltas[-1].finish_reason == "length"


def test_a_stop_string_at_each_place(script_lab):
    for place in range(1, 10):
        asked = scripted(23)
        ids = answer_of(asked)
        asked = asked.but(stop=(f"w{ids[place]}w{ids[place + 1]}",))  # begins in one token and ends in the next
        answer = ask_both_ways(script_lab, asked)
        assert len(answer.ids) == place + 2 and answer.deltas[-1].stop_reason == asked.params["stop"][0]


def test_a_minimum_of_tokens_inside_a_run(script_lab):
    """Stop tokens may not be drawn before the minimum, wherever the steps begin."""
    for place in range(1, 10):
        for least in (place, place + 1):
            asked = scripted(24, temperature=0.3)
            asked = asked.but(stop_token_ids=(answer_of(asked)[place],), min_tokens=least)
            script_lab.accepting(asked, DEPTH)
            answer = script_lab.check(asked, script_lab.ask(asked, max_draft_tokens=DEPTH), f"at least {least} tokens")
            assert (len(answer.ids) == place + 1) == (least == place)


def test_a_draft_that_is_the_end_token(script_lab):
    """The end token as a draft, refused, ends nothing."""
    asked = scripted(25).but(ignore_eos=False)
    script_lab.drafting("evil", asked)
    answer = script_lab.check(asked, script_lab.ask(asked), "with end tokens proposed")
    assert answer.deltas[-1].finish_reason == "length" and answer.stats.num_draft_tokens > 0


def _deep(lab, asked):
    """The script as drafts, further than the cap reaches."""
    return forced.accepting((DEPTH,), targets.script(asked.prompt[-1], 40), ENTRIES, lab.depth, VOCAB)
