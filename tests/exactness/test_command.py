"""`bench exactness` on a tiny model: what it refuses, compares, proves and writes."""

import json

import pytest

from radiance_jax.bench import __main__ as bench
from radiance_jax.bench import exactness, exactness_asks, forced
from tests import tiny_model


@pytest.mark.parametrize(("argv", "says"), [
    (["--axes", "croud"], "did you mean 'crowd'"), (["--depths", "1,x"], "depths must be whole numbers"),
    (["--chunks", "0"], "at least 1"), (["--prompts", "0"], "prompts must be"),
    (["--num-speculative-tokens", "0", "--prompts", "1"], "drafting is what is compared")])
def test_wrong_flags_are_refused_in_one_line(capsys, folder, argv, says):
    model = tiny_model.make(folder / "refused")
    assert bench.main(["exactness", str(model), *argv]) == 2
    assert says in next(line for line in capsys.readouterr().err.splitlines() if line.startswith("error: "))


def test_a_tiny_model_passes(folder, capsys):
    model, out = tiny_model.make(folder / "command"), folder / "exactness.json"
    status = bench.main([
        "exactness", str(model), "--dtype", "f32", "--max-num-batched-tokens", "16", "--page-size", "16", "--prompts",
        "2", "--max-tokens", "6", "--chunks", "3", "--depths", "0,2,4", "--soak", "30", "--out", str(out),
        "--cache-dir", str(folder),
        "--axes", "again,crowd,policy,chunks,rejected,accepted,pattern,depth,preempted,echo,soak"])
    result = json.loads(out.read_text())
    assert status == 0, [each for each in result["axes"] if each["differences"] or not each["proven"]]
    assert result["bit_exact"] and result["compiles_after_warmup"] == 0
    assert all(each["proven"] and not each["differences"] and each["cases"] for each in result["axes"])
    assert {each["axis"] for each in result["axes"]} == set(exactness.AXES) - {"lookup", "capacity", "process"}
    assert "0 differ; equality is promised" in capsys.readouterr().out


@pytest.mark.long
def test_other_sizes_and_fresh_processes(folder):
    model = tiny_model.make(folder / "slow")
    assert bench.main(["exactness", str(model), "--dtype", "f32", "--prompts", "4", "--max-tokens", "8",
                       "--page-size", "16", "--axes", "capacity,process", "--sequences", "1,5",
                       "--cache-dir", str(folder)]) == 0


def test_a_difference_is_named():
    ask = exactness_asks.Ask(name="a", ids=(1,), seed=0, way="greedy", max_tokens=2)
    oracle = {"ids": [1, 2], "logprob bits": ["x", "y"], "top-20 bits": ["p", "q"], "ending": "length", "usage": [1, 2]}
    found = exactness_asks.differences([ask], [oracle | {"logprob bits": ["x", "z"]}], [oracle])
    assert found == [{"prompt": "a", "way": "greedy", "what": "logprob bits", "first_at": 1}]
    beginning = oracle | {"ids": [1], "logprob bits": ["x"], "top-20 bits": ["p"], "ending": "abort", "usage": [1, 1]}
    assert exactness_asks.differences([ask], [beginning], [oracle], whole=False) == []
    assert exactness_asks.differences([ask], [beginning], [oracle])[0]["what"] == "ids"


def test_a_forced_pattern_is_what_it_says():
    drafts, counts = forced.accepting((2, 0), [5, 6, 7, 8, 9], 8, 3, 151)
    assert counts.tolist() == [3] * 8
    assert drafts[1].tolist()[:2] == [6, 7] and drafts[1, 2] != 8
    assert drafts[4, 0] != 9
    assert forced.steps_of((2, 0), 5, 3) == [3, 1]
