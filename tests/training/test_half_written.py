"""What a kill leaves half written in the folder of a run."""

import json

import pytest

from radiance_jax.errors import UserError
from radiance_jax.training.config import TrainConfig
from radiance_jax.training.dataset import Manifest
from radiance_jax.training.dataset_writer import AnswersWriter
from radiance_jax.training.progress import Journal
from radiance_jax.training.run import begin, prepare


@pytest.mark.parametrize("left", ["", '{"data": "a", "st', "[]", "\x00\x00"])
def test_a_configuration_that_is_cut_off_is_named(tmp_path, left):
    config = TrainConfig(data="a", steps=3, out=str(tmp_path))
    (tmp_path / "config.json").write_text(left)
    with pytest.raises(UserError, match=r"config\.json must be the configuration of a run.*another folder"):
        prepare(config, resume=True)


def test_a_configuration_is_there_whole_and_alone(tmp_path):
    config = TrainConfig(data="a", steps=3, out=str(tmp_path / "run"))
    begin(config, prepare(config, resume=False))
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["config.json"]
    assert prepare(config, resume=True) == tmp_path / "run"


@pytest.mark.parametrize(("left", "lines"), [(b"", 1), (b'{"step": 1}\n', 2), (b'{"step": 1}\n{"st', 3)])
def test_the_log_goes_on_behind_a_line_that_was_cut_off(tmp_path, left, lines):
    path = tmp_path / "log.jsonl"
    path.write_bytes(left)
    journal = Journal(path, 3, 1)
    journal.write({"step": 2})
    journal.close()
    found = path.read_text().splitlines()
    assert len(found) == lines and json.loads(found[-1]) == {"step": 2}


def test_a_folder_that_cannot_be_made_is_the_users_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="out must be a folder that can be written; .*file cannot be made"):
        prepare(TrainConfig(data="a", steps=3, out=str(tmp_path / "file")), resume=False)
    manifest = Manifest(target="t", target_description="", vocab_size=9, sampling={}, sources=())
    with pytest.raises(UserError, match="out must be a folder that can be written; .*below cannot be made"):
        AnswersWriter(tmp_path / "file" / "below", manifest)
