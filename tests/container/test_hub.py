"""Models by hub id, with the download injected."""

import sys

import pytest

from radiance_jax.container.hub import PATTERNS, fetch_snapshot, hub_id, locate_model
from radiance_jax.container.source import open_model
from radiance_jax.errors import UserError


@pytest.mark.parametrize(("model", "found"), [
    ("Qwen/Qwen3-0.6B", ("Qwen/Qwen3-0.6B", None)), ("org/name@refs/pr/1", ("org/name", "refs/pr/1")),
    ("org/name@v1.0", ("org/name", "v1.0")), ("model", None), ("./org/name", None), ("/org/name", None), ("~/name", None),
    ("org/../name", None), ("org/..", None), ("a/b/c", None), ("models/x.gguf", None), ("models/x.rad", None),
    ("org/na me", None), ("org/", None), ("org\\name", None), ("https://hub/org", None), ("org/name\n", None), ("", None)])
def test_what_looks_like_a_hub_id(model, found, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert hub_id(model) == found


def test_a_folder_of_that_name_is_taken_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "org" / "name").mkdir(parents=True)

    def never(*arguments):
        raise AssertionError("no download")

    assert str(locate_model("org/name", never)) == "org/name"


def test_a_model_is_fetched_without_other_spellings_of_its_weights(hf_folder, tmp_path):
    folder, asked, lines = hf_folder(shards=2), [], []

    def fetch(repo, revision, patterns):
        asked.append((repo, revision))
        for name in ("config.json", "tokenizer.json", "model.safetensors.index.json"):
            assert name in patterns
        return str(folder)

    path = locate_model("org/tiny@main", fetch, lines.append)
    assert open_model(path).format == "huggingface"
    assert asked == [("org/tiny", "main")] and len(lines) == 1
    assert not any(pattern in ("*", "*.safetensors", "*.bin") for pattern in PATTERNS)


class HfHubHTTPError(OSError):
    pass


class RepositoryNotFoundError(HfHubHTTPError):
    pass


class GatedRepoError(RepositoryNotFoundError):
    pass


class LocalEntryNotFoundError(FileNotFoundError):
    pass


@pytest.mark.parametrize(("error", "says"), [
    (GatedRepoError("403"), "accept the terms"), (RepositoryNotFoundError("404"), "check the spelling"),
    (LocalEntryNotFoundError("offline"), "hf download org/name"), (HfHubHTTPError("500"), "try again later"),
    (ConnectionError("refused\nby peer"), "check the network"), (RuntimeError(""), "pass the path of a model"),
    (OSError(28, "No space left on device"), "space on the disk")])
def test_a_failed_download_says_what_to_do(error, says):
    def fetch(*arguments):
        raise error

    with pytest.raises(UserError) as caught:
        locate_model("org/name", fetch)
    text = str(caught.value)
    assert caught.value.param == "model" and says in text and "'org/name'" in text and "\n" not in text


def test_the_real_errors_are_told_apart_by_name():
    errors = pytest.importorskip("huggingface_hub.errors")
    from radiance_jax.container.hub import _REMEDIES
    for name, _ in _REMEDIES[:6]:
        assert issubclass(getattr(errors, name), Exception)


def test_without_the_package_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(UserError, match=r"pip install 'radiance-jax\[hub\]'"):
        locate_model("org/name", fetch_snapshot)
