"""The scheduler over thousands of simulated steps: hundreds of episodes of arrivals, aborts, endings and tiny pools."""

import random
from collections import Counter, deque
from functools import cache

import pytest

from radiance_jax.engine.pages import PagePool
from radiance_jax.engine.scheduler import PROMPT_SHARE, Plan, Scheduler, always
from radiance_jax.engine.sequence import Sequence
from radiance_jax.engine.state import DECODE, PREFILL, Capacity
from radiance_jax.spec.evidence import alike
from simulated_device import HOST_STOP, SimulatedDevice, answer, make_sequence

EPISODES = 1200


def random_capacity(chance: random.Random) -> Capacity:
    page_size, slots, length = chance.choice((1, 2, 3, 4, 8)), chance.randint(1, 5), chance.randint(6, 60)
    width = -(-length // page_size)
    pages = 1 + chance.choice((width, width, width + chance.randint(0, 4), slots * width))
    return Capacity(slots=slots, length=length, rows=slots + chance.choice((0, 1, 3, 8, 30)), pages=pages,
                    page_size=page_size, depth=chance.choice((0, 1, 3, 7)))


class Episode:
    """The engine's loop with a simulated device: send step n + 1, then read step n. Checks invariants at every plan."""

    def __init__(self, seed: int):
        self.chance = random.Random(seed)
        self.capacity = random_capacity(self.chance)
        self.mean_length = self.chance.choice((5, 20, 1000))
        self.device = SimulatedDevice(self.capacity, self.chance, self.mean_length)
        steady = self.chance.random() < 0.5
        depth_of = lambda _: self.capacity.depth if steady else self.chance.randint(0, 9)  # noqa: E731
        self.scheduler = Scheduler(self.capacity, always(depth_of))
        self.live: dict[int, Sequence] = {}
        self.finished: dict[int, Sequence] = {}
        self.aborted: set[int] = set()
        self.first_admissions: list[int] = []
        self.arriving = self.chance.randint(1, 16)
        self.facts: Counter[str] = Counter()

    def arrive(self, number: int) -> None:
        prompt = self.chance.randint(1, self.capacity.length - 1)
        longest = self.capacity.length
        limit = self.chance.choice((prompt + 1, self.chance.randint(prompt + 1, longest), longest))
        self.live[number] = make_sequence(number, prompt, limit)
        self.scheduler.add(self.live[number])

    def run(self) -> "Episode":
        flying, number, turns = deque(), 0, 0
        while number < self.arriving or flying or not self.scheduler.idle():
            turns += 1
            assert turns < 200 + 40 * self.arriving * self.capacity.length, "no progress"
            while number < self.arriving and (self.chance.random() < 0.3 or (self.scheduler.idle() and not flying)):
                self.arrive(number)
                number += 1
            if self.live and self.chance.random() < 0.02:
                self._end(self.chance.choice(list(self.live.values())))
            before = list(self.scheduler.running)
            plan = self.scheduler.plan()
            assert plan.entries or flying or self.scheduler.idle(), "nothing to send, nothing to wait for, not idle"
            self.check(plan, before)
            for sequence in plan.admitted:
                self.device.admit(sequence)
            if plan.entries:
                flying.append((plan, self.device.send(plan)))
            if flying and (len(flying) > 1 or not plan.entries):
                self.read(*flying.popleft())
        assert self.scheduler.pool.used == 0
        assert sorted(self.scheduler.free_slots) == list(range(self.capacity.slots))
        return self

    def read(self, plan: Plan, results) -> None:
        for entry in plan.entries:
            sequence = entry.sequence
            self.scheduler.settle(entry)
            if sequence.id not in self.live:
                continue
            tokens, ended = results[entry.slot]
            if HOST_STOP in tokens:
                tokens, ended = tokens[: tokens.index(HOST_STOP) + 1], True
            sequence.tokens += tokens
            if ended:
                self.finished[sequence.id] = sequence
                self._end(sequence)

    def _end(self, sequence: Sequence) -> None:
        if sequence.id not in self.finished:
            self.aborted.add(sequence.id)
        del self.live[sequence.id]
        self.scheduler.release(sequence)

    def check(self, plan: Plan, before: list[Sequence]) -> None:
        capacity, scheduler = self.capacity, self.scheduler
        assert plan.rows <= capacity.rows
        assert len(plan.pages) <= capacity.updates
        assert all(entry.depth <= capacity.depth for entry in plan.entries)
        assert len({entry.slot for entry in plan.entries}) == len(plan.entries)
        assert all(entry.sequence.slot == entry.slot for entry in plan.entries)
        held = [page for sequence in scheduler.running for page in sequence.pages]
        assert len(set(held)) == len(held) and 0 not in held
        assert len(held) == scheduler.pool.used <= capacity.pages - 1
        by_slot = {sequence.slot: sequence for sequence in scheduler.running}
        assert len(by_slot) == len(scheduler.running) <= capacity.slots
        assert all(by_slot[slot].pages[index] == page for slot, index, page in plan.pages)
        for sequence in scheduler.running:
            assert len(sequence.pages) <= capacity.table_width
            assert min(sequence.pending, sequence.certain, sequence.steps_in_flight) >= 0
            assert sequence.steps_in_flight or not (sequence.pending or sequence.certain)
        assert not any(sequence.pages for sequence in scheduler.waiting)
        fresh = [sequence.stats.preemptions == 0 for sequence in scheduler.waiting]
        assert fresh == sorted(fresh), "the preempted wait in front"
        gone = [sequence for sequence in before if sequence.slot is None]
        if gone:
            assert before[-len(gone):] == gone, "not the youngest was preempted"
            assert not plan.admitted
            self.facts["preempted steps"] += 1
        self.first_admissions += [s.id for s in plan.admitted if s.id not in self.first_admissions]
        modes = {entry.mode for entry in plan.entries}
        self.facts["mixed steps"] += modes == {PREFILL, DECODE}
        self.facts["chunks"] += any(e.mode == PREFILL and not e.last for e in plan.entries)
        self.facts["readmissions"] += any(s.stats.preemptions for s in plan.admitted)


@cache
def episode(seed: int) -> Episode:
    return Episode(seed).run()


@pytest.mark.parametrize("hundred", range(EPISODES // 100))
def test_every_sequence_ends_with_the_tokens_it_would_have_had_alone(hundred):
    for seed in range(100 * hundred, 100 * hundred + 100):
        done = episode(seed)
        assert done.finished.keys() | done.aborted == set(range(done.arriving))
        for sequence in done.finished.values():
            assert sequence.tokens == answer(sequence, done.mean_length)


def test_first_admissions_are_in_order_of_arrival():
    for seed in range(EPISODES):
        assert episode(seed).first_admissions == sorted(episode(seed).first_admissions)


def test_the_episodes_met_what_they_are_for():
    facts, committed = Counter(), Counter()
    for seed in range(EPISODES):
        facts += episode(seed).facts
        committed += Counter(episode(seed).device.committed)
        facts["preemptions"] += episode(seed).scheduler.preemptions
        facts["aborts"] += len(episode(seed).aborted)
        facts["finished"] += len(episode(seed).finished)
    for name in ("preemptions", "preempted steps", "readmissions", "mixed steps", "chunks", "aborts", "finished"):
        assert facts[name] > 50, (name, facts)
    assert set(committed) == set(range(1, 9))


def planned(capacity: Capacity, prompts: list[int], limit: int = 30) -> tuple[Scheduler, list[Sequence], Plan]:
    scheduler = Scheduler(capacity, always(lambda _: capacity.depth))
    sequences = [make_sequence(number, prompt, limit) for number, prompt in enumerate(prompts)]
    for sequence in sequences:
        scheduler.add(sequence)
    return scheduler, sequences, scheduler.plan()


ROOMY = Capacity(slots=4, length=30, rows=12, pages=60, page_size=4, depth=3)


def test_prompts_share_a_step_in_order_of_arrival():
    _, sequences, plan = planned(ROOMY, [5, 10, 4])
    assert [(e.sequence.id, e.chunk, e.first, e.last) for e in plan.entries] == [(0, 5, 0, True), (1, 7, 0, False)]
    assert plan.admitted == sequences


def test_decoding_comes_before_prompts_and_drafts_leave_room_for_every_decoder():
    capacity = Capacity(slots=4, length=30, rows=10, pages=60, page_size=4, depth=7)
    scheduler, _, _ = planned(capacity, [2, 2, 2, 25])
    plan = scheduler.plan()
    assert [(e.mode, e.depth, e.chunk) for e in plan.entries] == [(DECODE, 2, 0)] * 3 + [(PREFILL, 0, 1)]


@pytest.mark.parametrize(("budget", "decoding", "depth"), ((64, 4, 15), (512, 64, 7), (8, 4, 1), (9, 2, 7)))
def test_drafts_never_take_all_rows_from_a_prompt_that_is_being_read(budget, decoding, depth):
    capacity = Capacity(slots=decoding + 1, length=400, rows=budget, pages=9999, page_size=4, depth=depth)
    scheduler, sequences, _ = planned(capacity, [1] * decoding, limit=400)
    late = make_sequence(decoding, 300, 400)
    scheduler.add(late)
    steps = 0
    while not steps or late.prefilling:
        plan, steps = scheduler.plan(), steps + 1
        assert sum(entry.mode == DECODE for entry in plan.entries) == decoding, "everyone decodes on"
        for entry in plan.entries:
            scheduler.settle(entry)
        assert steps <= 2 + 300 // max(budget // PROMPT_SHARE, 1), "the prompt is read while the others draft"


def test_no_draft_is_planned_beyond_the_limit():
    scheduler, _, _ = planned(ROOMY, [4], limit=6)
    assert [(e.mode, e.depth) for e in scheduler.plan().entries] == [(DECODE, 0)]  # one more token: the draw itself
    assert scheduler.plan().entries == []  # the steps in flight end it


def test_a_waiting_sequence_is_not_admitted_past_one_that_does_not_fit():
    tight = Capacity(slots=4, length=30, rows=40, pages=10, page_size=4, depth=0)
    scheduler, sequences, plan = planned(tight, [20, 20, 1])
    assert plan.admitted == sequences[:1] and list(scheduler.waiting) == sequences[1:]


def test_a_newcomer_leaves_a_page_to_everyone_who_runs():
    for pages, fits in ((8, False), (9, True)):
        tight = Capacity(slots=4, length=16, rows=40, pages=pages, page_size=4, depth=0)
        _, sequences, plan = planned(tight, [12, 8], limit=16)  # 4 and 3 pages, and one to spare
        assert plan.admitted == sequences[: 1 + fits]
        assert len(sequences[0].pages) == 4  # for the whole prompt and one token more


def test_nobody_is_sent_away_for_a_draft():
    """Pages that a sequence needs for drafts alone are taken where they are free, not from others nor from itself."""
    tight = Capacity(slots=2, length=12, rows=20, pages=6, page_size=4, depth=7)
    scheduler, _, _ = planned(tight, [4, 4], limit=12)
    plan = scheduler.plan()
    assert [entry.depth for entry in plan.entries] == [6, 3] and scheduler.preemptions == 0
    assert [max(entry.depths) for entry in plan.entries] == [6, 3] and scheduler.pool.free == 0


def test_a_page_for_a_token_comes_before_one_for_drafts_whoever_is_the_older():
    tight, depth = Capacity(slots=2, length=12, rows=20, pages=6, page_size=4, depth=7), [0]
    scheduler = Scheduler(tight, always(lambda _: depth[0]))
    for number, prompt in enumerate((4, 7)):
        scheduler.add(make_sequence(number, prompt, 12))
    scheduler.plan(), scheduler.plan()
    assert scheduler.pool.free == 1
    depth[0] = 7
    assert [entry.depth for entry in scheduler.plan().entries] == [2, 2] and scheduler.preemptions == 0


@pytest.mark.parametrize(("pages", "rows"), ((12, 0), (13, 8), (17, 8), (18, 20)))
def test_drafts_are_priced_beside_the_prompts_that_will_be_read(pages, rows):
    """Not beside those that wait for pages: a step that is thought dear anyway makes drafts look cheap."""
    told = []
    capacity = Capacity(slots=4, length=40, rows=40, pages=pages, page_size=4, depth=3)
    scheduler = Scheduler(capacity, lambda wants, prompts: told.append(prompts) or [alike(0)] * len(wants))
    scheduler.add(make_sequence(0, 28, 40))
    scheduler.plan()
    for number, prompt in ((1, 8), (2, 12)):
        scheduler.add(make_sequence(number, prompt, 40))
    plan = scheduler.plan()
    assert told[-1] == rows == sum(entry.chunk for entry in plan.entries)


def test_a_preempted_sequence_waits_until_its_last_tokens_are_read():
    """Also with more steps in flight than the engine has."""
    tight = Capacity(slots=2, length=12, rows=20, pages=6, page_size=4, depth=7)
    scheduler, (old, young), first = planned(tight, [4, 4], limit=12)
    second, third = scheduler.plan(), scheduler.plan()
    assert scheduler.preemptions == 1 and list(scheduler.waiting) == [young]
    assert [entry.sequence for entry in third.entries] == [old]
    scheduler.release(old)
    for step in (first, second):
        assert scheduler.plan().admitted == []
        scheduler.settle(step.entries[1])
    assert scheduler.plan().admitted == [young]


def test_a_pool_gives_all_or_nothing_and_never_the_bin():
    pool = PagePool(5)
    first = pool.take(3)
    assert pool.take(2) is None and pool.free == 1 and pool.used == 3
    assert sorted(first + pool.take(1)) == [1, 2, 3, 4]
    pool.give(first)
    with pytest.raises(AssertionError, match="twice"):
        pool.give(first)
