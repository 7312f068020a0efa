"""Each objective from answers to an engine that drafts with what was learnt: minutes on a CPU."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from radiance_jax.container.conversion import convert
from radiance_jax.container.drafter import drafter_of, open_drafter
from radiance_jax.container.source import open_model
from radiance_jax.train import main
from radiance_jax.training.checkpoints import best_tensors
from tests.engine.conftest import Harness
from tests.engine.test_container_drafts import start
from tests.exactness import targets
from tests.training import training_script

pytestmark = pytest.mark.slow
TOKENS = 41
LESSON = {"length": 32, "batch": 16, "anchors": 8, "layers": 1, "block_size": 4, "rank": 16, "ff_width": 64, "num_heads": 4,
          "num_kv_heads": 2, "head_size": 16, "dtype": "f32", "rate": 5e-3, "steps": 400, "eval_every": 200, "eval_answers": 24,
          "save_every": 200, "log_every": 20, "window": 16}


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    return training_script.make(tmp_path_factory.mktemp("script"), 1500)


def run(script, out, *more: str, **changes) -> int:
    values = LESSON | {"model": script[0], "data": script[1], "out": out} | changes
    sets = [word for name, value in values.items() for word in ("--set", f"{name}={value}")]
    return main(["configs/train_toy.yaml", *sets, *more])


def lines(out, key: str) -> list[dict]:
    return [record for line in (out / "log.jsonl").read_text().splitlines() if key in (record := json.loads(line))]


@pytest.mark.parametrize("family,objective", (("dflash", "dflash"), ("dflash", "dpace"), ("dflash2", "dflash2"), ("dspark", "dspark")))
def test_what_is_learnt_is_served(script, tmp_path, family, objective):
    out = tmp_path / "out"
    assert run(script, out, family=family, objective=objective) == 0
    losses = [line["loss"] for line in lines(out, "loss")]
    assert np.mean(losses[-3:]) < 0.5 * losses[0]
    record = json.loads((out / "summary.json").read_text())
    before, after = record["held_out"]["untrained"]["tokens_per_verify"], record["held_out"]["best"]["tokens_per_verify"]
    assert after > before + 0.7, (before, after)
    assert record["steps"] == 400 and record["drafter"]["objective"] == objective
    assert lines(out, "loss")[-1]["tokens_per_verify"] > before + 0.7

    published, trained = open_drafter(out / "drafter"), best_tensors(out)
    for name, value in trained.items():
        np.testing.assert_allclose(np.asarray(published.read(name), np.float32), value, rtol=2**-8, atol=1e-30)
    if objective == "dpace":
        return  # the network is DFlash's, which is served below
    rad = convert(script[0], tmp_path / "m.rad", "f32", draft_path=out / "drafter").path
    engine = start(rad, [], draft_window="fixed", spec_ngram=0)
    try:
        one, tokens, verified = Harness(engine), 0, 0
        for word in range(3, 15):
            answer = one.ask((5, 9, 30, 7, word), max_tokens=TOKENS, temperature=0.0, ignore_eos=True)
            assert answer.ids == tuple(targets.script(word, TOKENS))
            tokens, verified = tokens + TOKENS - 1, verified + sum(answer.stats.acceptance_histogram.values())
        served = tokens / verified
    finally:
        engine.close()
    assert served == pytest.approx(after, rel=0.2), (served, after)


def test_killed_at_any_time_and_gone_on_with_it_ends_at_the_same_bits(script, tmp_path):
    """A process that is killed without a word, twice, at places the clock chooses."""
    changes = {"steps": 120, "eval_every": 40, "save_every": 7, "log_every": 1, "family": "dspark"}
    environment = os.environ | {"RADIANCE_CACHE": str(tmp_path / "cache")}

    def killed(*more: str, behind: int) -> None:
        values = LESSON | {"model": script[0], "data": script[1], "out": tmp_path / "killed"} | changes
        sets = [word for name, value in values.items() for word in ("--set", f"{name}={value}")]
        process = subprocess.Popen([sys.executable, "-m", "radiance_jax.train", "configs/train_toy.yaml", *sets, *more], env=environment)
        log, deadline = tmp_path / "killed" / "log.jsonl", time.monotonic() + 240
        while time.monotonic() < deadline and process.poll() is None:
            if log.exists() and any(line["step"] >= behind for line in lines(tmp_path / "killed", "loss")[:-1]):
                break
            time.sleep(0.01)
        assert process.poll() is None, "it ended by itself"
        process.send_signal(signal.SIGKILL)
        process.wait()

    assert run(script, tmp_path / "whole", **changes) == 0
    killed(behind=20)
    killed("--resume", behind=55)
    assert run(script, tmp_path / "killed", "--resume", **changes) == 0
    whole, again = best_tensors(tmp_path / "whole"), best_tensors(tmp_path / "killed")
    assert whole.keys() == again.keys() and all(np.array_equal(whole[name], again[name]) for name in whole)
    assert lines(tmp_path / "whole", "held_out")[-1]["held_out"] == lines(tmp_path / "killed", "held_out")[-1]["held_out"]
    before = (tmp_path / "killed" / "drafter" / "model.safetensors").read_bytes()
    assert before == (tmp_path / "whole" / "drafter" / "model.safetensors").read_bytes()
    (tmp_path / "killed" / "drafter" / "model.safetensors").unlink()
    assert run(script, tmp_path / "killed", "--export-only", **changes) == 0
    assert (tmp_path / "killed" / "drafter" / "model.safetensors").read_bytes() == before


def test_a_limit_in_minutes_is_kept(script, tmp_path):
    began = time.monotonic()
    assert run(script, tmp_path / "out", steps="null", limit_minutes=0.75, eval_every=10**6, save_every=10**6,
               rad=tmp_path / "m.rad") == 0
    assert time.monotonic() - began < 60
    record = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert record["seconds"] < 50 and record["steps"] >= 1 and record["planned_steps"] >= record["steps"]
    assert (tmp_path / "out" / "drafter" / "config.json").exists()
    assert drafter_of(open_model(tmp_path / "m.rad")).raw["architectures"] == ["DSparkDraftModel"]
