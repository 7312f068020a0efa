"""A drafter that has learnt its texts: nearly all is accepted, and every wrong-by-one reading of it shows."""

from dataclasses import replace

import pytest

from radiance_jax.container.conversion import convert
from radiance_jax.models.draft import backbone
from radiance_jax.models.draft.registry import read_drafter
from tests import tiny_model
from tests.models import draft_overfit as overfit

pytestmark = pytest.mark.slow
DRAFTER = read_drafter(overfit.CONFIG)
KEPT, LOST = 4.8, 4.0  # of five drafts


@pytest.fixture(scope="module")
def learnt(tmp_path_factory):
    """The folder of the target, what it says, and a drafter's tensors."""
    target = tiny_model.make(tmp_path_factory.mktemp("overfit") / "target", **overfit.TARGET)
    taught = overfit.lesson(target)
    return target, taught, overfit.fit(taught)


def with_config(**changes):
    return replace(DRAFTER, config=replace(DRAFTER.config, **changes))


def test_nearly_everything_is_accepted(learnt):
    _, taught, tensors = learnt
    assert overfit.accepted(DRAFTER, tensors, taught) > KEPT
    assert len(set(taught.ids[:, overfit.PROMPT:].ravel().tolist())) > 60  # the texts are no loops of a few tokens


WRONG = {
    "the inputs of the tapped layers": (DRAFTER, tuple(tap - 1 for tap in overfit.TAPS)),
    "the layers behind the tapped ones": (DRAFTER, tuple(tap + 1 for tap in overfit.TAPS)),
    "the taps in another order": (DRAFTER, overfit.TAPS[::-1]),
    "slots of the other convention": (with_config(shifted=True), None),
    "another mask token": (with_config(mask_id=overfit.MASK - 1), None),
    "another rope theta": (with_config(rope=replace(DRAFTER.config.rope, theta=1e6)), None),
    "slots that see only those before": (with_config(causal=(True, True)), None),
    "a window that is one wider": (with_config(windows=(5, None)), None),
    "no window": (with_config(windows=(None, None)), None),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_each_wrong_reading_lowers_acceptance(learnt, mistake):
    _, taught, tensors = learnt
    drafter, layers = WRONG[mistake]
    assert overfit.accepted(drafter, tensors, taught, layers) < LOST, mistake


@pytest.mark.parametrize("rows", (1, -1))
def test_the_anchor_in_the_context_or_a_row_too_few_lowers_acceptance(learnt, rows, monkeypatch):
    """1: the state at the anchor's own position, which at serving is not there yet."""
    _, taught, tensors = learnt
    attend = backbone.attend
    monkeypatch.setattr(backbone, "attend", lambda q, k, v, ring, position, *more: attend(q, k, v, ring, position + rows, *more))
    assert overfit.accepted(DRAFTER, tensors, taught) < LOST


def test_from_the_container_it_drafts_as_well_and_changes_nothing(learnt, tmp_path):
    """The whole way: published folder, merged container, engine, acceptance there; the same texts as without drafts."""
    target, taught, tensors = learnt
    rad = convert(target, tmp_path / "m.rad", "f32", draft_path=overfit.save(tmp_path / "drafter", tensors)).path
    said = overfit.speak(rad)
    for text, answer in zip(taught.ids, said, strict=True):
        assert answer.token_ids == text[overfit.PROMPT:].tolist()
    stats = [answer.stats for answer in said]
    drafted, kept = (sum(getattr(s, name) for s in stats) for name in ("num_draft_tokens", "num_accepted_draft_tokens"))
    assert kept / drafted > 0.85, (kept, drafted)


