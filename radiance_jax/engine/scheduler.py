"""Who takes part in the next step. Plans from counts one step old and never needs a token to plan.

Decoding sequences come first, each with its anchor and the draft depths that the policy gives it; what is left of the row
budget goes to prompts in order of arrival. Drafts leave a share of it to prompts that are under way: else a few sequences that
draft deep would keep everybody else from beginning until they end. When the pool runs dry the youngest sequence gives its
pages back and is computed again later, from its own tokens, to the same bits.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice

from radiance_jax.engine.pages import PagePool
from radiance_jax.engine.sequence import Sequence
from radiance_jax.engine.state import DECODE, PREFILL, Capacity
from radiance_jax.spec import evidence
from radiance_jax.spec.evidence import Depths

PROMPT_SHARE = 8  # of the rows of a step, one in so many is kept from drafts while a prompt is being read

# (decoding sequences and the most drafts each may verify, rows that prompts would fill) -> depths by level of evidence
Choose = Callable[[list[tuple[Sequence, int]], int], list[Depths]]


@dataclass(frozen=True)
class Entry:
    """One sequence's part in a step. `depth` is the most drafts it may verify whatever the evidence, `depths` by level of
    evidence (empty: `depth` for all), `cap` what the policy might have given it; `last`: whether a prefill chunk is the one
    that draws, `first` the position of its first row (prefill)."""

    sequence: Sequence
    slot: int
    mode: int
    chunk: int = 0
    depth: int = 0
    first: int = 0
    last: bool = False
    depths: Depths = ()
    cap: int = 0

    @property
    def packed_depths(self) -> int:
        """As the device wants them."""
        if self.mode != DECODE or not self.depth:  # `depth` bounds them all
            return 0
        return evidence.pack(self.depths or evidence.alike(self.depth))

    @property
    def most_rows(self) -> int:
        return self.chunk if self.mode == PREFILL else 1 + self.depth

    @property
    def draws(self) -> bool:
        return self.mode == DECODE or self.last


@dataclass
class Plan:
    entries: list[Entry] = field(default_factory=list)
    pages: list[tuple[int, int, int]] = field(default_factory=list)  # (slot, index, page)
    admitted: list[Sequence] = field(default_factory=list)

    @property
    def rows(self) -> int:
        return sum(entry.most_rows for entry in self.entries)


def always(depth_of: Callable[[Sequence], int]) -> Choose:
    """A policy that asks `depth_of(sequence)` and looks at nothing else."""
    return lambda wants, prompts: [evidence.alike(min(depth_of(sequence), cap)) for sequence, cap in wants]


class Scheduler:
    def __init__(self, capacity: Capacity, choose: Choose):
        """`choose` is the drafting policy's word for the next step."""
        self.capacity = capacity
        self.pool = PagePool(capacity.pages)
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []  # in order of admission: the last is the youngest
        self.free_slots = list(range(capacity.slots - 1, -1, -1))
        self.preemptions = 0
        self.budget = capacity.budget or capacity.rows  # rows a step may fill; tests lower it to cut prompts into small chunks
        self._choose = choose

    def add(self, sequence: Sequence) -> None:
        self.waiting.append(sequence)

    def release(self, sequence: Sequence) -> None:
        """Takes a sequence out of everything. Its pages and slot may be given on at once: the device runs steps in
        order, so whatever a step in flight still writes there is written before the next owner writes."""
        if sequence.slot is not None:
            self.free_slots.append(sequence.slot)
            self.pool.give(sequence.pages)
            sequence.slot, sequence.pages = None, []
            self.running.remove(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)

    def idle(self) -> bool:
        return not self.running and not self.waiting

    def reclaim(self) -> int:
        """Frees what is held while no sequence is there to hold it. Returns the pages found; 0 is how it should be."""
        if not self.idle():
            return 0
        lost, self.pool = self.pool.used, PagePool(self.capacity.pages) if self.pool.used else self.pool
        return lost

    def plan(self) -> Plan:
        plan, before = Plan(), self.preemptions
        decoding = [s for s in self.running if not s.prefilling]
        budget = self.budget
        begun = sum(s.target - s.planned for s in self.running if s.prefilling)
        kept = min(begun, max(budget // PROMPT_SHARE, 1))
        fair = (budget - kept) // max(len(decoding), 1) - 1  # so that every decoding sequence fits
        wants = [(s, max(min(self.capacity.depth, s.room() - 1, fair), 0)) for s in decoding if s.room() > 0]
        chosen = self._choose(wants, min(begun + self._rows_to_begin(), max(budget - len(wants), 0)))
        lacking = [self._lacking(sequence, len(sequence.tokens) + sequence.pending) for sequence, _ in wants]
        later = sum(lacking)  # pages for the anchors of those whose turn is still to come
        for (sequence, cap), depths, lack in zip(wants, chosen, lacking, strict=True):
            later -= lack
            if sequence.slot is None or budget <= 0:
                continue  # preempted just now
            tokens = len(sequence.tokens) + sequence.pending
            depth = min(max(depths), cap, self._drafts_that_fit(sequence, tokens, later))
            depths = tuple(min(each, depth) for each in depths)
            if self._grow(sequence, tokens + depth, plan):
                budget -= 1 + depth
                self._enter(plan, Entry(sequence, sequence.slot, DECODE, depth=depth, depths=depths, cap=cap), pending=1 + depth)
        if self.preemptions == before:
            self._admit(plan)
        for sequence in self.running:
            chunk = min(sequence.target - sequence.planned, budget)
            if sequence.prefilling and chunk > 0:
                budget -= chunk
                first, last = sequence.planned, sequence.planned + chunk == sequence.target
                sequence.planned += chunk
                entry = Entry(sequence, sequence.slot, PREFILL, chunk=chunk, first=first, last=last)
                self._enter(plan, entry, pending=int(last))
        return plan

    def _rows_to_begin(self) -> int:
        """Rows of the prompts that are about to get a slot."""
        rows, taken, running = 0, 0, len(self.running)
        for number, sequence in enumerate(islice(self.waiting, len(self.free_slots))):
            if not self._admissible(sequence, taken, running + number):
                break
            rows, taken = rows + len(sequence.tokens), taken + self._pages_to_begin(sequence)
        return rows

    def _enter(self, plan: Plan, entry: Entry, pending: int) -> None:
        plan.entries.append(entry)
        entry.sequence.steps_in_flight += 1
        entry.sequence.pending += pending
        entry.sequence.certain += int(entry.draws)

    def settle(self, entry: Entry) -> None:
        """A step of this entry has been read: what it might have added is known now."""
        sequence = entry.sequence
        sequence.steps_in_flight -= 1
        sequence.pending -= (1 + entry.depth) if entry.mode == DECODE else int(entry.last)
        sequence.certain -= int(entry.draws)

    def _drafts_that_fit(self, sequence: Sequence, tokens: int, later: int) -> int:
        """Behind so many tokens, on pages that are its own, or free and not among the `later` ones that others need for a token:
        nobody is sent away for a guess."""
        return max((len(sequence.pages) + max(self.pool.free - later, 0)) * self.capacity.page_size - tokens, 0)

    def _lacking(self, sequence: Sequence, tokens: int) -> int:
        """Pages that it must be given to hold so many positions."""
        return max(-(-min(tokens, sequence.limit) // self.capacity.page_size) - len(sequence.pages), 0)

    def _grow(self, sequence: Sequence, tokens: int, plan: Plan) -> bool:
        """Pages for `tokens` positions, at the cost of the youngest sequence if need be. False: it was the youngest."""
        need = self._lacking(sequence, tokens)
        while need > 0:
            got = self.pool.take(need)
            if got is not None:
                start = len(sequence.pages)
                sequence.pages += got
                plan.pages += [(sequence.slot, start + i, page) for i, page in enumerate(got)]
                break
            self._preempt(self.running[-1])
            if sequence.slot is None:
                return False
        return True

    def _preempt(self, sequence: Sequence) -> None:
        """Nothing of it is in the plan being made: `plan` enters decoding sequences in order of admission, and the victim is
        the youngest, so it is the one that needs pages or comes after it; none is admitted in a step that preempts."""
        self.release(sequence)
        sequence.planned = sequence.target = 0
        sequence.stats.preemptions += 1
        self.preemptions += 1
        self.waiting.appendleft(sequence)

    def _pages_to_begin(self, sequence: Sequence) -> int:
        """For the whole prompt and one token more."""
        return self._lacking(sequence, len(sequence.tokens) + 1)

    def _admissible(self, sequence: Sequence, taken: int, running: int) -> bool:
        """Whether there are pages for it, `taken` of those that are free now being gone, and one to spare for each of
        `running` sequences, so that it is not sent away again at once."""
        if sequence.steps_in_flight:  # preempted a moment ago: its last tokens are still to be read
            return False
        return self._pages_to_begin(sequence) + running <= self.pool.free - taken

    def _admit(self, plan: Plan) -> None:
        """In order of arrival, as long as there is a slot, and pages."""
        while self.waiting and self.free_slots:
            sequence = self.waiting[0]
            if not self._admissible(sequence, 0, len(self.running)):
                return
            pages = self.pool.take(self._pages_to_begin(sequence))
            assert pages is not None, "counted above"
            self.waiting.popleft()
            sequence.slot, sequence.pages = self.free_slots.pop(), pages
            sequence.target, sequence.planned = len(sequence.tokens), 0
            plan.admitted.append(sequence)
            self.running.append(sequence)
