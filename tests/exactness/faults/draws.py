"""Device faults of draws and acceptance: which row draws with which seed, and whether it is kept."""

from collections.abc import Callable
from dataclasses import replace

import jax
import jax.numpy as jnp

from radiance_jax.engine import steps
from radiance_jax.engine.state import DECODE
from tests.exactness import test_batches, test_drafters, test_endings, test_sampling

FAULTS: dict[str, Callable] = {
    "the bonus row draws nothing": test_drafters.test_a_drafter_that_is_always_right,
    "the bonus token is the draw of the row before": test_drafters.test_a_drafter_that_is_always_right,
    "a draft is emitted unverified": test_drafters.test_a_drafter_that_is_always_wrong,
    "one draft too many is accepted": test_drafters.test_refusing_at_each_place_of_a_run,
    "the longest accepted run of the batch serves all": test_batches.test_two_that_draft_side_by_side,
    "a stop token inside a run is ignored": test_endings.test_a_stop_token_at_each_place,
    "the length cap is overrun inside a run": test_endings.test_the_length_cap_at_each_place,
    "noise is drawn anew for every draft": test_sampling.test_noise_belongs_to_the_place_in_the_answer,
    "noise from the seed of the neighbour": test_sampling.test_noise_does_not_come_from_a_mates_seed,
    "the top 20 of the row before": test_drafters.test_refusing_at_each_place_of_a_run,
}


def _draw_rows(original, on, seen):
    def draw_rows(params, config, state, layout, position, needs, *rest):
        s = seen
        seed = state.draw.seed
        anew = (s.mode == DECODE) & on("noise is drawn anew for every draft")
        more = jnp.where(anew, layout.count - 1, 0).astype(jnp.uint32)[:, None]
        seed = jnp.where(on("noise from the seed of the neighbour"), jnp.roll(seed, 1, axis=0), seed) + more
        state_ = replace(state, draw=replace(state.draw, seed=seed))
        needs = needs & ~(on("the bonus row draws nothing") & s.is_draft & s.is_last)
        drawn, logprob, ids, tops = original(params, config, state_, layout, position, needs, *rest)
        unread = state.tokens[layout.slot, position + 1]
        drawn = jnp.where(on("a draft is emitted unverified") & s.decodes & ~s.is_last, unread, drawn)
        stale = on("the bonus token is the draw of the row before") & s.is_draft & s.is_last
        drawn = jnp.where(stale, drawn[s.row - 1], drawn)
        before = (on("the top 20 of the row before") & s.is_draft)[:, None]
        return drawn, logprob, jnp.where(before, ids[s.row - 1], ids), jnp.where(before, tops[s.row - 1], tops)
    return draw_rows


def _accept(original, on, seen):
    def accept(chain, drafts, drafted, draws, stops, length, limit):
        given = original(chain, drafts, drafted, draws, stops, length, limit)
        endless = original(chain, drafts, drafted, draws, jnp.full_like(stops, -1), length, limit)
        ignored = on("a stop token inside a run is ignored") & (given.accepted > 0)
        made = jax.tree.map(lambda a, b: jnp.where(ignored, a, b), endless, given)
        room = draws & (made.ended == 0) & (length + made.emitted < limit)
        more = on("one draft too many is accepted") & room & (drafted > made.accepted)
        longest = jnp.minimum(made.accepted.max(), drafted)
        shared = on("the longest accepted run of the batch serves all") & room & (longest > made.accepted)
        over = on("the length cap is overrun inside a run") & (made.ended == 2) & (drafted > 0)
        over = over & (made.accepted >= drafted)
        emitted = jnp.where(shared, jnp.minimum(longest + 1, limit - length), made.emitted + more + over)
        full = (length + emitted >= limit) & draws & (made.ended == 0)
        return replace(made, emitted=emitted, ended=jnp.where(full, 2, made.ended))
    return accept


PLACES = {(steps, "_draw_rows"): _draw_rows, (steps, "accept"): _accept}
