"""Ways to read a drafter: the declared one, its neighbours, and faults to plant. No jax here.

Everything in a `Reading` can be wrong without a trace in any shape: the engine then drafts, and little is accepted.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from radiance_jax.models.config import RopeConfig

if TYPE_CHECKING:
    from radiance_jax.models.draft.backbone import BlockDrafter

DECLARED, TAPS, ORDER, SLOTS, CONTEXT, POSITION, MASK, WINDOW, ROPE, CAUSAL, SCALE, TEMPLATE = (
    "declared", "taps", "order of taps", "slots", "anchor in context", "position", "mask", "window", "rope", "causality",
    "embedding scale", "chat template")
KINDS = (TAPS, ORDER, SLOTS, CONTEXT, POSITION, MASK, WINDOW, ROPE, CAUSAL, SCALE, TEMPLATE)
PLANTED = (TAPS, SLOTS, CONTEXT, MASK, WINDOW, ROPE, CAUSAL, TEMPLATE)
TEMPLATED, NO_ANSWER_MARK, RAW = "template", "template without the mark of an answer", "raw"
FELT = 64  # windows longer than this one more or less is not felt in
THETAS = (1e4, 1e5, 5e5, 1e6, 1e7)


@dataclass(frozen=True, kw_only=True)
class Reading:
    """`drafter`: the description whose switches are used. `taps`: layers behind which the target is read. `rows`: 1 where
    the context holds the anchor's own state, which at serving is not there yet. `offset`: how far the context's rotary
    positions stand beside the block's. `texts`: how the prompts were put to the target."""

    kind: str
    what: str
    drafter: "BlockDrafter"
    taps: tuple[int, ...]
    rows: int = 0
    offset: int = 0
    texts: str = TEMPLATED

    @property
    def key(self) -> tuple:
        """Two readings with the same key read alike, whatever they are called."""
        return self.drafter, self.taps, self.rows, self.offset, self.texts


@dataclass(frozen=True, kw_only=True)
class Target:
    """What the neighbours depend on: decoder layers, rotary embedding, ids that could be a mask token with their names, and the
    ways in which the prompts can be put."""

    layers: int
    rope: RopeConfig
    masks: tuple[tuple[int, str], ...]
    texts: tuple[str, ...]


def declared(drafter: "BlockDrafter", texts: str) -> Reading:
    return Reading(kind=DECLARED, what="as the file says", drafter=drafter, taps=drafter.taps, texts=texts)


def neighbours(base: Reading, target: Target) -> list[Reading]:
    """Every reading that differs from `base` in one thing, none twice. The likeliest faults come first."""
    found, seen = [], {base.key}
    for each in _all(base, target):
        if each.key not in seen:
            seen.add(each.key)
            found.append(each)
    return found


def _all(base: Reading, target: Target) -> Iterator[Reading]:
    def other(kind: str, what: str, **changes: object) -> Reading:
        own = {name: changes.pop(name) for name in ("taps", "rows", "offset", "texts") if name in changes}
        drafter = replace(base.drafter, config=replace(base.drafter.config, **changes)) if changes else base.drafter
        return replace(base, kind=kind, what=what, drafter=drafter, **own)

    c = base.drafter.config
    for step in (-1, 1):
        taps = tuple(tap + step for tap in base.taps)
        if min(taps) >= -1 and max(taps) < target.layers:
            yield other(TAPS, f"behind layers {_list(taps)}", taps=taps)
    if c.block_size > 1:
        yield other(SLOTS, f"a slot stands for {'its own position' if c.shifted else 'the next position'}", shifted=not c.shifted)
    for texts in target.texts:
        if texts != base.texts:
            yield other(TEMPLATE, f"prompts: {texts}", texts=texts)
    if not c.own_mask:
        for mask, name in target.masks:
            yield other(MASK, f"mask {name}", mask_id=mask)
        for mask in (c.mask_id - 1, c.mask_id + 1):
            if 0 <= mask < c.vocab_size:
                yield other(MASK, f"mask {mask}", mask_id=mask)
    for theta in dict.fromkeys((target.rope.theta, *THETAS)):
        yield other(ROPE, f"theta {theta:g}", rope=replace(c.rope, theta=theta))
    yield other(ROPE, f"the target's: {target.rope.kind}, theta {target.rope.theta:g}", rope=target.rope)
    every = (True,) * c.num_layers
    for causal in (tuple(not each for each in every), every, tuple(window is not None for window in c.windows)):
        yield other(CAUSAL, _causality(causal), causal=causal)
    for windows in _windows(c.windows):
        yield other(WINDOW, f"windows {_list(windows)}", windows=windows)
    yield other(CONTEXT, "without the anchor's state" if base.rows else "with the anchor's state", rows=1 - base.rows)
    for step in (-1, 1):
        yield other(POSITION, f"the context {abs(base.offset + step)} positions "
                    f"{'on' if base.offset + step > 0 else 'back'}" if base.offset + step else "the context in its place",
                    offset=base.offset + step)
    if len(base.taps) > 1:
        yield other(ORDER, f"in the order {_list(base.taps[::-1])}", taps=base.taps[::-1])
    own = math.sqrt(c.width)
    for scale in (1.0, own):
        yield other(SCALE, f"embeddings times {scale:.4g}", embedding_scale=scale)


def _windows(windows: Sequence[int | None]) -> Iterator[tuple[int | None, ...]]:
    if any(window is not None for window in windows):
        yield (None,) * len(windows)
        changes = [lambda w: 2 * w, lambda w: max(w // 2, 1)]
        if min(window for window in windows if window is not None) <= FELT:
            changes += [lambda w: w + 1, lambda w: max(w - 1, 1)]
        for change in changes:
            yield tuple(None if window is None else change(window) for window in windows)
    else:
        for window in (32, 128):
            yield (window,) * len(windows)


def plant(kind: str, base: Reading, target: Target) -> Reading | None:
    """`base` with a fault of that kind; its cure is among the neighbours of what comes back. None where the drafter or the
    model has no place for it."""
    near = [each for each in neighbours(base, target) if each.kind == kind]
    c = base.drafter.config
    if kind == TAPS:  # one further on, as by a reader that takes inputs for outputs
        near = near[-1:]
    elif kind == MASK:  # the id behind it, which is often a word
        near = [each for each in near if abs(each.drafter.config.mask_id - c.mask_id) == 1][::-1]
    elif kind == ROPE:
        far = max(THETAS, key=lambda theta: abs(math.log(theta / c.rope.theta)))
        near = [each for each in near if each.drafter.config.rope.theta == far]
    elif kind == WINDOW:
        half = tuple(None if window is None else max(window // 2, 1) for window in c.windows)
        near = [each for each in near if each.drafter.config.windows == half] or near[:1]
    elif kind == CAUSAL:
        near = [each for each in near if set(each.drafter.config.causal) == {not c.causal[-1]}]
    elif kind == TEMPLATE:
        near = [each for each in near if each.texts == RAW]
    return replace(near[0], what=f"planted: {near[0].what}") if near else None


def _list(items: Sequence[object]) -> str:
    return ", ".join("embedding" if each == -1 else "none" if each is None else str(each) for each in items)


def _causality(causal: Sequence[bool]) -> str:
    return ("a slot sees those before it" if all(causal) else "slots see each other" if not any(causal) else
            "causal where there is a window")
