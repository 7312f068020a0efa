"""`bench spec`: its sets, its figures on answers made up by hand, its page, and a whole run on a tiny model."""

import gzip
import json
import re
import sys
from dataclasses import replace

import pytest

from radiance_jax.bench import __main__ as bench
from radiance_jax.bench import prompt_sets, spec, spec_figures, spec_page, spec_pictures, spec_sets
from radiance_jax.bench.prompt_sets import Prompt
from radiance_jax.bench.spec_config import SpecConfig
from radiance_jax.bench.spec_table import rows
from radiance_jax.container.conversion import convert
from radiance_jax.engine.stats import EngineStats
from radiance_jax.errors import UserError
from tests import tiny_model
from tests.bench import spec_record
from tests.bench.spec_record import record, turns

GAINS = {"qa": 0.4, "maths": 1.2}


@pytest.mark.parametrize(("argv", "says"), [
    (["--sets", "gsm"], "did you mean 'gsm8k'"), (["--modes", "off"], "one that drafts, such as lookup"),
    (["--modes", "both"], "must name off or off-fast"), (["--modes", "both:fix,off"], "did you mean 'both:fixed'"),
    (["--temperatures", "0,warm"], "temperatures must be numbers"), (["--temperatures", "-1"], "from 0 to 100"),
    (["--num-speculative-tokens", "0"], "more than 0"), 
    (["--fast-dtypes", "f16"], "fast_dtypes are bf16, f32"), (["--html", "/nowhere/x.html"], "folder that can be written"),
    (["--data", "/nowhere"], "spec-bench/question.jsonl"), (["--limit-minutes", "0"], "at least 0.1")])
def test_wrong_commands_are_refused_in_one_line(capsys, argv, says):
    assert bench.main(["spec", *argv]) == 2
    assert says in next(line for line in capsys.readouterr().err.splitlines() if line.startswith("error: "))


# ---- prompts ----


def test_the_package_has_twelve_prompts_of_every_set_and_their_licences():
    prompts = spec_sets.load(spec_sets.SETS, None, None)
    assert {name: sum(each.set == name for each in prompts) for name in spec_sets.SETS} == dict.fromkeys(spec_sets.SETS, 12)
    assert len({(each.set, each.id) for each in prompts}) == len({each.text for each in prompts}) == 108
    assert {"LICENSE-HumanEval", "LICENSE-GSM8K", "LICENSE-Spec-Bench"} <= {path.name for path in prompt_sets.FOLDER.iterdir()}
    assert [each.id for each in spec_sets.load(("qa",), None, 3)] == ["Spec-Bench/321", "Spec-Bench/347", "Spec-Bench/374"]


def test_whole_sets_are_read_as_they_are_published(tmp_path):
    for name in ("spec-bench", "mt-bench", "humaneval", "gsm8k"):
        (tmp_path / name).mkdir()
    questions = [{"question_id": 81, "category": "writing", "turns": ["a", "b"]},
                 {"question_id": 321, "category": "qa", "turns": ["c"]}]
    for name in ("spec-bench", "mt-bench"):
        (tmp_path / name / "question.jsonl").write_text("".join(json.dumps(each) + "\n" for each in questions))
    with gzip.open(tmp_path / "humaneval/HumanEval.jsonl.gz", "wt") as file:
        file.write(json.dumps({"task_id": "HumanEval/7", "prompt": "def f():\n", "test": ""}))
    (tmp_path / "gsm8k/test.jsonl").write_text(json.dumps({"question": "d", "answer": "1"}) + "\n")
    found = spec_sets.load(("multi-turn", "qa", "humaneval", "gsm8k", "mt-bench"), str(tmp_path), None)
    assert [(each.set, each.id, each.text) for each in found if each.set != "humaneval"] == [
        ("multi-turn", "Spec-Bench/81", "a"), ("qa", "Spec-Bench/321", "c"), ("gsm8k", "GSM8K-test/0", "d"),
        ("mt-bench", "MT-Bench/81", "a"), ("mt-bench", "MT-Bench/321", "c")]
    assert "```python\ndef f():\n```" in found[2].text
    with pytest.raises(UserError, match="prompts of 'rag'; it has none"):
        spec_sets.load(("rag",), str(tmp_path), None)
    (tmp_path / "gsm8k/test.jsonl").write_text("{}")
    with pytest.raises(UserError, match="fields of the published file; missing: 'question'"):
        spec_sets.load(("gsm8k",), str(tmp_path), None)


