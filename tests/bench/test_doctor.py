"""`bench doctor`: its neighbours and its rule, and faults planted on a drafter that has learnt its texts."""

import json
from dataclasses import replace

import numpy as np
import pytest

from radiance_jax.bench import __main__ as bench
from radiance_jax.bench import doctor
from radiance_jax.bench import doctor_readings as readings
from radiance_jax.bench import doctor_texts
from radiance_jax.bench import doctor_verdict as verdict
from radiance_jax.bench.doctor_replay import Accepted, Text
from radiance_jax.bench.prompt_sets import Prompt
from radiance_jax.container.conversion import convert
from radiance_jax.models.config import RopeConfig
from radiance_jax.models.draft.registry import read_drafter
from tests import tiny_model
from tests.models import draft_overfit as overfit

DRAFTER = read_drafter(overfit.CONFIG)
TARGET = readings.Target(layers=5, rope=RopeConfig(theta=1e4), masks=((2, "2 (eos_token)"), (0, "0 (id 0)")),
                         texts=(readings.TEMPLATED, readings.RAW))
BASE = readings.declared(DRAFTER, readings.TEMPLATED)


@pytest.mark.parametrize(("argv", "says"), [
    (["--plant", "tap"], "did you mean 'taps'"), (["--mesh", "tp=2"], "mesh must be tp=1"),
    (["--sets", "rga"], "did you mean 'rag'"), (["--num-speculative-tokens", "0"], "more than 0"),
    (["--out", "/nowhere/x.json"], "folder that can be written")])
def test_wrong_commands_are_refused_in_one_line(capsys, argv, says):
    assert bench.main(["doctor", *argv]) == 2
    assert says in next(line for line in capsys.readouterr().err.splitlines() if line.startswith("error: "))


def test_a_model_without_a_drafter_is_refused(tmp_path, capsys):
    assert bench.main(["doctor", str(tiny_model.make(tmp_path / "m"))]) == 2
    assert "m holds none. Merge one: python -m radiance_jax.convert SRC OUT.rad --draft-model DIR" in capsys.readouterr().err


# ---- readings ----


def test_a_neighbour_differs_from_the_declared_reading_in_one_thing():
    near = readings.neighbours(BASE, TARGET)
    assert {each.kind for each in near} == set(readings.KINDS) and len({each.key for each in near}) == len(near)
    for each in near:
        config = {name for name, value in vars(each.drafter.config).items() if value != getattr(DRAFTER.config, name)}
        others = {name for name in ("taps", "rows", "offset", "texts") if getattr(each, name) != getattr(BASE, name)}
        assert len(config | others) == 1, each.what
    by_kind = {kind: [each for each in near if each.kind == kind] for kind in readings.KINDS}
    assert [each.taps for each in by_kind[readings.TAPS]] == [(0, 2), (2, 4)] and by_kind[readings.ORDER][0].taps == (3, 1)
    assert [each.drafter.config.mask_id for each in by_kind[readings.MASK]] == [2, 0, 149]  # 151 is no token
    assert [each.drafter.config.windows for each in by_kind[readings.WINDOW]] == [
        (None, None), (8, None), (2, None), (5, None), (3, None)]
    assert [each.drafter.config.rope.theta for each in by_kind[readings.ROPE]] == [1e5, 5e5, 1e6, 1e7]
    assert [each.drafter.config.causal for each in by_kind[readings.CAUSAL]] == [(True, True), (True, False)]
    assert [each.texts for each in by_kind[readings.TEMPLATE]] == [readings.RAW]


def test_neighbours_stay_within_the_target_and_fit_the_drafter():
    last = replace(BASE, taps=(-1, 4))
    assert readings.TAPS not in {each.kind for each in readings.neighbours(last, TARGET)}
    own = replace(BASE, drafter=replace(DRAFTER, config=replace(DRAFTER.config, own_mask=True, windows=(None, None))))
    near = readings.neighbours(own, TARGET)
    assert readings.MASK not in {each.kind for each in near}
    assert [each.drafter.config.windows for each in near if each.kind == readings.WINDOW] == [(32, 32), (128, 128)]
    wide = replace(BASE, drafter=replace(DRAFTER, config=replace(DRAFTER.config, windows=(2048, None))))
    assert [each.drafter.config.windows[0] for each in readings.neighbours(wide, TARGET) if each.kind == readings.WINDOW] == [
        None, 4096, 1024]


@pytest.mark.parametrize("kind", readings.PLANTED)
def test_the_cure_of_every_planted_fault_is_among_its_neighbours(kind):
    bad = readings.plant(kind, BASE, TARGET)
    assert bad.key != BASE.key
    (cure,) = [each for each in readings.neighbours(bad, TARGET) if each.key == BASE.key]
    assert cure.kind == kind


def test_a_fault_without_a_place_is_not_planted():
    assert readings.plant(readings.TEMPLATE, replace(BASE, texts=readings.RAW), replace(TARGET, texts=(readings.RAW,))) is None


# ---- texts and walks ----


