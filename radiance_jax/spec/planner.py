"""The drafting policy at work: from what was read of past steps to the depths of the next one. Host only, no jax.

    tokens read -> shadow (what lookup had proposed) -> record (acceptance, by evidence) --\
    steps timed -> cost table -------------------------------------------------------------> window -> depths

It never sees a token of the step it plans for, and no decision can change an answer: what is verified is verified by
agreement. Decisions are functions of what was told to it, in order.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from radiance_jax.spec import evidence, short
from radiance_jax.spec.bids import Bids
from radiance_jax.spec.cost import CostTable
from radiance_jax.spec.counts import Counts
from radiance_jax.spec.evidence import LEVELS, LOOKUP_LEVELS, NEURAL, NOTHING, Depths
from radiance_jax.spec.policies import Policy, adaptive
from radiance_jax.spec.record import (
    OWN_KEEP,
    OWN_WEIGHT,
    SHARED_KEEP,
    SHARED_WEIGHT,
    Acceptance,
    Flow,
    band,
    chances_of,
    rates_of,
)
from radiance_jax.spec.shadow import Shadow
from radiance_jax.spec.window import runner_up, worth

PROBE_EVERY = 256  # decode steps between looks at the second best depths
PROBE_NEW = 16  # the same, where those would run steps that were never measured
MOST_ALIKE, ALIKE_SECONDS = 4, 0.01  # steps that may go by one plan, and for how long: planning takes the host a while itself
NEVER = 2**31


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What the settings say. `depth`: K; `lookup`: how much of it lookup may propose (None: all, 0: nothing). `p_min`: the
    least acceptance rate of a draft worth its row. `short_from`: decoding sequences from which drafts are cut to a short
    block. `as_planned`: rows are paid when planned, found or not. `neural`: a neural drafter proposes wherever lookup's
    proposal is left alone."""

    depth: int
    longest: int
    shortest: int
    as_planned: bool
    lookup: int | None = None
    neural: bool = False
    p_min: float = 0.0
    short_from: int = NEVER
    policy: Policy = adaptive

    @property
    def window(self) -> int:
        """The most tokens that lookup proposes."""
        return self.depth if self.lookup is None else self.lookup


@dataclass(frozen=True)
class Want:
    """A sequence that decodes in the next step, with at most `cap` drafts. `fixed`: its request asks for just those."""

    key: int
    cap: int
    fixed: bool = False


@dataclass
class Track:
    """What is known of one sequence."""

    shadow: Shadow
    acceptance: Acceptance
    flow: Flow
    neural: dict[int, Acceptance] = field(default_factory=dict)  # by block length: a shorter block is another input
    level: int = NOTHING  # of the step read last; `shadow.level` is that of the step after it
    last: Depths | None = None


Way = tuple[Bids, np.ndarray, list[Depths]]  # bids, prices, and the plan made of them


