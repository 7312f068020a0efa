"""Answers on disk: what goes in comes out, what is damaged or of another model is refused, the split is a function of text."""

import json

import numpy as np
import pytest

from radiance_jax.errors import UserError
from radiance_jax.training.dataset import (
    MANIFEST,
    Answer,
    Answers,
    Manifest,
    SourceInfo,
    is_held_out,
    part_name,
    target_fingerprint,
    text_hash,
)
from radiance_jax.training.dataset_writer import AnswersWriter

SOURCES = (SourceInfo(name="maths", licence="MIT"), SourceInfo(name="chat", licence="Apache-2.0"))


def manifest(**changes) -> Manifest:
    fields = {"target": "target-abc", "target_description": "a model", "vocab_size": 49152, "sampling": {"max_tokens": 9},
              "sources": SOURCES}
    return Manifest(**fields | changes)


def answers(count: int, vocab: int = 49152) -> list[Answer]:
    rng = np.random.default_rng(0)
    return [Answer(rng.integers(0, vocab, rng.integers(3, 60)).astype(np.int32), int(rng.integers(0, 3)),
                   SOURCES[number % 2].name, 0.5 * (number % 2), text_hash(f"prompt {number}"), number)
            for number in range(count)]


def write(folder, items, **writer) -> AnswersWriter:
    made = AnswersWriter(folder, manifest(), **writer)
    for each in items:
        made.add(each)
    made.save()
    return made


def same(left, right) -> bool:
    return ([each.ids.tolist() for each in left] == [each.ids.tolist() for each in right]
            and all(a.ids.dtype == np.int32 for a in left)
            and [(a.answer_start, a.source, a.temperature, a.prompt_hash, a.number) for a in left]
            == [(a.answer_start, a.source, a.temperature, a.prompt_hash, a.number) for a in right])


@pytest.mark.parametrize("part_bytes", [1, 800, 1 << 20])
def test_answers_come_back_as_they_were_in_parts_of_any_size(tmp_path, part_bytes):
    items = answers(80)
    write(tmp_path / "a", items, max_part_bytes=part_bytes)
    parts = sorted((tmp_path / "a").glob("part-*"))
    assert len(parts) == {1: 80, 800: len(parts), 1 << 20: 1}[part_bytes] and (part_bytes != 800 or 3 < len(parts) < 20)
    assert same(list(Answers.open(tmp_path / "a", "all")), items)
    assert {path.name for path in (tmp_path / "a").iterdir()} == {MANIFEST, *(part_name(i) for i in range(len(parts)))}


def test_a_part_reads_with_numpy_alone(tmp_path):
    items = answers(20)
    write(tmp_path, items)
    part = np.load(tmp_path / part_name(0))
    assert part["ids"].dtype == np.uint16
    at = part["starts"][7]
    assert part["ids"][at:part["starts"][8]].tolist() == items[7].ids.tolist()


def test_large_vocabularies_keep_their_ids(tmp_path):
    writer = AnswersWriter(tmp_path, manifest(vocab_size=200_000))
    items = answers(20, 200_000)
    for each in items:
        writer.add(each)
    writer.save()
    assert same(list(Answers.open(tmp_path, "all")), items)


def test_the_split_is_a_function_of_the_words_of_a_prompt(tmp_path):
    items = answers(2000)
    write(tmp_path / "a", items)
    write(tmp_path / "b", items[::-1], max_part_bytes=5000)
    train, held_out = (Answers.open(tmp_path / "a", split) for split in ("train", "held_out"))
    assert len(train) + len(held_out) == 2000 and 25 < len(held_out) < 110
    assert not {each.prompt_hash for each in train} & {each.prompt_hash for each in held_out}
    assert same(list(Answers.open(tmp_path / "b", "held_out")), list(held_out))  # made in another order, read in the same
    assert all(is_held_out(each.prompt_hash) for each in held_out) and not any(is_held_out(each.prompt_hash) for each in train)
    assert text_hash("How  many, eggs?") == text_hash("how many eggs") != text_hash("how many egg")
    assert text_hash("?!") != text_hash("!!")


def test_text_hashes_stay_what_they_are():
    """A changed hash would move answers across the split of folders made before."""
    assert text_hash("How many eggs?") == 8954503673387280909


def test_lengths_are_those_of_the_answers(tmp_path):
    write(tmp_path, answers(100))
    train = Answers.open(tmp_path)
    assert train.lengths.tolist() == [len(each.ids) for each in train]
    assert train.answer_lengths.tolist() == [len(each.ids) - each.answer_start for each in train]


def test_a_killed_run_goes_on_from_its_last_save(tmp_path):
    items = answers(50)
    writer = write(tmp_path, items[:20], max_part_bytes=1000)
    writer.add(items[20])  # never saved
    again = AnswersWriter(tmp_path, manifest(), max_part_bytes=1000)
    assert again.done == set(range(20)) and again.manifest.folder_id == writer.manifest.folder_id
    for each in items[20:]:
        again.add(each)
    again.save()
    write(tmp_path / "once", items, max_part_bytes=1000)
    assert same(list(Answers.open(tmp_path, "all")), items)
    for path in (tmp_path / "once").glob("part-*"):
        assert np.array_equal(np.load(path)["ids"], np.load(tmp_path / path.name)["ids"])
    counts = json.loads((tmp_path / MANIFEST).read_text())
    assert counts["answers"] == 50 and counts["answers_by_source"] == {"maths": 25, "chat": 25}
    assert counts["tokens"] == sum(len(each.ids) for each in items)