def test_prompts_are_put_through_the_template_without_its_mark_and_plainly():
    class Tokenizer:
        def encode(self, text, add_special_tokens):
            return [len(text), int(add_special_tokens)]

    class Chat:
        def render(self, messages, add_generation_prompt):
            return f"<{messages[0]['content']}>" + "answer:" * add_generation_prompt

    ways = doctor_texts.put([Prompt(set="s", id="1", text="hi")], Tokenizer(), Chat())
    assert {name: each[0].ids for name, each in ways.items()} == {
        readings.TEMPLATED: (11, 0), readings.NO_ANSWER_MARK: (4, 0), readings.RAW: (2, 1)}
    assert list(doctor_texts.put([Prompt(set="s", id="1", ids=(7,))], Tokenizer(), Chat())) == [readings.RAW]
    assert list(doctor_texts.put([Prompt(set="s", id="1", text="hi")], Tokenizer(), None)) == [readings.RAW]


def test_a_walk_takes_the_engines_steps():
    """A cut answer of seven: from its first token two drafts are right, then none, then one, and one token is left, which needs
    no drafts; the model's own end leaves none."""
    ids = tuple(range(10, 19))
    cut = Accepted((Text("a", ids, 2, True),), ((2, 0, 9, 0, 1),), 5)
    assert list(cut.texts[0].anchors) == [2, 3, 4, 5, 6]
    assert cut.walk() == [[2, 0, 1]] and cut.mean_of_walk() == 1.0
    assert cut.tokens_per_verify() == 6 / 3
    left = Accepted((Text("a", ids, 2, True),), ((2, 0, 9, 0, 0),), 5)
    assert left.walk() == [[2, 0, 0]] and left.tokens_per_verify() == 6 / 4
    ended = Accepted((Text("a", ids, 2, False),), ((2, 0, 9, 0, 0, 0),), 5)
    assert ended.walk() == [[2, 0, 0, 0]] and ended.tokens_per_verify() == 6 / 4
    np.testing.assert_allclose(ended.means(), [11 / 6])


def test_new_text_is_what_no_copy_would_have_given():
    text = Text("a", (5, 6, 7, 5, 6, 7, 8), 3, False)
    assert list(text.anchors) == [3, 4, 5] and text.is_new() == [True, False, True]
    np.testing.assert_array_equal(Accepted((text,), ((1, 4, 3),), 5).means_of_new_text(), [2.0])
    assert np.isnan(Accepted((Text("a", (5, 5, 5, 5, 5, 5), 3, False),), ((1, 0),), 5).means_of_new_text()).all()


# ---- the rule ----


def test_prompts_put_otherwise_are_compared_in_new_text():
    """Answers that repeat themselves are easy for any drafter."""
    base = replace(measured(BASE, 0.5, 0.6, 0.5), in_new_text=(0.4, 0.5, 0.4))
    loops = replace(measured(other(readings.TEMPLATE), 3.0, 3.1, 3.0), in_new_text=(0.4, 0.5, float("nan")))
    (found,) = verdict.compare(base, [loops])
    assert found.gain == 0 and not found.better


def measured(reading, *by_prompt):
    return verdict.Measured(reading=reading, by_prompt=by_prompt, in_new_text=by_prompt, walk=1.0,
                            tokens_per_verify=1 + float(np.mean(by_prompt)))


def other(kind):
    return next(each for each in readings.neighbours(BASE, TARGET) if each.kind == kind)


def test_a_clearly_better_reading_names_the_fault():
    base = measured(BASE, 0.4, 0.6, 0.5, 0.5)
    better = [measured(other(readings.MASK), 0.9, 1.2, 1.0, 1.0), measured(other(readings.ROPE), 1.9, 2.2, 2.0, 2.1)]
    found = verdict.diagnose(base, verdict.compare(base, better), 2, 3)
    assert found["fault"] == readings.ROPE and "correct rope_theta" in found["text"] and "gain 1.55" in found["text"]
    assert "Better too, but less: mask." in found["text"] and "1 of 3 readings were not tried" in found["text"]


@pytest.mark.parametrize(("kind", "gains", "better"), [
    (readings.MASK, (0.20, 0.21, 0.19, 0.20), True), (readings.MASK, (0.05, 0.05, 0.05, 0.06), False),  # too little to matter
    (readings.MASK, (1.0, 0.0, 0.5, -0.1), False),  # chance may do that
    (readings.TEMPLATE, (0.15, 0.16, 0.15, 0.15), False), (readings.TEMPLATE, (0.25, 0.26, 0.25, 0.25), True)])
def test_better_is_more_than_little_and_more_than_chance(kind, gains, better):
    base = measured(BASE, 0.5, 0.7, 0.6, 0.5)
    (found,) = verdict.compare(base, [measured(other(kind), *np.add(base.by_prompt, gains))])
    assert found.better == better and found.gain == pytest.approx(np.mean(gains))


def test_a_single_prompt_proves_nothing():
    base = measured(BASE, 0.5)
    assert not verdict.compare(base, [measured(other(readings.MASK), 4.5)])[0].better


