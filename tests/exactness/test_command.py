"""`bench exactness` on a tiny model: what it refuses, compares, proves and writes."""

import json
import os

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
        "exactness", str(model), "--dtype", "f32", "--max-num-batched-tokens", "16", "--page-size", "16", "--row-tile", "4",
        "--prompts", "2", "--max-tokens", "6", "--chunks", "3", "--depths", "0,2,4", "--soak", "30", "--out", str(out),
        "--cache-dir", str(folder),
        "--axes", "again,crowd,policy,chunks,rejected,accepted,pattern,depth,preempted,echo,soak"])
    result = json.loads(out.read_text())
    assert status == 0, [each for each in result["axes"] if each["differences"] or not each["proven"]]
    assert result["bit_exact"] and result["compiles_after_warmup"] == 0
    assert all(each["proven"] and not each["differences"] and each["cases"] for each in result["axes"])
    assert {each["axis"] for each in result["axes"]} == set(exactness.AXES) - {"lookup", "capacity", "process"}
    said = {each["circumstance"] for each in result["axes"]}  # of four requests no eight are live
    assert {"4 at once, lookup", "2 at once, one sent away every 5 steps"} <= said
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


@pytest.mark.slow
def test_processes_share_the_prompts_and_the_oracles(folder, capsys):
    """Two processes on a core each, then a part of other axes by hand with the oracles they left."""
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two cores")
    model, out, oracles = tiny_model.make(folder / "processes"), folder / "processes.json", folder / "oracles.json"
    argv = ["exactness", str(model), "--dtype", "f32", "--max-num-batched-tokens", "16", "--page-size", "16", "--prompts", "4",
            "--max-tokens", "6", "--cache-dir", str(folder), "--oracles", str(oracles)]
    assert bench.main([*argv, "--axes", "crowd,accepted,soak", "--soak", "40", "--processes", "2", "--out", str(out)]) == 0
    result = json.loads(out.read_text())
    assert result["complete"] and result["covered"] == dict.fromkeys(("crowd", "accepted", "soak"), ["1/2", "2/2"])
    assert {each["axis"]: each["cases"] for each in result["axes"]} == {"crowd": 8, "accepted": 8, "soak": 40}
    assert len(result["requests"]) == 8 and all(each["proven"] and not each["differences"] for each in result["axes"])
    capsys.readouterr()
    rest = folder / "rest.json"
    assert bench.main([*argv, "--axes", "echo", "--limit-minutes", "10", "--out", str(rest)]) == 0
    assert "8 oracles in 0 s, 8 of them from" in capsys.readouterr().err
    assert bench.main(["exactness", "--merge", f"{out},{rest}"]) == 0
    assert bench.main([*argv, "--axes", "echo,again", "--limit-minutes", "0.0001", "--out", str(rest)]) == 1
    assert json.loads(rest.read_text())["missing"] == ["echo", "again"]
