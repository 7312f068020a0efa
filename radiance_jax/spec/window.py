"""How deep to draft: the depths that give the whole batch the most committed tokens per measured second.

A sequence that verifies d drafts commits E(d) = 1 + sum over j <= d of the product of its first j acceptance rates (the
target always adds one token). A step lasts T(rows), measured. So the batch gets

    sum of E(d_i) / T(sum of 1 + d_i)

tokens a second, and the depths that maximise it are chosen, 0 included. What a row costs depends on the machine: on a GPU
the program is picked for the rows *planned* (`planned`), on a CPU only rows that turn out *live* cost (`live`), and a
sequence whose lookup finds nothing has one. Both are pure functions: equal inputs give equal depths.
"""

from collections.abc import Sequence

import numpy as np

from radiance_jax.spec.bids import Bid, Bids
from radiance_jax.spec.evidence import Depths

MARGIN = 0.02  # of a step's tokens, by which other depths must beat the last ones: estimates tremble, decisions need not
SWEEPS = 6
CROWD = 8  # sequences, above which plans of live rows are swept over once a step


def expected(rates: Sequence[float]) -> float:
    """E(d) of d conditional acceptance rates.

    In:  (0.5, 0.5)    Out: 1 + 0.5 + 0.25
    """
    return 1.0 + sum(products(rates))


def products(rates: Sequence[float]) -> tuple[float, ...]:
    """In: (0.5, 0.4)    Out: (0.5, 0.2)"""
    out, product = [], 1.0
    for rate in rates:
        product *= rate
        out.append(product)
    return tuple(out)


def worth(bids: Sequence[Bid], plan: Sequence[Depths], curve: np.ndarray, prompts: int, as_planned: bool) -> float:
    """Tokens a second that a plan is expected to make."""
    if as_planned:
        return Bids.of(bids).tokens(plan) / float(curve[prompts + len(bids) + int(np.asarray(plan).max(1).sum())])
    return speed(bids, plan, curve[prompts:])


# ---- rows that are planned are paid -----------------------------------------------------------------------------


def planned(bids: Sequence[Bid], curve: np.ndarray, prompts: int = 0, margin: float = MARGIN) -> list[Depths]:
    """The exact optimum. Every further row of a sequence gains less than the one before, so the best plan of n rows takes
    the n likeliest; only n is to be chosen. `prompts` rows are in the step besides; `curve[n]` prices n rows.

    A depth is one for all levels: the row is paid whatever is found.
    """
    bids = Bids.of(bids)
    gains, fixed, count = bids.mean_gains, bids.fixed, len(bids)
    depths = np.where(fixed, bids.deepest, 0)
    offers = np.where(fixed[:, None], 0.0, gains).T.ravel()  # of equal ones the earlier place, then the earlier sequence first
    order = np.argsort(-offers, kind="stable")[:np.count_nonzero(offers > 0)]
    reached = np.cumsum(np.concatenate([[count + gains[fixed].sum()], offers[order]]))
    rows = count + int(depths.sum()) + prompts
    price = curve[rows:rows + len(reached)]
    rates = reached / price
    # A plan that costs more than none has to be clearly better: of many guesses the best is guessed too high.
    able = (rates >= rates[0] * (1 + 2 * margin)) | (price == price[0])
    taken = int(np.argmax(np.where(able, rates, rates[0])))
    depths = depths + np.bincount(order[:taken] % count, minlength=count)
    last = bids.last_depths().max(1)
    stay = count + gains[np.arange(gains.shape[1]) < last[:, None]].sum()
    in_its_time = rates[taken] * curve[count + int(last.sum()) + prompts]  # tokens of the better plan in the time of the last one
    if in_its_time < stay * (1 + margin):
        depths = last
    return list(map(tuple, np.minimum(depths[:, None], bids.caps).tolist()))


# ---- rows that are live are paid --------------------------------------------------------------------------------


