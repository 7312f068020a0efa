"""The last positions before the context limit. (Axis 8.)"""

from radiance_jax.bench import forced
from tests.exactness.lab import ENTRIES, LENGTH, VOCAB
from tests.exactness.requests import request


def test_the_last_positions_before_the_limit(lab):
    for room in (1, 2, 3, 5, 9):
        each = request(19, LENGTH - room, max_tokens=None, temperature=0.5)
        expected = lab.oracle(each)
        for pattern in ((lab.depth,), (0,), (1,)):
            lab.propose(each, forced.accepting(pattern, expected.ids, ENTRIES, lab.depth, VOCAB))
            answer = lab.check(each, lab.ask(each), f"{room} positions before the limit, accepting {pattern}")
            assert len(answer.ids) == room and answer.deltas[-1].finish_reason == "length"
