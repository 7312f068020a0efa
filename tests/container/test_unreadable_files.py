"""Files that are there and cannot be read, and paths that no file can have: one line that names the file and the reason.

`/proc/self/mem` is a regular file whose first bytes nobody can read, the superuser included.
"""

import sys

import pytest

from radiance_jax import convert, info
from radiance_jax.container.conversion import convert as convert_model
from radiance_jax.container.drafter import open_drafter
from radiance_jax.container.hub import hub_id
from radiance_jax.container.source import eos_token_ids, open_model
from radiance_jax.errors import ModelError, UserError

LONG = "x" * 300  # longer than a name may be
linux = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")


def unreadable(path) -> None:
    path.unlink()
    path.symlink_to("/proc/self/mem")


@linux
@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json", "model.safetensors.index.json"])
def test_a_file_of_a_folder_that_cannot_be_read_is_named(hf_folder, tmp_path, capsys, name):
    folder = hf_folder(shards=2 if name.endswith("index.json") else 1)
    unreadable(folder / name)
    with pytest.raises(ModelError, match=rf"{name}.*(cannot be read|must be from)"):
        open_model(folder).file(name)
    assert convert.main([str(folder), str(tmp_path / "m.rad")]) == 2
    assert name in capsys.readouterr().err.splitlines()[-1]
    if name == "config.json":
        assert info.main([str(folder)]) == 2
        with pytest.raises(ModelError, match="config.json"):
            open_drafter(folder)


def test_a_path_that_is_too_long_is_the_users_error(hf_folder, capsys):
    with pytest.raises(ModelError, match="cannot be read .File name too long"):
        open_model(LONG)
    for path in (LONG, f"owner/{LONG[:90]}/{LONG}"):
        assert info.main([path]) == 2 and convert.main([path, "m.rad"]) == 2
        assert capsys.readouterr().err.count("cannot be read") == 2
    assert hub_id(f"owner/{'x' * 90}") is not None
    with pytest.raises(UserError, match="must be writable"):
        convert_model(hf_folder(), f"{LONG}.rad")


def test_a_folder_is_not_written_over(hf_folder, tmp_path):
    (tmp_path / "m.rad").mkdir()
    with pytest.raises(UserError, match="must be a file; .*m.rad is a folder"):
        convert_model(hf_folder(), tmp_path / "m.rad", overwrite=True)
    assert not list((tmp_path / "m.rad").iterdir())


@pytest.mark.parametrize(("of_config", "of_generation", "ids"), [
    (1, '{"eos_token_id": [2, 0]}', (2, 0)), (1, "{}", (1,)), ([1, 2], '{"eos_token_id": 3}', (3,)), (None, "{}", ())])
def test_info_names_the_end_tokens_that_the_engine_takes(hf_folder, of_config, of_generation, ids):
    from radiance_jax.engine.build import eos_ids, generation_defaults
    from radiance_jax.models.config import parse_config
    folder = hf_folder(config={"eos_token_id": of_config})
    (folder / "generation_config.json").write_text(of_generation)
    model = open_model(folder)
    assert eos_token_ids(model) == eos_ids(parse_config(model.config), generation_defaults(model)) == ids
