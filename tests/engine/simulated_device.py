"""A device for scheduler tests: it keeps what the real one keeps, draws by a hash, and checks every key it reads.

The answer of a sequence is a pure function of its id; the device drafts right and wrong tokens at random, so how many
a step commits is random, what it commits is not.
"""

import random
from collections import defaultdict
from dataclasses import dataclass, field

from radiance_jax.engine.request import RequestStats, SamplingParams
from radiance_jax.engine.scheduler import Entry, Plan
from radiance_jax.engine.sequence import Sequence
from radiance_jax.engine.state import DECODE, PREFILL, Capacity

EOS, HOST_STOP = 0, 1  # HOST_STOP stands for a stop string: the device knows nothing of it


def token_at(sequence_id: int, position: int, mean_length: int) -> int:
    """The token the target draws there: now and then one that ends the answer."""
    chance = random.Random(sequence_id * 10007 + position)
    ends = chance.random() < 1 / mean_length
    return chance.choice((EOS, HOST_STOP)) if ends else chance.randrange(2, 9)


def answer(sequence: Sequence, mean_length: int) -> list[int]:
    """All tokens of a sequence, prompt included, had it been alone."""
    tokens = list(sequence.prompt)
    while len(tokens) < sequence.limit:
        tokens.append(token_at(sequence.id, len(tokens), mean_length))
        if tokens[-1] in (EOS, HOST_STOP):
            break
    return tokens


def make_sequence(number: int, prompt: int, limit: int) -> Sequence:
    ids = tuple(2 + (number + i) % 7 for i in range(prompt))
    return Sequence(id=number, prompt=ids, params=SamplingParams(), choice=0, seed=0, stops=(EOS,), limit=limit,
                    stream=None, on_delta=lambda _: None, stats=RequestStats(prompt_tokens=prompt), tokens=list(ids))


@dataclass
class Slot:
    """`tokens` are the committed ones; `computed` of them have keys in the pool."""

    owner: int
    limit: int
    tokens: list[int]
    table: list[int]
    computed: int = 0
    done: bool = False


@dataclass
class SimulatedDevice:
    capacity: Capacity
    chance: random.Random
    mean_length: int
    slots: dict[int, Slot] = field(default_factory=dict)
    # (page, offset) -> owner, position, token
    pool: dict[tuple[int, int], tuple[int, int, int]] = field(default_factory=dict)
    committed: dict[int, int] = field(default_factory=lambda: defaultdict(int))  # tokens in a step -> steps

    def admit(self, sequence: Sequence) -> None:
        table = sequence.pages + [0] * (self.capacity.table_width - len(sequence.pages))
        self.slots[sequence.slot] = Slot(sequence.id, sequence.limit, list(sequence.tokens), table)

    def send(self, plan: Plan) -> dict[int, tuple[list[int], bool]]:
        """Runs a step: by slot, the tokens it commits and whether the last one ends the sequence."""
        assert len(plan.pages) <= self.capacity.updates
        for slot, index, page in plan.pages:
            self.slots[slot].table[index] = page
        drafted = {entry.slot: self._drafts(entry) for entry in plan.entries}
        rows = [row for entry in plan.entries for row in self._rows(entry, drafted[entry.slot])]
        assert len(rows) <= self.capacity.rows
        places = [self._place(slot, position) for slot, position, _ in rows]
        assert len(set(places)) == len(places), "two rows of a step write to one place"
        for (slot, position, token), place in zip(rows, places, strict=True):
            self.pool[place] = (slot.owner, position, token)
        return {entry.slot: self._commit(entry, drafted[entry.slot]) for entry in plan.entries}

    def _drafts(self, entry: Entry) -> list[int]:
        """Right tokens up to a random point, then perhaps a wrong one and more."""
        slot = self.slots[entry.slot]
        if entry.mode != DECODE or slot.done:
            return []
        count = self.chance.randint(0, max(min(entry.depth, slot.limit - len(slot.tokens) - 1), 0))
        right = self.chance.randint(0, count)
        at = len(slot.tokens)
        drafts = [token_at(slot.owner, at + i, self.mean_length) for i in range(count)]
        return [token if i < right else token + 1 for i, token in enumerate(drafts)]

    def _rows(self, entry: Entry, drafts: list[int]) -> list[tuple[Slot, int, int]]:
        """(slot, position, token) of an entry's rows."""
        slot = self.slots[entry.slot]
        if slot.done:
            return []
        count = entry.chunk if entry.mode == PREFILL else 1 + len(drafts)
        if entry.mode == DECODE:
            assert slot.computed == len(slot.tokens) - 1, "decoding before its prompt is computed"
        written = slot.tokens + drafts
        assert slot.computed + count <= len(written)
        return [(slot, slot.computed + i, written[slot.computed + i]) for i in range(count)]

    def _place(self, slot: Slot, position: int) -> tuple[int, int]:
        page = slot.table[position // self.capacity.page_size]
        assert 1 <= page < self.capacity.pages, f"no page for position {position}"
        return page, position % self.capacity.page_size

    def _commit(self, entry: Entry, drafts: list[int]) -> tuple[list[int], bool]:
        slot = self.slots[entry.slot]
        if slot.done:
            return [], False
        if entry.mode == PREFILL:
            slot.computed += entry.chunk
            assert entry.last == (slot.computed == len(slot.tokens))
            if not entry.last:
                return [], False
        tokens: list[int] = []
        for draft in [*drafts, None]:
            tokens.append(token_at(slot.owner, len(slot.tokens), self.mean_length))
            self._check_keys(slot)
            slot.tokens.append(tokens[-1])
            slot.done = tokens[-1] == EOS or len(slot.tokens) == slot.limit
            if slot.done or draft != tokens[-1]:
                break
        slot.computed = len(slot.tokens) - 1
        self.committed[len(tokens)] += 1
        return tokens, slot.done

    def _check_keys(self, slot: Slot) -> None:
        """What the next draw attends to is this sequence's own text, all of it."""
        for position, token in enumerate(slot.tokens):
            assert self.pool.get(self._place(slot, position)) == (slot.owner, position, token), "a stale key is read"