def test_an_early_end_leaves_all_sets_alike():
    prompts = [Prompt(set=name, id=str(i), ids=(1,)) for name in "ab" for i in range(3)]
    todo = spec.units(SpecConfig(sequences="1,2"), prompts)
    single = [(each.temperature, each.set, each.prompts[0].id) for each in todo if each.live == 1]
    assert single[:4] == [(0.0, "a", "0"), (0.0, "b", "0"), (1.0, "a", "0"), (1.0, "b", "0")] and len(single) == 12
    together = [at for at, each in enumerate(todo) if each.live == 2]
    assert together == [4, 5, 6, 7] and all(len(todo[at].prompts) == 3 for at in together)
    assert len(spec.units(SpecConfig(rounds=2), prompts)) == 24


# ---- figures ----


def test_positions_are_conditional_and_cumulative():
    found = spec_figures.positions(spec_figures.Counted(reached=(10, 8, 2, 0), accepted=(8, 2, 1, 0), by_proposer={}, steps={}))
    assert found["conditional"] == [0.8, 0.25, 0.5, None] and found["cumulative"] == [0.8, 0.2, 0.1, None]


def test_what_an_engine_counted_meanwhile_is_the_difference():
    before, after = EngineStats(), EngineStats()
    before.record_verify(3, 2), before.record_step(4, 0.5)
    before.reached_per_position = [1, 1, 1]
    for stats in (after, after):
        stats.record_verify(3, 2)
    after.record_verify(5, 5, "neural")
    after.reached_per_position = [3, 3, 3, 1, 1]
    for _ in range(3):
        after.record_step(4, 0.5)
    found = spec_figures.Counted.between(before, after)
    assert found.reached == (2, 2, 2, 1, 1) and found.accepted == (2, 2, 1, 1, 1)
    assert found.by_proposer == {"lookup": (3, 2), "neural": (5, 5)} and found.steps == {4: (2, 1.0)}
    twice = spec_figures.Counted.total([found, found])
    assert twice.accepted == (4, 4, 2, 2, 2) and twice.steps == {4: (4, 2.0)} and twice.by_proposer["neural"] == (10, 10)


def test_speed_is_over_the_fastest_off_and_the_worst_set_comes_first():
    result = record(turns(GAINS))
    order = [(one["temperature"], one["set"]) for one in result["cells"]]
    assert order == [(0.0, "qa"), (0.0, "maths"), (1.0, "qa"), (1.0, "maths")]
    worst, best = result["cells"][:2]
    assert worst["fastest_off"] == best["fastest_off"] == "off-fast f32"
    both = worst["against_fastest_off"]["both"]
    assert both["ratio"] == pytest.approx(2.5 * 0.4 / 1.25) and both["ratio_ci95"] == pytest.approx([0.8, 0.8])
    assert worst["modes"]["both"]["tokens_per_verify"] == 4 and both["cycle_cost"] == pytest.approx(4 / 0.8)
    assert worst["against_fastest_off"]["off"]["ratio"] == pytest.approx(0.8)
    assert worst["modes"]["both"]["positions"]["conditional"] == [1.0, 1.0, 1.0, 0.0]
    line = next(one for one in result["summary"] if (one["temperature"], one["mode"]) == (0.0, "both"))
    assert line["speedup"] == pytest.approx((0.8 * 2.4) ** 0.5) and (line["worst_set"], line["tokens_per_verify"]) == ("qa", 4.0)
    assert result["steps"]["both"] == {"5": {"steps": 24, "ms": pytest.approx(12.5)}}
    assert result["headline"].startswith("Worst on qa, 0.80 times the speed of the fastest mode without drafting; best on maths")
    assert result["answers_compared"] == 32 and "All 32 answers compared have the ids and logprob bits" in result["headline"]


