"""What a run may be asked for: every wrong wish is refused by the name of its key."""

import json
from dataclasses import fields

import pytest

from radiance_jax import train
from radiance_jax.errors import UserError
from radiance_jax.models.config import parse_config
from radiance_jax.models.draft.registry import read_drafter
from radiance_jax.training import parameters
from radiance_jax.training.config import OBJECTIVES, USED_BY, TrainConfig, check_resumed, read_config
from radiance_jax.training.description import default_taps, describe
from radiance_jax.training.objectives import KINDS
from tests import tiny_model

LEAST = {"data": "answers", "steps": 10}
SMOLLM2 = {"architectures": ["LlamaForCausalLM"], "hidden_size": 576, "intermediate_size": 1536, "num_attention_heads": 9,
           "num_key_value_heads": 3, "head_dim": 64, "num_hidden_layers": 30, "vocab_size": 49152, "rope_theta": 100000,
           "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "tie_word_embeddings": True}


def refused(param: str, must: str, **values) -> None:
    with pytest.raises(UserError, match=must) as caught:
        TrainConfig(**LEAST | values)
    assert caught.value.param == param


def test_wrong_values_are_refused():
    refused("rate", "rate must be a number, at least 0; got 'fast'", rate="fast")
    refused("batch", "batch must be a multiple of dp=3 in mesh; got 4", mesh="dp=3,tp=1", batch=4)
    refused("mesh", "mesh axes are dp, tp; got 'ep'", mesh="ep=2")
    refused("objective", "must be one of dflash, dpace for the family dflash; got 'dspark'", family="dflash", objective="dspark")
    refused("length", r"more than block_size \(16\); got 16", length=16, block_size=16)
    refused("anchors", r"anchors must be at most length \(16\).*; got 32", length=16)
    refused("taps", "each layer once", taps=(3, 3))
    refused("data", "data must be given", data=None)
    refused("rad", "rad must end in .rad; got 'm.gguf'", rad="m.gguf")
    refused("steps", "steps or limit_minutes must be given", steps=None)


def test_a_file_and_changes_over_it(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text("data: a\nsteps: 5\nlimit-minutes: 2\ntaps: [1, 2]\n")
    made = read_config(file, ["rate=1e-4", "family=dflash", "taps=[0]"])
    assert (made.rate, made.family, made.objective, made.taps, made.limit_minutes) == (1e-4, "dflash", "dflash", (0,), 2.0)
    for change, must in {"rat=1": "unknown key 'rat'.*did you mean 'rate'", "rate": "--set must read like",
                         "steps=many": "steps must be a whole number"}.items():
        with pytest.raises(UserError, match=must):
            read_config(file, [change])


def test_a_resumed_run_is_the_same_run():
    now = TrainConfig(**LEAST)
    check_resumed(now.values() | {"limit_minutes": 3.0, "log_every": 7}, now, "out")
    with pytest.raises(UserError, match="rate must be 0.5, as it was when the run in out began; got 0.001"):
        check_resumed(now.values() | {"rate": 0.5}, now, "out")


@pytest.mark.parametrize("name", ("dflash", "dflash2", "dspark"))
def test_the_drafters_of_the_shipped_files_have_at_most_eight_million_parameters(name):
    config = read_config(f"configs/train_{name}.yaml", ["data=a"])
    raw = describe(config, parse_config(SMOLLM2), SMOLLM2)
    drafter = read_drafter(raw)
    assert drafter.name.lower() == name and drafter.taps == (1, 8, 14, 20, 27) == default_taps(30)
    assert drafter.window == 256 and not any(drafter.config.causal) and drafter.config.rope.theta == 1e5
    assert 7_800_000 < parameters.count(drafter) <= 8_000_000


def test_a_drafter_that_does_not_fit_its_target_is_refused():
    target = parse_config(tiny_model.CONFIG)
    for values, must in (({"taps": (2,)}, "below the target's number of layers, 2; got 2"),
                         ({"num_heads": 4, "num_kv_heads": 3}, r"multiple of num_kv_heads \(3\)"),
                         ({"mask_id": 151}, "below the target's vocabulary of 151"), ({"length": 513}, "context of 512")):
        with pytest.raises(UserError, match=must):
            describe(TrainConfig(**LEAST | values), target, tiny_model.CONFIG)


def test_every_objective_that_can_be_asked_for_is_there():
    assert KINDS.keys() == OBJECTIVES.keys()


def test_a_file_with_a_key_twice_or_a_date_that_is_none_is_refused(tmp_path):
    file = tmp_path / "run.yaml"
    for text, must in (("data: a\nsteps: 5\nsteps: 6\n", "'steps' is given twice"), ("data: 2024-13-45\n", "not valid YAML")):
        file.write_text(text)
        with pytest.raises(UserError, match=must):
            read_config(file)
    file.write_text("data: a\nsteps: 5\n")
    with pytest.raises(UserError, match="the value of --set out=2024-13-45 is not valid YAML"):
        read_config(file, ["out=2024-13-45"])


def test_a_run_of_another_version_is_not_gone_on_with():
    now = TrainConfig(**LEAST)
    for name, value in (("colour", "red"), ("family", "eagle"), ("batch", "many")):
        with pytest.raises(UserError, match="configuration that this version does not take.*" + name):
            check_resumed(now.values() | {name: value}, now, "out")


def test_weights_are_not_published_under_another_configuration(tmp_path, capsys):
    file = tmp_path / "run.yaml"
    file.write_text(f"data: a\nsteps: 5\nfamily: dflash\nmodel: nowhere.rad\nout: {tmp_path}\n")
    assert train.main([str(file), "--export-only"]) == 2
    assert "--export-only needs a run" in capsys.readouterr().err
    (tmp_path / "config.json").write_text(json.dumps(read_config(file, ["taps=[1]"]).values()))
    assert train.main([str(file), "--export-only"]) == 2
    assert "taps must be (1,), as it was when the run" in capsys.readouterr().err


def test_keys_of_another_family_are_not_dropped_silently(tmp_path, capsys):
    assert TrainConfig(**LEAST, family="dspark", markov="gated", rank=8, ce_weight=0.3).unused() == []
    assert TrainConfig(**LEAST, family="dflash", objective="dpace", smoothing=0.2).unused() == []
    unused = TrainConfig(**LEAST, family="dflash", markov="gated", rank=8, smoothing=0.2).unused()
    assert unused == ["rank", "markov", "smoothing"]
    file = tmp_path / "run.yaml"
    file.write_text("data: a\nsteps: 5\nfamily: dflash2\nce-weight: 0.5\nmodel: nowhere.rad\n")
    assert train.main([str(file)]) == 2
    said = capsys.readouterr().err
    assert "keys that dflash2 with the objective dflash2 does not use: ce_weight" in said and "nowhere.rad" in said


def test_every_key_of_one_family_alone_says_so_in_its_help():
    named = {"DFlash2": "dflash2", "DSpark": "dspark", "D-PACE": "dpace"}
    for item in fields(TrainConfig):
        who, colon, _ = item.metadata["setting"].help.partition(":")
        if colon and who in named:
            assert named[who] in USED_BY[item.name], item.name