def test_a_part_saved_after_the_manifest_counts(tmp_path):
    items = answers(40)
    write(tmp_path, items[:20], max_part_bytes=600)
    before = (tmp_path / MANIFEST).read_text()
    again = AnswersWriter(tmp_path, manifest(), max_part_bytes=600)
    for each in items[20:]:
        again.add(each)
    again.save()
    (tmp_path / MANIFEST).write_text(before)  # killed between the two
    assert len(Answers.open(tmp_path, "all")) == 40
    assert AnswersWriter(tmp_path, manifest(), max_part_bytes=600).done == set(range(40))


def test_other_work_is_not_mixed_in(tmp_path):
    write(tmp_path, answers(5))
    for change in ({"target": "target-other"}, {"sampling": {"max_tokens": 8}}, {"sources": SOURCES[:1]}):
        with pytest.raises(UserError, match=f"same work.*its {next(iter(change))} is"):
            AnswersWriter(tmp_path, manifest(**change))
    with pytest.raises(UserError, match="once"):
        AnswersWriter(tmp_path, manifest()).add(answers(1)[0])


@pytest.mark.parametrize("wrong, message", [
    (Answer(np.array([1, 2]), 2, "chat"), "at least a token after its prompt"),
    (Answer(np.array([1, 49152]), 1, "chat"), "ids below 49152"),
    (Answer(np.array([-1, 2]), 1, "chat"), "ids below 49152"),
    (Answer(np.array([], np.int32), 0, "chat"), "at least a token"),
    (Answer(np.array([1, 2]), 1, "web"), "one of maths, chat"),
])
def test_answers_that_cannot_be_are_refused(tmp_path, wrong, message):
    with pytest.raises(UserError, match=message):
        AnswersWriter(tmp_path, manifest()).add(wrong)


def test_another_target_is_refused(tmp_path):
    write(tmp_path, answers(50))
    assert len(Answers.open(tmp_path, target="target-abc"))
    with pytest.raises(UserError, match=r"trained for \(target-xyz\); it holds those of target-abc"):
        Answers.open(tmp_path, target="target-xyz")


def test_a_target_has_one_fingerprint_in_all_its_forms():
    class Form:
        def __init__(self, hashes, own):
            self.fingerprint, self._hashes = own, hashes

        def source_hashes(self):
            return self._hashes

    gguf, rad, other = Form({"m.gguf": "12"}, "gguf-1"), Form({"m.gguf": "12"}, "rad-2"), Form({"m.gguf": "13"}, "gguf-3")
    assert target_fingerprint(gguf) == target_fingerprint(rad) != target_fingerprint(other)
    assert target_fingerprint(Form({}, "rad-4")) == "rad-4"


def test_missing_and_damaged_parts_are_named(tmp_path):
    write(tmp_path, answers(60), max_part_bytes=1000)
    path = tmp_path / part_name(1)
    good = path.read_bytes()
    path.unlink()
    with pytest.raises(UserError, match="part-00001.npz is missing"):
        Answers.open(tmp_path)
    for bad in (b"", good[:200], good[:-40], b"not a zip" * 20):
        path.write_bytes(bad)
        with pytest.raises(UserError, match="part-00001.npz is damaged"):
            Answers.open(tmp_path)
    flipped = bytearray(good)
    flipped[good.index(b"ids.npy") + 150] ^= 255
    path.write_bytes(bytes(flipped))
    with pytest.raises(UserError, match="part-00001.npz is damaged"):
        Answers.open(tmp_path)


def test_parts_of_other_folders_and_lost_answers_are_seen(tmp_path):
    write(tmp_path / "a", answers(60))
    write(tmp_path / "b", answers(30))
    mine = (tmp_path / "a" / part_name(0)).read_bytes()
    (tmp_path / "a" / part_name(0)).write_bytes((tmp_path / "b" / part_name(0)).read_bytes())
    with pytest.raises(UserError, match="another folder"):
        Answers.open(tmp_path / "a")
    (tmp_path / "a" / part_name(0)).write_bytes(mine)
    raw = json.loads((tmp_path / "a" / MANIFEST).read_text())
    (tmp_path / "a" / MANIFEST).write_text(json.dumps(raw | {"answers": 61}))
    with pytest.raises(UserError, match="the 61 answers of its manifest; it has 60"):
        Answers.open(tmp_path / "a")


def test_folders_of_other_kinds_are_refused(tmp_path):
    with pytest.raises(UserError, match="folder of answers"):
        Answers.open(tmp_path)
    with pytest.raises(UserError, match="must be one of train, held_out"):
        Answers.open(tmp_path, "test")
    for text, message in (("{", "must be JSON"), ("[]", "format"), ('{"format": "other"}', "format")):
        (tmp_path / MANIFEST).write_text(text)
        with pytest.raises(UserError, match=message):
            Answers.open(tmp_path)
    write(tmp_path / "none", [])
    with pytest.raises(UserError, match="none yet"):
        Answers.open(tmp_path / "none")
    write(tmp_path / "one", answers(1))
    with pytest.raises(UserError, match="split held_out .* must not be empty"):
        Answers.open(tmp_path / "one", "held_out")
