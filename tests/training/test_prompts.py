"""The training prompts: what is in the package, in which order, and that the evaluation sets are not among them."""

import gzip
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from radiance_jax.errors import UserError
from radiance_jax.training import build_prompts, prompts, sources, templates
from radiance_jax.training.contamination import RUN, EvaluationSets, run_hashes, words_of
from radiance_jax.training.dataset import is_held_out, text_hash

BENCHMARKS = Path(prompts.__file__).parents[1] / "bench" / "prompts"
TEXT = " ".join(f"word{i}" for i in range(40))


@pytest.fixture(scope="module")
def everything() -> tuple[prompts.Prompt, ...]:
    return prompts.load()


# ---- evaluation sets ----


def test_words_are_compared_without_case_punctuation_and_forms():
    assert words_of("It's  A\u00a0TEST: 3.5, ﬁne") == ["it", "s", "a", "test", "3", "5", "fine"]


def test_runs_have_hashes_of_their_own():
    words = [f"w{i}" for i in range(2000)]
    hashes = run_hashes(words, (2, 13))
    assert len(hashes) == 1999 + 1988 == len(set(hashes.tolist())) and int(hashes.max()) < 2**40
    assert np.array_equal(run_hashes(words[5:18], (13,)), run_hashes(words, (13,))[5:6])
    assert run_hashes(["b", "a"], (2,)) != run_hashes(["a", "b"], (2,))
    assert not len(run_hashes(["a"], (2,))) and not len(run_hashes([], (2,)))


def test_a_run_of_thirteen_words_is_shared_text_and_twelve_are_not():
    evaluation, words = EvaluationSets.of([TEXT]), TEXT.split()
    for start in (0, 9, 27):
        assert evaluation.shares("before, " + " ".join(words[start:start + RUN]).upper() + "! after")
        assert not evaluation.shares("before " + " ".join(words[start:start + RUN - 1]) + " after")
    assert not evaluation.shares("") and not EvaluationSets.of([]).shares(TEXT)


def test_short_evaluation_texts_are_found_whole():
    evaluation = EvaluationSets.of(["Who plays the violin best?", "Why so?"])
    assert evaluation.shares("Tell me: who plays the violin best")
    assert not evaluation.shares("Who plays the violin") and not evaluation.shares("Why so?")


def test_evaluation_sets_come_back_from_a_file(tmp_path):
    evaluation = EvaluationSets.of([TEXT, "Who plays the violin best?"])
    evaluation.save(tmp_path / "e.npz")
    again = EvaluationSets.load(tmp_path / "e.npz")
    assert np.array_equal(again.hashes, evaluation.hashes) and again.lengths == evaluation.lengths
    (tmp_path / "e.npz").write_bytes(b"no")
    with pytest.raises(UserError, match="build_prompts"):
        EvaluationSets.load(tmp_path / "e.npz")


def test_every_benchmark_prompt_is_known_as_one():
    found = [json.loads(line)["prompt"] for path in sorted(BENCHMARKS.glob("*.jsonl")) for line in path.read_text().splitlines()]
    assert len(found) > 190
    long = [text for text in found if len(words_of(text)) >= 4]
    assert len(long) > 190 and all(prompts.evaluation_sets().shares(text) for text in long)


def test_no_prompt_in_the_package_shares_text_with_an_evaluation_set(everything):
    """Every prompt without a parent, a fifth of them on each run of the fast tier."""
    evaluation = prompts.evaluation_sets()
    assert len(evaluation.hashes) > 200_000
    own = [each.text for each in everything if not each.parents]
    assert len(own) > 25_000 and not [text for text in own[::5] if evaluation.shares(text)]


@pytest.mark.slow
def test_none_at_all_shares_text_with_an_evaluation_set(everything):
    assert not [each.text for each in everything if prompts.evaluation_sets().shares(each.text)]


# ---- the prompts ----