class Planner:
    def __init__(self, rules: Rules, cost: CostTable, drafting_cost: CostTable | None = None):
        """`cost` prices steps in which no neural drafter runs, `drafting_cost` those in which one does."""
        self.rules, self.cost, self.counts = rules, cost, Counts()
        self.drafting_cost = drafting_cost or CostTable(cost.charge, cost)
        self.counts.right, self.counts.seconds = [0] * (rules.depth + 1), np.zeros(rules.depth + 1)
        self._tracks: dict[int, Track] = {}
        self._shared: dict[tuple[int, int], Acceptance] = {}
        self._flow = Flow(SHARED_KEEP, SHARED_WEIGHT)
        self._short = short.Short(rules.short_from)
        self._rows: list[tuple[int, int, int, int]] = []  # of the step being read: found, cap, allowed, drafted
        self._drafter_ran = False  # in it
        self._since_probe, self._probed = 0, -1
        self._asked: tuple | None = None  # what the plan `_again` answered, which serves `_left` more steps
        self._again: list[Depths] = []
        self._left = 0

    # ---- what was read ----

    def read(self, key: int, tokens: Sequence[int]) -> None:
        """A sequence's tokens up to here are given: a prompt's chunk was computed. Tokens known before may come again."""
        shadow = self._track(key, len(tokens)).shadow
        shadow.read(tokens[len(shadow.tokens):])

    def drawn(self, key: int, tokens: Sequence[int]) -> None:
        """Tokens were drawn; `tokens` are all of the sequence's."""
        track = self._track(key, len(tokens))
        track.acceptance.behind = self._record(len(tokens), self.rules.depth)
        for token in tokens[len(track.shadow.tokens):]:
            track.shadow.push(token, track.acceptance.add)

    def verified(self, key: int, tokens: Sequence[int], allowed: Depths, cap: int, drafted: int, accepted: int,
                 neural: bool = False, judged: int | None = None) -> bool:
        """A decode step of a sequence was read: `allowed` were the depths sent, at most `cap`; `tokens` are all of the
        sequence's; `neural`: who drafted; `judged`: drafts behind which the answer went on (None: all): those behind its end
        were neither right nor wrong. Returns whether a proposal was deferred: found, and left alone though the request would
        have had it."""
        track = self._track(key, len(tokens))
        shadow, counts = track.shadow, self.counts
        level, found = shadow.level, min(shadow.count, cap)
        judged = drafted if judged is None else min(judged, drafted)
        if neural and drafted:
            self._neural(track, len(tokens), self._block(allowed)).add_verdict(NEURAL, judged, accepted)
        self._drafter_ran |= self.rules.neural and allowed[NEURAL] > 0
        self._flow_on(track, level if found else NOTHING)
        shadow.anchor()
        self.drawn(key, tokens)
        for right in shadow.judged:
            counts.right[min(cap, right)] += 1
        shadow.judged.clear()
        deepest = max(allowed, default=0)
        counts.own[0] += 1 + accepted
        counts.chosen[deepest] = counts.chosen.get(deepest, 0) + 1
        counts.reached += [0] * (drafted - len(counts.reached))
        for place in range(min(accepted + 1, judged)):
            counts.reached[place] += 1
        self._rows.append((found, cap, deepest, drafted))
        if drafted and key == self._probed:
            self._since_probe, self._probed = 0, -1
            counts.probes += 1
        deferred = bool(found and not drafted and not allowed[level])
        counts.deferred += deferred
        return deferred

    def stepped(self, rows: int, seconds: float, prompts: int) -> None:
        """The whole step was read: it was paid for `rows` rows, `prompts` of them of prompts. Steps that only decode
        are filed; the others are cheaper by the draws that prompts do not need."""
        steps, self._rows, ran, self._drafter_ran = self._rows, [], self._drafter_ran, False
        if not steps:
            return
        cost = self.drafting_cost if ran else self.cost
        if not prompts:
            cost.observe(rows, seconds)
        curve = cost.curve(prompts + sum(1 + cap for _, cap, _, _ in steps))
        found, cap, allowed, drafted = np.array(steps).T
        planned, rows = self.rules.as_planned, prompts + len(steps)
        self.counts.own[1] += curve[rows + int((allowed if planned else drafted).sum())]
        constant = np.minimum(np.arange(self.rules.depth + 1)[:, None], cap if planned else found).sum(1)
        self.counts.seconds += curve[rows + constant]

    def forget(self, key: int) -> None:
        """The sequence has ended."""
        self._tracks.pop(key, None)
        if key == self._probed:
            self._probed = -1

    # ---- what is to be done ----

    def plan(self, wants: Sequence[Want], prompts: int = 0) -> list[Depths]:
        """Depths for the next step of these sequences, in order. `prompts`: rows that prompts would like to have in it. Where
        steps take a few milliseconds and nobody's lookup is of another level than before, a plan serves the next ones too; one
        with a probe in it does not."""
        if not wants:
            return []
        if not any(want.cap for want in wants):  # there is nothing to decide
            self._short.update(len(wants))
            return [evidence.alike(0)] * len(wants)
        most = short.ROWS - 1 if self._short.update(len(wants)) else self.rules.depth
        tracks = [self._track(want.key, 0) for want in wants]
        asked = (tuple(wants), prompts, most, tuple(track.shadow.level for track in tracks))
        if self._left and asked == self._asked and self.rules.policy is adaptive:  # another policy may be of other moments
            self._left, self._since_probe = self._left - 1, self._since_probe + 1
            return list(self._again)
        limits = np.minimum([want.cap for want in wants], most)
        rows = prompts + len(wants) + int(limits.sum()) + 1
        bids, curve = self._lookup_bids(wants, tracks, limits), self.cost.curve(rows)
        plan = self.rules.policy(bids, curve, prompts, self.rules.as_planned)
        if self.rules.neural:
            bids, curve, plan = self._with_drafter(tracks, limits, most, rows, (bids, curve, plan), prompts)
        for track, depths in zip(tracks, plan, strict=True):
            track.last = depths
        self._asked, self._again = asked, list(plan)
        plan = self._probe(wants, bids, plan, curve, prompts)
        alike = min(MOST_ALIKE, max(round(ALIKE_SECONDS / float(curve[prompts + len(wants)])), 1))
        self._left = alike - 1 if plan == self._again else 0
        return plan

    def _with_drafter(self, tracks: Sequence[Track], limits: np.ndarray, most: int, rows: int, without: Way, prompts: int) -> Way:
        """Running the drafter at all costs a step its pass: the better of the plan without it, at the price of steps without,
        and one with it, at the price of steps with. Until such steps were measured they count as costing the same."""
        bids = self._with_neural(without[0], tracks, limits, most)
        curve = self.drafting_cost.curve(rows) if self.drafting_cost.measured() else without[1]
        with_ = bids, curve, self.rules.policy(bids, curve, prompts, self.rules.as_planned)
        gains, stays = (worth(bids, plan, curve, prompts, self.rules.as_planned) for bids, curve, plan in (with_, without))
        return with_ if gains > stays or bids.fixed.any() else without

    def _lookup_bids(self, wants: Sequence[Want], tracks: Sequence[Track], limits: np.ndarray) -> Bids:
        """What lookup alone would bring; `limits` int [N] are the most drafts of each sequence."""
        count, places = len(wants), self.rules.depth
        chance, gains, caps = np.zeros((count, LEVELS)), np.zeros((count, LEVELS, places)), np.zeros((count, LEVELS), int)
        chance[:, :NEURAL] = chances_of([track.flow for track in tracks], [track.shadow.level for track in tracks])[:, 1:]
        gains[:, :NEURAL], caps[:, :NEURAL] = self._gains(
            rates_of([track.acceptance for track in tracks], range(LOOKUP_LEVELS), places),
            np.minimum(limits, self.rules.window))
        return Bids(chance=chance, gains=gains, caps=caps, fixed=np.array([want.fixed for want in wants]),
                    last=[track.last for track in tracks])

    def _with_neural(self, lookup: Bids, tracks: Sequence[Track], limits: np.ndarray, most: int) -> Bids:
        """The same with the drafter beside lookup, in blocks of `most`: where lookup is left alone, the drafter proposes."""
        records = [self._neural(track, len(track.shadow.tokens), most) for track in tracks]
        own, own_caps = self._gains(rates_of(records, (NEURAL,), self.rules.depth), limits)
        # A sequence that is better drafted than copied, on such evidence, leaves lookup's proposal alone.
        copied = lookup.gains.sum(2) > own.sum(2)
        copied[:, NEURAL] = False
        chance, caps, gains = lookup.chance * copied, lookup.caps * copied, lookup.gains * copied[:, :, None]
        chance[:, NEURAL], caps[:, NEURAL], gains[:, NEURAL] = 1 - chance.sum(1), own_caps[:, 0], own[:, 0]
        return Bids(chance=chance, gains=gains, caps=caps, fixed=lookup.fixed, last=lookup.last)

    def _gains(self, rates: np.ndarray, most: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Acceptance rates [N, L, K] and the most drafts [N] to the products of rates by place, up to the first rate below the
        floor, and how many those are [N, L]."""
        caps = np.broadcast_to(most[:, None], rates.shape[:2])
        if self.rules.p_min > 0:
            caps = np.minimum(caps, np.logical_and.accumulate(rates >= self.rules.p_min, axis=2).sum(2))
        return np.where(np.arange(rates.shape[2]) < caps[:, :, None], rates.cumprod(2), 0.0), caps

    def _probe(self, wants: Sequence[Want], bids: Bids, plan: list[Depths], curve: np.ndarray,
               prompts: int) -> list[Depths]:
        """Once in a while one sequence takes its second best depths, until it has met a proposal: so the table knows what
        steps cost now that are not taken otherwise."""
        self._since_probe += 1
        if self._since_probe < PROBE_NEW or self.rules.policy is not adaptive or prompts:
            return plan
        keys = [want.key for want in wants]
        if self._probed not in keys:
            able = [key for key, deepest, fixed in zip(keys, bids.deepest.tolist(), bids.fixed.tolist(), strict=True)
                    if deepest and not fixed]
            if not able:
                return plan
            self._probed = able[self.counts.probes % len(able)]
        at, depths = keys.index(self._probed), np.array(plan)
        drafts = depths.max(1) if self.rules.as_planned else (bids.chance * depths).sum(1)
        others = round(float(len(bids) - 1 + drafts.sum() - drafts[at]))
        rate = bids.tokens(plan) / curve[round(float(len(bids) + drafts.sum()))]
        other = runner_up(bids[at], plan[at], others, rate, curve, self.rules.as_planned)
        if self._since_probe >= PROBE_EVERY or not self.cost.knows(others + 1 + max(other)):
            plan[at] = other
        return plan

    def _block(self, allowed: Depths) -> int:
        """The drafter's block of a step in which so much was allowed."""
        return short.ROWS - 1 if self._short.on and allowed[NEURAL] < short.ROWS else self.rules.depth

    def _record(self, length: int, block: int) -> Acceptance:
        """Everyone's, for a context of this length."""
        key = band(length), block
        if key not in self._shared:
            self._shared[key] = Acceptance(self.rules.depth or 1, SHARED_KEEP, SHARED_WEIGHT)
        return self._shared[key]

    def _neural(self, track: Track, length: int, block: int) -> Acceptance:
        if block not in track.neural:
            track.neural[block] = Acceptance(self.rules.depth or 1, OWN_KEEP, OWN_WEIGHT, self._record(length, block))
        return track.neural[block]

    def _track(self, key: int, length: int) -> Track:
        track = self._tracks.get(key)
        if track is None:
            shared = self._record(length, self.rules.depth)
            track = self._tracks[key] = Track(
                shadow=Shadow(longest=self.rules.longest, shortest=self.rules.shortest, window=self.rules.window),
                acceptance=Acceptance(self.rules.depth or 1, OWN_KEEP, OWN_WEIGHT, shared),
                flow=Flow(OWN_KEEP, OWN_WEIGHT, self._flow))
        return track

    def _flow_on(self, track: Track, level: int) -> None:
        track.flow.add(track.level, level)
        track.level = level