@pytest.mark.parametrize(("accepted", "says"), [
    (0.01, "untrained, was trained for another target"), (0.3, "trained too little"),
    (2.0, "how the drafter is to be read.")])
def test_where_no_reading_is_better_the_level_is_judged(accepted, says):
    base = measured(BASE, accepted, accepted)
    found = verdict.diagnose(base, verdict.compare(base, [measured(other(readings.MASK), 0.0, 0.0)]), 1, 1)
    assert found["fault"] is None and says in found["text"]
    assert ("low" in found["text"]) == (accepted == 0.3) and found["text"].endswith(says) == (accepted == 2.0)


# ---- on a drafter that has learnt its texts ----

ASKED = ["--dtype", "f32", "--temperature", "1", "--seed", "11", "--ignore-eos",
         "--max-tokens", str(overfit.LENGTH - overfit.PROMPT), "--row-tile", "4"]


@pytest.fixture(scope="module")
def learnt(tmp_path_factory):
    """The folder of everything: a target, the prompts it was asked, and a drafter's tensors."""
    folder = tmp_path_factory.mktemp("doctor")
    target = tiny_model.make(folder / "target", **overfit.TARGET)
    (folder / "ids.jsonl").write_text("".join(json.dumps({"prompt_ids": each}) + "\n" for each in overfit.prompts()))
    (folder / "words.jsonl").write_text("".join(
        json.dumps({"prompt": " ".join(f"w{i}" for i in each)}) + "\n" for each in overfit.prompts()))
    return folder, target, overfit.fit(overfit.lesson(target))


def examined(learnt, name, prompts="ids", target=None, config=overfit.CONFIG, flags=()):
    """A drafter with another config.json, merged and examined: the status and the record."""
    folder, own, tensors = learnt
    drafter = overfit.save(folder / name, tensors)
    (drafter / "config.json").write_text(json.dumps(config))
    rad = convert(target or own, folder / f"{name}.rad", "f32", draft_path=drafter, overwrite=True).path
    out = folder / f"{name}.json"
    status = bench.main(["doctor", str(rad), *ASKED, "--prompts", str(folder / f"{prompts}.jsonl"), "--out", str(out),
                         "--cache-dir", str(folder / "cache"), *flags])
    return status, json.loads(out.read_text())


@pytest.mark.long
def test_every_planted_fault_is_found_and_the_replay_is_the_engine(learnt):
    status, found = examined(learnt, "sound", flags=["--plant", doctor.ALL])
    assert found["agrees"] and found["replay_and_engine_apart"]["steps"] <= 1
    assert found["engine"]["tokens_per_verify"] == pytest.approx(found["declared"]["tokens_per_verify"], rel=0.03)
    assert found["diagnosis"]["fault"] is None and found["declared"]["accepted_an_anchor"] > 4.5
    assert not found["not_tried"]
    planted = {each["plant"]: each["result"] for each in found["planted"]}
    assert planted == dict.fromkeys(readings.PLANTED, "found") | {readings.TEMPLATE: "no place for it"}
    assert status == 0


WRONG = {  # the config.json as a publisher may have got it wrong, and what the doctor must say
    readings.TAPS: {"dflash_config": {"mask_token_id": overfit.MASK, "aux_hidden_state_layer_ids": list(overfit.TAPS)}},
    readings.SLOTS: {"sample_from_anchor": True}}


@pytest.mark.long
@pytest.mark.parametrize("kind", WRONG)
def test_a_wrong_file_is_diagnosed_from_the_container(learnt, kind):
    """Not planted by the doctor: the engine itself serves the wrong reading here, and the replay agrees with it."""
    status, found = examined(learnt, kind, config=overfit.CONFIG | WRONG[kind])
    assert status == 0 and found["agrees"] and found["diagnosis"]["fault"] == kind


@pytest.mark.long
def test_a_template_of_other_training_data_is_found(learnt):
    """The drafter has learnt answers to the bare prompts; the target's template puts words round them."""
    folder, target, _ = learnt
    other_target = tiny_model.make(folder / "templated", **overfit.TARGET)
    (other_target / "tokenizer_config.json").write_text(json.dumps({
        "chat_template": "w9 w8 {% for m in messages %}{{ m['content'] }} {% endfor %}w7 w6 w9", "eos_token": "w2"}))
    status, found = examined(learnt, "template", prompts="words", target=other_target)
    assert status == 0 and found["agrees"] and found["diagnosis"]["fault"] == readings.TEMPLATE
    assert found["diagnosis"]["reading"] == f"prompts: {readings.RAW}"


@pytest.mark.long
def test_an_untrained_drafter_is_told_so(learnt):
    folder, target, tensors = learnt
    fresh = overfit.fresh(DRAFTER.shapes(), np.random.default_rng(1))
    status, found = examined((folder, target, fresh), "fresh")  # what is accepted is so by the noise that it shares
    assert status == 0 and found["diagnosis"]["fault"] is None and "Acceptance is low all the same" in found["diagnosis"]["text"]