def test_the_package_has_prompts_of_every_source_and_kind(everything):
    counts = Counter(each.source for each in everything)
    assert {name.split("/")[0] for name in counts} == {templates.OWN, *(each.name for each in sources.SOURCES)}
    for task in ("chat", "translation", "summarisation", "qa", "maths", "rag", "coding", "second turn", "copying", "editing"):
        assert sum(count for name, count in counts.items() if name.endswith("/" + task)) > 300, task
    recorded = json.loads((templates.FOLDER / "counts.json").read_text())["prompts"]
    for name, count in counts.items():
        if name in recorded:
            assert count == recorded[name]["kept"]
    infos = prompts.source_infos(everything)
    assert {each.name for each in infos} == set(counts)
    assert {each.licence for each in infos} == {"MIT", "CC-BY-4.0", "Apache-2.0"}


def test_prompts_are_the_same_everywhere(everything):
    """The order of work decides what a resumed run does next: another one must have another name."""
    assert len(everything) == 38348 and prompts.fingerprint(everything) == "2025c8687716c350"
    assert prompts.fingerprint(everything[:-1]) != "2025c8687716c350"


def test_a_part_of_the_order_has_all_kinds_in_proportion(everything):
    whole, part = (Counter(each.source for each in some) for some in (everything, everything[len(everything) // 5:][:8000]))
    for name, count in whole.items():
        share = part[name] / count / (8000 / len(everything))
        assert 0.75 < share < 1.33, name


def test_prompts_about_answers_come_well_behind_them_on_one_side_of_the_split(everything):
    derived = [(place, each) for place, each in enumerate(everything) if each.parents]
    assert len(derived) > 8000
    for place, each in derived:
        assert place - max(each.parents) > 400
        sides = {bool(is_held_out(everything[parent].prompt_hash)) for parent in each.parents}
        assert sides == {bool(is_held_out(each.prompt_hash))}
        assert each.turn or "{passage}" in each.text
        assert len(each.parents) == 1 or not each.turn
    assert sum(len(each.parents) == 2 for _, each in derived) > 500


def test_no_braces_of_a_template_are_left(everything):
    own = [each.text for each in everything if each.source.startswith(templates.OWN)]
    holes = [f"{{{name}}}" for name in ("x", "a", "b", "c", "d", "n", "numbers", "question", "question_lower")]
    assert not [text for text in own if any(hole in text for hole in holes)]


def test_one_in_thirty_two_is_held_out(everything):
    share = np.mean([bool(is_held_out(each.prompt_hash)) for each in everything])
    assert 0.7 / 32 < share < 1.3 / 32


# ---- reading sources ----


def write(folder: Path, name: str, rows: list) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(rows) if path.suffix == ".json" else "".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def folder(tmp_path) -> Path:
    """A folder of sources of a few lines each; the evaluation sets hold some of them."""
    write(tmp_path, "gsm8k/train.jsonl", [{"question": f"How many are {i} and {i}?\u2028"} for i in range(4)])
    write(tmp_path, "mbpp/mbpp.jsonl", [{"text": "Write a function to add.", "code": "def add(a, b):\r\n  return a + b",
                                         "test_list": ["assert add(1, 2) == 3"]}])
    write(tmp_path, "self-instruct/seed_tasks.jsonl", [{"instruction": "Say", "instances": [{"input": "this"}, {"input": ""}]}])
    write(tmp_path, "self-instruct/user_oriented_instructions.jsonl", [])
    for name in ("codegen-instruct", "roleplay-simple"):
        write(tmp_path, f"gpteacher/{name}.json", [{"instruction": f"Do {name}", "input": "x", "response": "SECRET"}])
    write(tmp_path, "ifeval/input_data.jsonl", [
        {"prompt": " Use no commas. "}, {"prompt": "use no commas"}, {"prompt": "a " * 4000}])
    write(tmp_path, "editeval/edit_eval.jsonl", [{"instruction": "Change it", "input": "x = 1", "context": ""}])
    write(tmp_path, "spec-bench/question.jsonl", [{"turns": [TEXT, "Why is that so?"], "reference": [["how many are 2 and 2"]]}])
    write(tmp_path, "mt-bench/question.jsonl", [{"turns": ["One more question here"]}])
    write(tmp_path, "gsm8k/test.jsonl", [{"question": "q", "answer": "a"}])
    (tmp_path / "humaneval").mkdir()
    problem = {"prompt": "def f(x):", "canonical_solution": "y"}
    (tmp_path / "humaneval/HumanEval.jsonl.gz").write_bytes(gzip.compress(json.dumps(problem).encode()))
    return tmp_path


def test_sources_give_prompts_and_never_answers(folder):
    found = list(sources.read_sources(folder))
    assert ("mbpp", "coding", "Write a function to add. Your code should pass these tests:\nassert add(1, 2) == 3") in found
    assert ("mbpp", "completion", 'def add(a, b):\n    """Write a function to add.\n    """') in found
    assert ("mbpp", "code", "def add(a, b):\n  return a + b") in found
    assert ("self-instruct", "chat", "Say\n\nthis") in found and ("self-instruct", "chat", "Say") in found
    assert ("editeval", "editing", "Change it\n\n```python\nx = 1\n```") in found
    assert not [text for _, _, text in found if "SECRET" in text]


def test_the_build_drops_what_is_shared_double_or_too_long_and_counts_it(folder, tmp_path, monkeypatch, capsys):
    out = tmp_path / "out"
    monkeypatch.setattr(build_prompts, "articles", list)  # thousands, which take seconds
    monkeypatch.setattr(build_prompts, "plain", lambda: [templates.Template(task="qa", text="Now: why is that so?")])
    assert build_prompts.main([str(folder), "--out", str(out)]) == 2
    assert "templates must make no prompt" in capsys.readouterr().err and not out.exists()
    monkeypatch.setattr(build_prompts, "plain", lambda: [templates.Template(task="qa", text="Now: is that so?")])
    assert build_prompts.main([str(folder), "--out", str(out)]) == 0
    counts = json.loads((out / "counts.json").read_text())
    assert counts["prompts"]["gsm8k/maths"] == {"read": 4, "too_long": 0, "twice": 0, "in_evaluation_sets": 1, "kept": 3}
    assert counts["prompts"]["ifeval/format"] == {"read": 3, "too_long": 1, "twice": 1, "in_evaluation_sets": 0, "kept": 1}
    assert counts["evaluation_texts"]["spec-bench/question.jsonl"] == 3
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    assert build_prompts.main([str(folder), "--out", str(out)]) == 0
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    kept, _ = prompts.clean(sources.read_sources(folder), EvaluationSets.load(out / prompts.EVALUATION.name))
    assert len(kept) == sum(count["kept"] for count in counts["prompts"].values())


def test_broken_sources_are_named(folder):
    write(folder, "ifeval/input_data.jsonl", [{"text": "x"}])
    with pytest.raises(UserError, match=r"input_data.jsonl must have the fields of ifeval; KeyError\('prompt'\)"):
        list(sources.read_sources(folder))
    (folder / "gsm8k/train.jsonl").write_text("{")
    with pytest.raises(UserError, match="train.jsonl must be a readable"):
        list(sources.read_sources(folder))
    (folder / "gsm8k/train.jsonl").unlink()
    with pytest.raises(UserError, match="train.jsonl must be a readable"):
        prompts.load(folder)


def test_own_prompts_are_held_against_the_evaluation_sets(tmp_path):
    path = tmp_path / "own.jsonl"
    write(tmp_path, "own.jsonl", [{"prompt": "Name a colour\u2028."}, {"prompt": "Name a fruit."}])
    own = prompts.read_own(path)
    assert [each.text for each in own] == ["Name a colour\u2028.", "Name a fruit."]
    assert own[0].prompt_hash == text_hash("name a colour")
    benchmark = json.loads((BENCHMARKS / "ordinary.jsonl").read_text().splitlines()[0])["prompt"]
    write(tmp_path, "own.jsonl", [{"prompt": "Name a fruit."}, {"prompt": benchmark}])
    with pytest.raises(UserError, match="lines 2 do"):
        prompts.read_own(path)
    for rows in ([], [{"text": "x"}], [{"prompt": ""}], [{"prompt": 3}], ["x"]):
        write(tmp_path, "own.jsonl", rows)
        with pytest.raises(UserError, match="must hold"):
            prompts.read_own(path)