def live(bids: Sequence[Bid], curve: np.ndarray, prompts: int = 0, margin: float = MARGIN) -> list[Depths]:
    """Each level of each sequence takes argmax over d of E(d) - rate * T(1 + d), the time averaged over what the others
    may find, and `rate` the tokens a second of the plan so far; in turn, until nothing moves. For one sequence that is the
    optimum. For several it is one that no sequence can better alone; the best of three starts is taken. In a crowd every start is
    moved on once only: one sequence weighs little there, the last plan is one of the starts, and the host's own time counts.
    """
    bids = list(bids)
    starts = [[bid.last_or_none() for bid in bids], [bid.caps if bid.fixed else (0,) * len(bid.caps) for bid in bids],
              [bid.caps for bid in bids]]
    plans: list[list[Depths]] = []
    for start in starts:
        if start not in plans:
            plans.append(_settle(bids, start, curve[prompts:], margin, SWEEPS if len(bids) <= CROWD else 1))
    rates = [speed(bids, plan, curve[prompts:]) for plan in plans]
    best = max(rates)
    return next(plan for plan, rate in zip(plans, rates, strict=True) if rate >= best * (1 - margin / 4))


def speed(bids: Sequence[Bid], plan: Sequence[Depths], curve: np.ndarray) -> float:
    """Expected tokens over expected seconds of a step, of all sequences."""
    rows = np.ones(1)
    for bid, depths in zip(bids, plan, strict=True):
        rows = np.convolve(rows, _rows(bid, depths))
    return _tokens(bids, plan) / float(rows @ curve[:len(rows)])


def _tokens(bids: Sequence[Bid], plan: Sequence[Depths]) -> float:
    return len(bids) + sum(chance * sum(gains[:depth]) for bid, depths in zip(bids, plan, strict=True)
                           for chance, gains, depth in zip(bid.chance, bid.gains, depths, strict=True))


def _rows(bid: Bid, depths: Depths) -> np.ndarray:
    """Chances that the sequence has 0, 1, 2, ... live rows."""
    chances = [0.0] * (2 + max(depths, default=0))
    chances[1] = 1 - sum(bid.chance)
    for chance, depth in zip(bid.chance, depths, strict=True):
        chances[1 + depth] += chance
    return np.array(chances)


def _settle(bids: Sequence[Bid], start: list[Depths], curve: np.ndarray, margin: float, sweeps: int) -> list[Depths]:
    plan = list(start)
    for _ in range(sweeps):
        rate, before = speed(bids, plan, curve), list(plan)
        behind = [np.ones(1)]
        for bid, depths in zip(reversed(bids), reversed(plan), strict=True):
            behind.append(np.convolve(behind[-1], _rows(bid, depths)))
        front = np.ones(1)
        for i, bid in enumerate(bids):
            if not bid.fixed:
                others = np.convolve(front, behind[len(bids) - 1 - i])
                deepest = max(bid.caps, default=0)
                price = np.correlate(curve[1:1 + deepest + len(others)], others, "valid")  # of 1, 2, ... rows of its own
                prices = (rate * price).tolist()
                plan[i] = tuple(_argmax(gains, prices, None if bid.last is None else bid.last[level], margin)
                                for level, gains in enumerate(bid.gains))
            front = np.convolve(front, _rows(bid, plan[i]))
        if plan == before:
            break
    return plan


def _argmax(gains: Sequence[float], price: Sequence[float], last: int | None, margin: float) -> int:
    """The d that maximises E(d) less the price of 1 + d rows, in tokens; the last one if that is as good but for `margin`."""
    tokens, best, most, values = 1.0, 0, 1.0 - price[0], [1.0 - price[0]]
    for d, gain in enumerate(gains, start=1):
        tokens += gain
        values.append(tokens - price[d])
        if values[d] > most:
            best, most = d, values[d]
    stay = min(last or 0, len(gains))
    return stay if most - values[stay] < margin * (most + price[best]) else best


# ---- a look at the road not taken -------------------------------------------------------------------------------


def runner_up(bid: Bid, depths: Depths, others: int, rate: float, curve: np.ndarray, as_planned: bool) -> Depths:
    """The next best depths that cost something else than `depths`, for a probe: what is never done is never measured.
    `others`: rows of everybody else. A level whose next best would waste more than a token stays as it is."""
    def of(gains: Sequence[float], depth: int) -> int:
        price = curve[others + 1:others + 2 + len(gains)]
        values = np.concatenate([[0.0], np.cumsum(gains)]) - rate * price
        other = [d for d in range(len(values)) if price[d] != price[min(depth, len(gains))]]
        best = max(other, key=lambda d: (values[d], -d), default=depth)
        return best if best == depth or values[depth] - values[best] <= 1.0 else depth

    if as_planned:
        depth = of(Bids.of([bid]).mean_gains[0], max(depths, default=0))
        return tuple(min(depth, cap) for cap in bid.caps)
    return tuple(of(gains, depth) for gains, depth in zip(bid.gains, depths, strict=True))
