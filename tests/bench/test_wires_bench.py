"""`bench wires` and `bench perplexity` on a tiny model: what they write, that a wrong bit fails, that a hang ends."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from radiance_jax.bench import __main__ as bench
from radiance_jax.bench import perplexity, wires, wires_oracle
from tests import tiny_model

HANG = """
import sys, time
from radiance_jax.bench.wires import Progress
from radiance_jax.bench.wires_config import WiresConfig
progress = Progress(WiresConfig(cell_timeout=1, out=sys.argv[1]), {"times": [{"us": 3.0}]})
with progress.cell("times", form="remote"):
    time.sleep(60)
"""


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return str(tiny_model.make(tmp_path_factory.mktemp("tiny")))


@pytest.mark.slow
def test_wires_are_measured_and_a_wrong_bit_is_status_1(tiny, tmp_path, capsys, monkeypatch):
    out = tmp_path / "wires.json"
    argv = [tiny, "--mesh", "tp=2", "--sizes", "1", "--odd-sizes", "3", "--forms", "psum,one-shot,remote,lossy,two-shot+add",
            "--out", str(out)]
    assert bench.main(["wires", *argv]) == 0
    shown = capsys.readouterr().out
    result = json.loads(out.read_text())
    assert "relative error of lossy on activations" in shown and result["unfinished"] is None
    assert [(each["form"], each["kib"], each["bytes_sent"]) for each in result["times"]] == [
        ("psum", 1, None), ("one-shot", 1, 1024), ("lossy", 1, 400), ("two-shot+add", 1, 1024)]
    assert all(each["as_promised"] and each["ranks_agree"] for each in result["bits"]) and len(result["bits"]) == 7
    assert {each["form"] for each in result["left_out"]} == {"remote", "lossy"}
    errors = {(each["form"], each["input"]): each["relative_error"] for each in result["errors"]}
    assert 0.01 < errors["lossy", "activations"] < 0.026 and 0 < errors["one-shot", "gaussian"] < 0.003
    monkeypatch.setattr(wires_oracle, "exact", lambda parts: parts[0])
    assert bench.main(["wires", *argv, "--no-activations", "--forms", "one-shot"]) == 1
    assert "error: one-shot of 3 elements" in capsys.readouterr().err


def test_a_hang_ends_the_process_and_keeps_what_was_measured(tmp_path):
    out = tmp_path / "wires.json"
    done = subprocess.run([sys.executable, "-c", HANG, str(out)], cwd=Path(__file__).parents[2], capture_output=True, timeout=50)
    assert done.returncode == 1 and b"Timeout" in done.stderr
    assert json.loads(out.read_text()) == {"times": [{"us": 3.0}], "unfinished": {"doing": "times", "form": "remote"}}


def test_times_are_differences_between_programs():
    assert wires.per_all_reduce(lambda count: 1e-3 + count * 5e-6, 8, 40, 3) == pytest.approx({"us": 5.0, "us_of_least": 5.0})


def test_figures_of_perplexity():
    rng = np.random.default_rng(0)
    exact = [rng.normal(-3, 1, n) for n in (5, 9, 30)]
    scores = {"exact": exact, "wht6": [each - 0.01 for each in exact]}
    told = perplexity.figures(scores, {"exact": np.zeros(44), "wht6": np.r_[np.ones(11), np.zeros(33)]})
    assert told["perplexity"]["exact"] == pytest.approx(np.exp(-np.concatenate(exact).mean()))
    assert told["change_percent"] == pytest.approx((np.exp(0.01) - 1) * 100)
    assert told["change_percent_95"] == pytest.approx([told["change_percent"]] * 2)
    assert told["same_likeliest_token"] == 0.75 and told["mean_absolute_logprob_change"] == pytest.approx(0.01)


@pytest.mark.slow
def test_perplexity_of_a_tiny_model(tiny, tmp_path, capsys):
    out = tmp_path / "perplexity.json"
    assert bench.main(["perplexity", tiny, "--texts", "2", "--widths", "2", "--out", str(out)]) == 0
    (width,) = json.loads(out.read_text())["widths"]
    assert width["lossy"] == "wht6" and abs(width["change_percent"]) < 50 and width["mean_absolute_logprob_change"] > 0
    assert "same likeliest token" in capsys.readouterr().out