def test_answers_of_other_lengths_are_scaled_and_those_that_end_at_once_left_out():
    made = [each for each in turns({"qa": 1.0}) if each.temperature == 0]
    short = [replace(each, done=replace(each.done, answers=(spec_record.answer("qa-1", 0.0, ids=(1,)),)))
             if each.done.answers[0].prompt == "qa-1" else each for each in made]
    assert record(short)["cells"][0]["against_fastest_off"]["both"]["prompts"] == 1
    longer = [replace(each, done=replace(each.done, answers=(spec_record.answer(
        each.done.answers[0].prompt, 24 / 2.5, 4, ids=tuple(range(25))),))) if each.mode == "both" else each for each in made]
    result = record(longer, bit_exact=False)
    assert result["cells"][0]["against_fastest_off"]["both"]["ratio"] == pytest.approx(2.0)
    assert len(result["differences"]) == 2 and "roundings make 2 of 8 answers differ" in result["headline"]


def test_a_changed_bit_is_found_and_said():
    result = record(broken(turns({"qa": 1.0})))
    (found,) = result["differences"]
    assert (found["set"], found["temperature"], found["in"], found["first_at"]) == ("qa", 1.0, "drafter, 1 live, round 1", 12)
    assert "1 of 16 answers DIFFER" in result["headline"]


def test_answers_without_drafts_are_named_only_where_there_were_some():
    made = [each for each in turns({"qa": 1.0}) if each.mode != "off"]
    said = record(made)["headline"]
    assert "have the ids and logprob bits of the first to their prompt." in said and "of those without drafts" not in said
    assert "DIFFER from the first to their prompt" in record(broken(made))["headline"]


def broken(made):
    """One answer of the drafter's at temperature 1 has another last token."""
    changed = spec_record.answer("qa-0", 4.0, 4, ids=(*range(12), 99))
    return [replace(each, done=replace(each.done, answers=(changed,)))
            if (each.mode, each.temperature, each.done.answers[0].prompt) == ("drafter", 1.0, "qa-0") else each for each in made]


def test_nothing_measured_is_said():
    nothing = record([])
    assert nothing["headline"] == "Nothing was measured in the time given." and nothing["headline"] in spec_page.page(nothing)


# ---- the page ----


def test_the_page_stands_alone_and_holds_every_figure():
    result = json.loads(json.dumps(record(broken(turns(GAINS)))))  # as from the file
    page = spec_page.page(result)
    assert page.count("<svg") == 4 + 1 and "</html>" in page
    assert not re.search(r'(src|href)="?https?:|<script|<link|@import', page.replace('xlink:href="#', ""))
    assert "a &lt;b&gt; model" in page and "<b>" not in page
    assert "Ended by --limit-minutes 5" in page and "8 of 10" in page
    for marker in (spec_pictures.INK, spec_pictures.GRID):
        assert marker not in page
    assert "currentColor" in page and "prefers-color-scheme: dark" in page
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids)), "ids of two pictures must not be the same"
    used = set(re.findall(r'(?:url\(#|href="#)([^)"]+)', page))
    assert used <= set(ids)
    for text in ("One answer at a time", "DIFFER", "drafter, 1 live, round 1", "0.80", "2.40", "the worst first",
                 "answers were held against"):
        assert text in page


