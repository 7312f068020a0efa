"""`bench drafter`: the bytes it reckons with, what it refuses, and one run of it on a tiny shape."""

import json

import pytest

from radiance_jax.bench import __main__ as bench
from radiance_jax.bench import drafter
from radiance_jax.bench import drafter_programs as programs
from radiance_jax.bench.drafter import DrafterConfig, figures
from radiance_jax.bench.drafter_shapes import SHAPES, TARGET_8B
from radiance_jax.errors import UserError
from radiance_jax.mesh import make_mesh
from radiance_jax.models.draft.registry import read_drafter
from tests.exactness.neural import NEURAL

HEAD = 248320 * 5120  # the target's, which each of them borrows
MLP, ATTENTION = 3 * 5120 * 17408, 2 * 5120 * 5120 * 32 * 128 // 5120 + 2 * 5120 * 8 * 128


def sized(name: str, tp: int = 1) -> programs.Subject:
    return programs.Subject.sized(SHAPES[name], make_mesh(tp), DrafterConfig())


def test_shapes_are_those_that_were_published():
    assert {name: read_drafter(raw).block for name, raw in SHAPES.items()} == {"dflash": 15, "dflash2": 7, "dspark": 7}
    facts = sized("dflash2").figures()
    assert facts["weight_bytes"] == 2 * 1_924_404_480
    assert facts["cache_bytes_per_sequence"] == 2048 * 20480 and facts["window"] == 2048


def test_the_floor_counts_what_must_be_moved_and_once():
    subject = sized("dflash2")
    kernels = 2 * 5 * (4 * 5120 + 1280 * 5120)
    layers = 5 * (MLP + ATTENTION + 2 * 5120 + 2 * 128) + kernels + 5120 + 256 * 5120
    assert subject.propose_bytes(1, 1024) == 2 * (layers + HEAD) + 1024 * 20480
    assert subject.propose_bytes(8, 8192) - subject.propose_bytes(8, 2048) == 0, "a window reaches no further"
    context = 5120 * 25600 + 5120 + 5 * (2 * 5120 * 1024 + 128)
    assert subject.observe_bytes(64) == 2 * context + 64 * 5 * 5120 * 2 + 64 * 20480
    assert sized("dflash2", 2).propose_bytes(1, 1024) < 0.6 * subject.propose_bytes(1, 1024)
    line = figures({"rows": 3}, [0.004, 0.002, 0.003], 6 * 10**9, 3000.0)
    assert line == {"rows": 3, "ms": 3.0, "least_ms": 2.0, "bytes": 6 * 10**9, "floor_ms": 2.0, "over_floor": 1.5}


@pytest.mark.parametrize(("flags", "says"), ((["--shapes", "dflash3"], "cannot read dflash3"),
                                             (["--sequences", "0"], "at least 1"), (["--mesh", "pp=2"], "mesh axes are tp"),
                                             (["--verify", "--steps", "step.json"], "not both")))
def test_wrong_commands_are_refused(capsys, flags, says):
    assert bench.main(["drafter", *flags]) == 2
    assert says in next(line for line in capsys.readouterr().err.splitlines() if line.startswith("error: "))


def test_a_record_of_steps_stands_for_the_target(tmp_path):
    step = {"way": "exact", "sequences": 1, "rows_each": 8, "context": 1024, "ms": 4.5}
    wrong = [step | {"way": "mixed"}, step | {"rows_each": 16}, step | {"context": 0}]
    path = tmp_path / "step.json"
    path.write_text(json.dumps({"configuration": {"shape": "8b"}, "steps": [*wrong, step, step | {"sequences": 8, "ms": 5.5}]}))
    assert [(each["sequences"], each["rows"], each["ms"]) for each in drafter.recorded_steps(str(path))] == [(1, 8, 4.5), (8, 64, 5.5)]
    path.write_text(json.dumps({"configuration": {"shape": "default"}, "steps": []}))
    with pytest.raises(UserError, match="shape default"):
        drafter.recorded_steps(str(path))


@pytest.mark.slow
def test_a_run_measures_propose_observe_and_a_verify_step(tmp_path, monkeypatch, capsys):
    shape, out = tmp_path / "config.json", tmp_path / "out.json"
    shape.write_text(json.dumps(NEURAL["dflash"] | {"num_hidden_layers": 1, "layer_types": ["full_attention"]}))
    tiny = {"hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 64,
            "num_hidden_layers": 1, "vocab_size": 151}
    monkeypatch.setattr(programs, "TARGET_8B", TARGET_8B | tiny)
    assert bench.main(["drafter", "--shapes", str(shape), "--sequences", "2", "--contexts", "40", "--rows", "5", "--repeats", "2",
                       "--rounds", "2", "--dtype", "f32", "--verify", "--temperature", "1", "--out", str(out)]) == 0
    found = json.loads(out.read_text())
    subject, = found["drafters"]
    line, = subject["propose"]
    assert line["ms"] > line["floor_ms"] > 0 and line["over_floor"] == pytest.approx(line["ms"] / line["floor_ms"], rel=1e-4)
    assert line["share_of_verify"] == pytest.approx(line["ms"] / found["verify"][0]["ms"], rel=1e-4)
    assert found["verify"][0]["rows"] == 16 and subject["observe"][0]["rows"] == 5 and found["copy_gb_per_s"] > 0
    assert "propose 2 x 40" in capsys.readouterr().out