def test_without_matplotlib_the_page_is_refused_before_anything_is_loaded(capsys, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert bench.main(["spec", "--html", str(tmp_path / "x.html")]) == 2
    assert "html needs matplotlib" in capsys.readouterr().err


def test_the_table_marks_what_is_compared():
    shown = rows(record(turns(GAINS))["cells"])
    assert shown[0][:5] == ("qa", "2", "off-fast f32 *", "1.2", "") and shown[4][2] == "both <" and shown[4][4] == "0.80"


# ---- whole runs ----


ENGINE = ["--dtype", "f32", "--max-num-batched-tokens", "16", "--max-num-seqs", "2", "--page-size", "16"]
ASK = ["--sets", "qa,gsm8k", "--limit", "2", "--max-tokens", "10"]


@pytest.mark.slow
def test_a_model_without_a_drafter_gets_a_report_too(tmp_path, capsys):
    model, out = str(tiny_model.make(tmp_path / "m")), tmp_path / "spec.json"
    argv = [model, *ASK, *ENGINE, "--cache-dir", str(tmp_path / "cache"), "--modes", "off,lookup,lookup:fixed"]
    assert bench.main(["spec", *argv, "--out", str(out)]) == 0
    result = json.loads(out.read_text())
    assert result["drafter"] is None and result["bit_exact"]
    assert not result["differences"] and result["answers_compared"] == 2 * 2 * 2 * 2
    assert result["measured"] == result["measured"] | {"units": 8, "of": 8, "ended": "with everything measured"}
    assert [one["temperature"] for one in result["cells"]] == [0, 0, 1, 1]
    assert any(one["modes"]["lookup:fixed"]["draft_tokens"] for one in result["cells"])
    assert all(not each["compiles_after_warmup"] for each in result["engines"].values())
    assert "worst set first" in capsys.readouterr().out
    assert bench.main(["spec", *argv[:-1], "off,both"]) == 2
    assert "the model's file holds no drafter; got 'both'" in capsys.readouterr().err


@pytest.mark.slow
def test_with_a_drafter_all_modes_answer_alike_and_the_page_is_written(tmp_path):
    from radiance_jax.models.draft.registry import read_drafter
    from tests.models import draft_overfit as overfit

    import numpy as np
    target = tiny_model.make(tmp_path / "target", **overfit.TARGET)
    tensors = overfit.fresh(read_drafter(overfit.CONFIG).shapes(), np.random.default_rng(0))
    rad = convert(target, tmp_path / "m.rad", "f32", draft_path=overfit.save(tmp_path / "drafter", tensors)).path
    out, html = tmp_path / "spec.json", tmp_path / "spec.html"
    assert bench.main(["spec", str(rad), *ASK, *ENGINE, "--cache-dir", str(tmp_path / "cache"), "--sequences", "1,2", "--modes",
                       "off,lookup,drafter,both,drafter:fixed", "--out", str(out), "--html", str(html)]) == 0
    result = json.loads(out.read_text())
    assert result["bit_exact"] and not result["differences"] and result["drafter"]["family"] == "DFlash"
    assert {(one["live"], one["temperature"]) for one in result["cells"]} == {(1, 0), (1, 1), (2, 0), (2, 1)}
    for one in result["cells"]:
        assert set(one["modes"]) == {"off", "lookup", "drafter", "both", "drafter:fixed"} and one["fastest_off"] == "off"
        always = one["modes"]["drafter:fixed"]
        assert set(always["by_proposer"]) == {"neural"}
        assert always["positions"]["reached"][0] == always["verify_steps_with_drafts"]
        assert not {"lookup"} & set(one["modes"]["drafter"]["by_proposer"]) and not one["modes"]["off"]["draft_tokens"]
        identity = always["identity"]
        assert identity["committed"] + identity["requests"] - identity["cut"] == identity["completion_tokens"]
    page = html.read_text()
    assert page.count("<svg") == 2 * 4 + 1 and "DFlash" in page


@pytest.mark.slow
def test_the_time_limit_ends_it_with_what_was_measured(tmp_path):
    model, out = str(tiny_model.make(tmp_path / "m")), tmp_path / "spec.json"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spec, "WRITE_EVERY", 0.0)
        assert bench.main(["spec", model, *ASK, *ENGINE, "--cache-dir", str(tmp_path / "cache"), "--modes", "off,lookup",
                           "--limit-minutes", "0.1", "--rounds", "1000", "--out", str(out)]) == 0
    result = json.loads(out.read_text())
    assert result["measured"]["ended"] == "by --limit-minutes 0.1" and 0 <= result["measured"]["units"] < 8000
    assert result["headline"]
